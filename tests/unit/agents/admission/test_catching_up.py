"""What piled up begins by tiers, at a pace, while there is room; what is too late takes no turn. The core alone."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agents.admission.catching_up import BEHIND_MS, LOWEST, TIERS, Asked, Backlog, Need, has_room
from agents.admission.routing import Load, QueueBound
from agents.admission.turns import OTHERS_EVERY
from schemas.worker import WorkerState
from streams.directory import Tier
from streams.drain import Drain
from tests.unit.agents.admission.world import NOW

LATE = NOW - BEHIND_MS - 1
MODELS = ("tiny", "big")


def room_for_all(_model: str, _need: Need) -> bool:
    return True


def asked(
    item: str, tier: Tier = "paid", tenant_id: str = "acme", model: str = "tiny", deadline_ms: int = NOW + 60_000,
    size_bytes: int = 100, weight: int = 1, *, may_step_aside: bool = True,
) -> Asked[str]:  # fmt: skip
    return Asked(item, item, tier, tenant_id, model, deadline_ms, size_bytes, weight, may_step_aside)


def entered(backlog: Backlog[str], *all_asked: Asked[str]) -> list[str]:
    return [backlog.enter(each, NOW, appended_ms=LATE, is_busy=False) for each in all_asked]


def begun(backlog: Backlog[str], count: int = 1_000) -> list[str]:
    items = (backlog.take(NOW, room_for_all) for _ in range(count))
    return [item for item in items if item is not None]


def test_who_comes_in_its_time_passes_whatever_waits() -> None:
    backlog: Backlog[str] = Backlog()
    assert entered(backlog, asked("p")) == ["turn"]
    assert backlog.enter(asked("f", "free"), NOW, appended_ms=NOW - BEHIND_MS, is_busy=False) == "now"


def test_tiers_begin_in_their_order_whatever_the_log_has_first() -> None:
    backlog: Backlog[str] = Backlog()
    entered(backlog, *(asked(f"f{n}", "free") for n in range(5)), asked("p0"), asked("p1"), asked("g", "premium"))
    assert begun(backlog) == ["g", "p0", "p1", "f0", "f1", "f2", "f3", "f4"]


def test_one_turn_of_eight_is_for_those_below_by_turns() -> None:
    backlog: Backlog[str] = Backlog()
    for tier in TIERS:
        entered(backlog, *(asked(f"{tier}{n}", tier) for n in range(100)))
    of = Counter(item.rstrip("0123456789") for item in begun(backlog, 16 * OTHERS_EVERY // 2))
    assert of == {"premium": 56, "paid": 4, "free": 4}


def test_tenants_of_a_tier_share_by_weight() -> None:
    backlog: Backlog[str] = Backlog()
    for tenant_id, weight in (("flood", 1), ("small", 1), ("large", 3)):
        entered(backlog, *(asked(tenant_id, "paid", tenant_id, weight=weight) for _ in range(300)))
    assert Counter(begun(backlog, 100)) == {"flood": 20, "small": 20, "large": 60}


def test_of_the_lowest_tier_half_of_the_look_ahead_is_held_and_the_rest_steps_aside() -> None:
    backlog: Backlog[str] = Backlog(most=10)
    ways = entered(backlog, *(asked(f"f{n}", "free") for n in range(8)))
    assert ways == ["turn"] * 5 + ["aside"] * 3
    assert entered(backlog, asked("p"), asked("again", "free", may_step_aside=False)) == ["turn", "turn"]
    begun(backlog, 3)
    assert entered(backlog, asked("next", "free")) == ["turn"]


def test_a_few_large_ones_of_the_lowest_tier_are_as_much_as_many() -> None:
    backlog: Backlog[str] = Backlog(most_bytes=1_000)
    large = [asked(f"f{n}", "free", size_bytes=400) for n in range(3)]
    assert entered(backlog, *large) == ["turn", "aside", "aside"]
    assert begun(backlog) == ["f0"]
    assert entered(backlog, asked("huge", "free", size_bytes=10_000)) == ["turn"]


def test_what_waits_for_room_holds_up_no_other_model() -> None:
    backlog: Backlog[str] = Backlog()
    entered(backlog, asked("full", "premium", model="big"), asked("able", "free"))
    assert backlog.take(NOW, lambda model, _: model == "tiny") == "able"
    assert backlog.take(NOW, lambda model, _: model == "tiny") is None
    assert backlog.take(NOW, room_for_all) == "full"


def given_up(backlog: Backlog[str], *full: str, models: tuple[str, ...] = MODELS) -> list[str]:
    return [*backlog.too_many(NOW, lambda model, _: model not in full, lambda _: not {*models} <= {*full})]


def test_who_waits_for_a_full_pool_has_half_of_the_look_ahead_while_another_has_room() -> None:
    backlog: Backlog[str] = Backlog(most=10)
    entered(backlog, *(asked(f"p{n}", model="big") for n in range(7)), asked("g", "premium", "gold", model="big"))
    assert not given_up(backlog), "all have room"
    assert not given_up(backlog, *MODELS), "nobody behind them could begin either"
    assert given_up(backlog, "big") == ["p6", "p5", "p4"]
    assert begun(backlog) == ["g", "p0", "p1", "p2", "p3"]


def test_of_whoever_has_most_the_newest_are_given_up_also_where_they_are_large() -> None:
    backlog: Backlog[str] = Backlog(most_bytes=1_000)
    entered(backlog, *(asked(f"flood{n}", "paid", "flood", "big", size_bytes=300) for n in range(3)))
    entered(backlog, asked("other", "paid", "other", "big", size_bytes=100))
    assert given_up(backlog, "big") == ["flood2", "flood1"]
    entered(backlog, asked("huge", "premium", "acme", "huge", size_bytes=10_000))
    assert given_up(backlog, "huge", models=("tiny", "huge")) == [], "one alone always fits"


def test_what_has_come_round_gives_way_likewise_and_what_may_step_aside_yet_does_not() -> None:
    backlog: Backlog[str] = Backlog(most=10)
    entered(backlog, *(asked(f"f{n}", "free", model="big") for n in range(5)))
    entered(backlog, *(asked(f"again{n}", "free", model="big", may_step_aside=False) for n in range(8)))
    assert given_up(backlog, "big") == ["again7", "again6", "again5"]


def test_until_the_log_is_read_the_lowest_tier_has_what_others_leave() -> None:
    backlog: Backlog[str] = Backlog()
    entered(backlog, *(asked(f"p{n}") for n in range(OTHERS_EVERY)), *(asked(f"f{n}", "free") for n in range(4)))

    def taken(_model: str, need: Need) -> bool:
        return need != "idle slots"

    given = [backlog.take(NOW, taken) for _ in range(OTHERS_EVERY + 2)]
    assert given == [*(f"p{n}" for n in range(OTHERS_EVERY - 1)), "f0", f"p{OTHERS_EVERY - 1}", None]
    assert backlog.take(NOW, room_for_all) == "f1", "a slot stands idle"
    assert backlog.take(NOW + BEHIND_MS, taken) == "f2", "nothing late was read since"


def test_once_the_log_is_read_the_lowest_tier_fills_half_a_queue_and_one_a_second_begins_as_who_comes_now() -> None:
    backlog: Backlog[str] = Backlog()
    entered(backlog, *(asked(f"f{n}", "free") for n in range(4)))

    def long_queue(_model: str, need: Need) -> bool:
        return need == "queue"

    after = NOW + BEHIND_MS
    assert backlog.take(after - 1, long_queue) is None
    assert [backlog.take(after + wait_ms, long_queue) for wait_ms in (0, 0, 999, 1_000)] == ["f0", None, None, "f1"]
    assert backlog.take(after + 1_000, lambda _, need: need == "half a queue") == "f2"


def test_who_waits_because_all_is_busy_waits_for_no_room() -> None:
    backlog: Backlog[str] = Backlog()
    assert backlog.enter(asked("fresh", "free"), NOW, appended_ms=NOW, is_busy=True) == "turn"
    entered(backlog, asked("late", "premium"))
    assert backlog.take(NOW, None) == "fresh"
    assert backlog.take(NOW, None) is None


def test_what_is_too_late_takes_nobodys_turn() -> None:
    backlog: Backlog[str] = Backlog()
    assert entered(backlog, asked("over", deadline_ms=NOW)) == ["now"]
    entered(backlog, asked("soon", deadline_ms=NOW + 5), asked("later", "free"))
    assert backlog.too_late(NOW + 5) == ["soon"]
    assert begun(backlog) == ["later"]


def test_what_is_cancelled_takes_nobodys_turn() -> None:
    backlog: Backlog[str] = Backlog()
    entered(backlog, asked("unwanted", "premium"), asked("wanted"))
    assert backlog.cancelled({"unwanted"}.__contains__) == ["unwanted"]
    assert backlog.cancelled({"unwanted"}.__contains__) == []
    assert begun(backlog) == ["wanted"]


def test_of_what_has_gone_little_is_kept_however_long_it_might_have_waited() -> None:
    backlog: Backlog[str] = Backlog(most=10)
    entered(backlog, asked("waits", "premium", model="big", deadline_ms=NOW + 30_000))
    for number in range(500):
        entered(backlog, asked(f"p{number}"), asked(f"over{number}", model="big", deadline_ms=NOW + 1 + number))
        assert backlog.take(NOW, lambda model, _: model == "tiny") == f"p{number}"
        assert backlog.too_late(NOW + 1 + number) == [f"over{number}"]
        assert backlog.kept <= 10 + 2 * 3
    assert backlog.take(NOW + 501, room_for_all) == "waits"


SLOW, FAST = Drain(10, 5_000), Drain(100, 50_000)


def load(waiting: int, tokens: int, drain: Drain | None = None, running: int = 0, slots: int = 64) -> Load:
    state = WorkerState(
        worker_id="w", pool="default", model="tiny", engine="simulated", state="ready", beat_at_ms=NOW, lease_ms=4_000,
        waiting=waiting, queued_tokens=tokens, max_running=slots, running=running,
    )  # fmt: skip
    return Load(state, drain=drain)


@pytest.mark.parametrize(
    ("pools", "has"),
    [
        ([[]], "queue, half a queue, little ahead, idle slots"),
        ([[load(0, 0, running=63)]], "queue, half a queue, little ahead, idle slots"),
        ([[load(0, 0, running=64)]], "queue, half a queue, little ahead"),
        ([[load(63, 200_000)]], "queue, half a queue, little ahead, idle slots"),
        ([[load(64, 30_000)]], "queue, half a queue"),
        ([[load(64, 30_000, SLOW)]], "queue, half a queue"),
        ([[load(64, 30_000, FAST)]], "queue, half a queue, little ahead"),
        ([[load(3_999, 30_000, SLOW)]], "queue, half a queue"),
        ([[load(4_000, 30_000, SLOW)]], "queue"),
        ([[load(64, 400_000, SLOW)]], "queue"),
        ([[load(7_999, 30_000, SLOW)]], "queue"),
        ([[load(8_000, 30_000, SLOW)]], ""),
        ([[load(63, 800_000, FAST)]], ""),
        ([[load(64, 30_000, SLOW)], [load(0, 0)]], "queue, half a queue, little ahead, idle slots"),
        ([[load(8_000, 30_000, SLOW)], []], ""),
        ([[load(64, 30_000, slots=0)]], "queue, half a queue, little ahead, idle slots"),
    ],
)
def test_a_pool_has_room_for_who_pays_as_ever_and_for_the_lowest_tier_while_little_waits(
    pools: list[list[Load]], has: str
) -> None:
    bound = QueueBound(1_000_000, 10_000)
    needs: tuple[Need, ...] = ("queue", "half a queue", "little ahead", "idle slots")
    assert ", ".join(need for need in needs if has_room(pools, bound, need)) == has


class AnyBacklog(RuleBasedStateMachine):
    """Beside a list of what waits: nothing is lost or begun twice, nobody starves, and what is kept is bounded."""

    @initialize(most=st.integers(2, 12))
    def begin(self, most: int) -> None:
        self.backlog: Backlog[int] = Backlog(most=most)
        self.most = most
        self.now_ms = NOW
        self.waits: dict[int, Asked[int]] = {}
        self.ended: set[int] = set()
        self.late: set[int] = set()
        self.count = self.peak = 0

    @rule(
        tier=st.sampled_from(TIERS), tenant=st.sampled_from("abc"), model=st.sampled_from(MODELS),
        lives_ms=st.integers(-5, 50), late=st.booleans(), again=st.booleans(), busy=st.booleans(),
    )  # fmt: skip
    def comes(
        self, tier: Tier, tenant: str, model: str, lives_ms: int, late: bool, again: bool, busy: bool
    ) -> None:  # fmt: skip
        self.count += 1
        each = Asked(self.count, str(self.count), tier, tenant, model, self.now_ms + lives_ms, may_step_aside=not again)
        appended_ms = self.now_ms - BEHIND_MS - late
        way = self.backlog.enter(each, self.now_ms, appended_ms=appended_ms, is_busy=busy)
        lowest = sum(waiting.tier == LOWEST for waiting in self.waits.values())
        if lives_ms <= 0:
            assert way == "now"
        elif way == "aside":
            assert (tier, late, again) == (LOWEST, True, False)
            assert lowest >= self.most / 2
        elif way == "now":
            assert (late, busy, again) == (False, False, False)
        if way == "turn":
            self.waits[self.count] = each
            self.late |= {self.count} if late or again else set()
            self.peak = max(self.peak, len(self.waits))

    @rule(rooms=st.sets(st.sampled_from(MODELS)))
    def takes(self, rooms: set[str]) -> None:
        item = self.backlog.take(self.now_ms, lambda model, _: model in rooms)
        if item is None:
            able = [each for each in self.waits.values() if each.model in rooms and each.deadline_ms > self.now_ms]
            assert not able
        else:
            assert item not in self.ended
            self.ended.add(item)
            del self.waits[item]

    @rule(rooms=st.sets(st.sampled_from(MODELS)))
    def some_are_given_up(self, rooms: set[str]) -> None:
        given_up = [*self.backlog.too_many(self.now_ms, lambda model, _: model in rooms, lambda _: bool(rooms))]
        assert len(given_up) == len(set(given_up))
        assert not given_up or rooms
        for item in given_up:
            each = self.waits.pop(item)
            assert each.model not in rooms
            assert each.tier != LOWEST or not each.may_step_aside
            self.ended.add(item)
        of_full = [each for each in self.waits.values() if each.model not in rooms and each.item in self.late]
        above = [each for each in of_full if each.tier != LOWEST and each.may_step_aside]
        again = [each for each in of_full if not each.may_step_aside]
        assert not rooms or max(len(above), len(again)) <= max(self.most / 2, 1)

    @rule(modulus=st.integers(2, 5))
    def some_are_cancelled(self, modulus: int) -> None:
        unwanted = {item for item in self.waits if item % modulus == 0}
        told = self.backlog.cancelled(lambda response_id: int(response_id) % modulus == 0)
        assert len(told) == len(set(told))
        assert set(told) == unwanted
        for item in told:
            self.ended.add(item)
            del self.waits[item]

    @precondition(lambda self: self.waits)
    @rule()
    def all_begin_within_their_bound(self) -> None:
        """Whoever waits, of the highest tier that is there one of two turns at the least is its own."""
        tiers = [tier for tier in TIERS if any(each.tier == tier for each in self.waits.values())]
        given: list[Tier] = []
        for _ in range(2 * OTHERS_EVERY):
            item = self.backlog.take(NOW, room_for_all)
            if item is None:
                break
            given.append(self.waits[item].tier)
            self.ended.add(item)
            del self.waits[item]
            if {each.tier for each in self.waits.values()} != set(tiers):
                return
        assert set(tiers) <= set(given)

    @rule(for_ms=st.integers(1, 30))
    def time_passes(self, for_ms: int) -> None:
        self.now_ms += for_ms
        late = self.backlog.too_late(self.now_ms)
        expected = {item for item, each in self.waits.items() if each.deadline_ms <= self.now_ms}
        assert len(late) == len(set(late))
        assert set(late) == expected
        for item in late:
            self.ended.add(item)
            del self.waits[item]

    @rule()
    def a_balance_begins(self) -> None:
        assert set(self.backlog.take_all()) == set(self.waits)
        self.waits.clear()

    @invariant()
    def what_waits_is_known_and_what_is_kept_is_bounded(self) -> None:
        assert len(self.backlog) == len(self.waits)
        assert self.backlog.kept <= self.most + 2 * self.peak
        for tier in TIERS:
            assert self.backlog.waiting(tier) == sum(each.tier == tier for each in self.waits.values())


TestAnyBacklog = AnyBacklog.TestCase
TestAnyBacklog.settings = settings(max_examples=150, stateful_step_count=40, suppress_health_check=[*HealthCheck])
