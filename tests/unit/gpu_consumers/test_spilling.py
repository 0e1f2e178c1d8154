"""Who gives what to whom, by what heartbeats say: the rule alone, without a worker."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.core.spilling import MAX_SPILLS, SKEW, TOKENS_PER_TURN, Candidate, Spill, Spilling
from schemas.request import LANES, Lane
from schemas.worker import EngineFailing, LaneQueue, WorkerState

NOW_MS = 1_000_000
LEASE_MS = 4_000
SLOTS = 4
FAR_MS = NOW_MS + 3_600_000


def beat(worker_id: str, at_ms: int, waiting: int, left: int, lane: Lane = Lane.STANDARD, **more: Any) -> WorkerState:
    """Its partition has the number that its name ends with."""
    fields: dict[str, Any] = {
        "worker_id": worker_id, "pool": "pool", "model": "m", "engine": "simulated", "state": "ready",
        "beat_at_ms": at_ms, "lease_ms": LEASE_MS, "lane_partitions": {each: [int(worker_id[-1])] for each in LANES},
        "running": SLOTS if waiting else 0, "waiting": waiting, "max_running": SLOTS, "counts_since_ms": 1,
        "queues": {each: LaneQueue() for each in LANES} | {lane: LaneQueue(waiting=waiting, left=left)},
    }  # fmt: skip
    return WorkerState.model_validate(fields | more)


def hears(spilling: Spilling, worker_id: str, waiting: int, per_s: int | None, **more: Any) -> None:
    """The heartbeats of half a minute of a worker in whose queue so many stand now, and some stood before. None: of one
    that has just come.
    """
    for ago_s in range(30 if per_s is not None else 0, -1, -1):
        left = (30 - ago_s) * (per_s or 0)
        spilling.heard(beat(worker_id, NOW_MS - ago_s * 1_000, max(waiting, 1) if ago_s else waiting, left, **more))


def of(
    count: int, tenant_id: str = "acme", *, first: int = 0, prompt_tokens: int = 10, deadline_ms: int = FAR_MS,
    **more: Any,
) -> list[Candidate]:  # fmt: skip
    return [
        Candidate(f"{tenant_id}-{first + number}", tenant_id, prompt_tokens, deadline_ms, **more)
        for number in range(count)
    ]


def planned(spilling: Spilling, candidates: list[Candidate], now_ms: int = NOW_MS) -> list[Spill]:
    return spilling.plan({Lane.STANDARD: len(candidates)}, lambda lane: candidates, {Lane.STANDARD: {1}}, now_ms)


def pool(own: tuple[int, int], *others: tuple[int, int | None], per_s: int = 1_000) -> Spilling:
    """`w-1` is who plans; each with what waits at it, and how many leave it in a second."""
    spilling = Spilling("w-1", "pool", per_s)
    for number, (waiting, rate) in enumerate([own, *others], 1):
        hears(spilling, f"w-{number}", waiting, rate)
    return spilling


def test_a_slow_worker_keeps_what_takes_as_long_as_the_queues_of_the_others() -> None:
    spills = planned(pool((60, 1), (10, 10), (10, 10)), of(60))
    by_worker = Counter(spill.worker_id for spill in spills)
    assert by_worker.keys() == {"w-2", "w-3"}
    assert 50 <= len(spills) <= 58, "its speed is taken for the highest that chance allows"
    assert abs(by_worker["w-2"] - by_worker["w-3"]) <= 1
    assert {spill.partition for spill in spills if spill.worker_id == "w-3"} == {3}


@pytest.mark.parametrize("own", [(20, 10), (26, 10), (5, 1)])
def test_who_waits_about_as_long_as_the_others_gives_nothing(own: tuple[int, int]) -> None:
    assert not planned(pool(own, (20, 10), (22, 10)), of(own[0]))


def test_it_begins_late_and_goes_on_until_they_are_near_each_other() -> None:
    assert not planned(pool((35, 10), (20, 10)), of(35))
    spilling = pool((60, 10), (10, 10), per_s=4)
    assert len(planned(spilling, of(60))) == 4
    hears(spilling, "w-2", 18, 10)
    assert len(planned(spilling, of(35), NOW_MS + 1_000)) == 4, "which it would not have begun with"


def test_several_that_give_at_once_do_not_overrun_who_takes() -> None:
    queues = {"w-1": 40, "w-2": 30, "w-3": 50, "w-4": 0}
    given = 0
    for giver in ("w-1", "w-2", "w-3"):
        spilling = Spilling(giver, "pool", 1_000)
        for worker_id, waiting in queues.items():
            hears(spilling, worker_id, waiting, 10)
        own = {Lane.STANDARD: queues[giver]}
        number = int(giver[-1])
        given += len(spilling.plan(own, lambda lane: of(50), {Lane.STANDARD: {number}}, NOW_MS))
    assert 15 <= given <= SKEW * (30 + SLOTS), "the even queue of four is thirty"


def test_who_was_just_added_is_taken_to_be_as_fast_as_the_others() -> None:
    spills = planned(pool((60, 10), (60, 10), (0, None)), of(60))
    assert {spill.worker_id for spill in spills} == {"w-3"}
    assert 10 <= len(spills) <= 25


FAILING = EngineFailing(until_ms=NOW_MS + 60_000, failed=10, attempts=10)


def test_to_an_engine_that_fails_nothing_goes_however_little_waits_there() -> None:
    spilling = pool((60, 10), (20, 10))
    hears(spilling, "w-3", 0, 10, running=0, failing=FAILING)
    assert {spill.worker_id for spill in planned(spilling, of(60))} == {"w-2"}
    alone = pool((60, 10))
    hears(alone, "w-2", 0, 10, running=0, failing=FAILING)
    assert not planned(alone, of(60))


def test_what_waits_for_an_engine_that_fails_goes_to_who_has_room_however_fast_it_failed() -> None:
    spilling = Spilling("w-1", "pool", 1_000)
    hears(spilling, "w-1", 20, 10, failing=FAILING)
    hears(spilling, "w-2", 20, 10)
    spills = planned(spilling, of(20))
    assert {spill.worker_id for spill in spills} == {"w-2"}
    assert len(spills) == 20
    alone = Spilling("w-1", "pool", 1_000)
    hears(alone, "w-1", 20, 10, failing=FAILING)
    hears(alone, "w-2", 0, 10, running=0, failing=FAILING)
    assert not planned(alone, of(20)), "there is nobody else"


def test_how_fast_an_engine_fails_says_nothing_of_who_was_just_added() -> None:
    def rooms(failed_per_s: int) -> int:
        spilling = pool((60, 2), (0, None))
        hears(spilling, "w-3", 40, failed_per_s, failing=FAILING)
        return len(planned(spilling, of(60)))

    assert rooms(2) == rooms(100) > 0


def test_who_does_not_know_its_own_speed_gives_nothing() -> None:
    assert not planned(pool((60, None), (0, 10)), of(60))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "is_none",
    [
        {"state": "draining"}, {"pool": "another"}, {"lane_partitions": {Lane.STANDARD: []}},
        {"lane_partitions": {Lane.STANDARD: [1]}}, {"lease_ms": 500},
    ],
)  # fmt: skip
def test_nothing_goes_to_who_cannot_begin_it(is_none: dict[str, Any]) -> None:
    spilling = pool((60, 1))
    hears(spilling, "w-2", 0, 10, **is_none)
    assert not planned(spilling, of(60), NOW_MS + 600)


def test_who_is_buried_is_given_nothing() -> None:
    spilling = pool((60, 1), (0, 10))
    spilling.buried("w-2")
    assert not spilling.due(NOW_MS)
    assert not planned(spilling, of(60))


def test_the_longest_line_gives_first_and_who_asked_last_of_it() -> None:
    spills = planned(pool((50, 1), (0, 10), per_s=24), of(40, "flood") + of(10, "small"))
    assert [spill.response_id for spill in spills] == [f"flood-{number}" for number in range(39, 15, -1)]


def test_a_line_is_as_long_as_its_weight_makes_it() -> None:
    spills = planned(pool((60, 1), (0, 10), per_s=30), of(40, "heavy", weight=4) + of(20, "light"))
    of_whom = Counter(spill.response_id.partition("-")[0] for spill in spills)
    assert abs((40 - of_whom["heavy"]) / 4 - (20 - of_whom["light"])) <= 1


def test_so_many_a_second_and_long_prompts_count_for_several() -> None:
    spilling = pool((60, 1), (0, 10), per_s=10)
    assert len(planned(spilling, of(60))) == 10
    assert not spilling.due(NOW_MS + 999)
    assert spilling.due(NOW_MS + 1_000)
    assert len(planned(pool((60, 1), (0, 10), per_s=10), of(60, prompt_tokens=TOKENS_PER_TURN))) == 5
    assert not pool((60, 1), (0, 10), per_s=0).due(NOW_MS)


def test_what_begins_alike_goes_to_one_worker_and_those_differ() -> None:
    alike = [candidate for key in range(8) for candidate in of(3, f"t{key}", cache_id=f"key {key}")]
    spills = planned(pool((24, 0), (0, 10), (0, 10), (0, 10)), alike)
    went: dict[str, set[str]] = {}
    for spill in spills:
        went.setdefault(spill.response_id.partition("-")[0], set()).add(spill.worker_id)
    assert sum(len(workers) == 1 for workers in went.values()) >= 6, "where there is room"
    assert len(set().union(*went.values())) > 1


@pytest.mark.parametrize(("waits_s", "goes"), [(4, False), (60, True)])
def test_a_prompt_that_was_computed_here_stays_unless_the_wait_is_much_longer(waits_s: int, *, goes: bool) -> None:
    """Its 16,000 tokens take another worker three seconds."""
    candidates = of(waits_s * 10, cache_id="a conversation", prompt_tokens=16_000, kept_tokens=16_000)
    spills = planned(pool((waits_s * 10, 10), (0, 10), (0, 10)), candidates)
    assert bool(spills) == goes
    assert planned(pool((waits_s * 10, 10), (0, 10), (0, 10)), [each._replace(kept_tokens=0) for each in candidates])


def test_what_would_end_before_its_turn_there_stays() -> None:
    candidates = of(40, deadline_ms=NOW_MS + 6_000)
    assert not planned(pool((40, 1), (80, 10)), candidates)
    assert planned(pool((40, 1), (0, 10)), candidates)


def test_a_queue_that_does_not_move_is_given_to_whoever_has_slots() -> None:
    spills = planned(pool((10, 0), (0, 0)), of(10))
    assert {spill.worker_id for spill in spills} == {"w-2"}
    assert SLOTS <= len(spills) < 10


def test_each_knows_how_many_are_before_it_where_it_goes() -> None:
    behind = [spill.ahead for spill in planned(pool((60, 1), (10, 10)), of(60))]
    assert behind[0] is not None
    assert (behind[0].worker_id, behind[0].left, behind[0].counts_since_ms) == ("w-2", 300, 1)
    assert [ahead.before for ahead in behind if ahead is not None] == [*range(10, 10 + len(behind))]
    at_once = [spill.ahead for spill in planned(pool((60, 1), (0, 10)), of(60))]
    assert at_once[: SLOTS + 1] == [None] * (SLOTS + 1)
    assert [ahead.before for ahead in at_once[SLOTS + 1 : SLOTS + 3] if ahead is not None] == [1, 2]
    assert {ahead.left for ahead in at_once if ahead is not None} == {300 + SLOTS}, "who has a slot leaves at once"


def test_who_waits_behind_a_lane_above_goes_where_nothing_is_before_it() -> None:
    spilling = Spilling("w-1", "pool", 64)
    hears(spilling, "w-1", 40, 4, lane=Lane.INTERACTIVE)
    hears(spilling, "w-2", 0, 10)
    own = {Lane.INTERACTIVE: 40, Lane.STANDARD: 5}
    spills = spilling.plan(
        own, lambda lane: of(5) if lane is Lane.STANDARD else [], {lane: {1} for lane in LANES}, NOW_MS
    )
    assert len(spills) == 5


def test_what_is_on_its_way_counts_before_a_heartbeat_tells_of_it() -> None:
    spilling = pool((60, 1), (10, 10))
    first = planned(spilling, of(60))
    assert len(first) > 40
    assert not planned(spilling, of(60 - len(first)), NOW_MS + 1_000)
    spilling.heard(beat("w-2", NOW_MS + 1_500, 10, 315))
    assert len(planned(spilling, of(60), NOW_MS + 2_000)) > 40


def test_a_lane_is_held_against_what_goes_before_it() -> None:
    """At the other worker as much waits in the lane above."""
    spilling = pool((40, 4))
    hears(spilling, "w-2", 40, 4, lane=Lane.INTERACTIVE)
    assert not planned(spilling, of(40))


class Pool(RuleBasedStateMachine):
    """Four workers that give and take, beat when they like, become slow, drain and come back."""

    PER_S = 6

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW_MS
        self.names = [f"w-{number}" for number in range(1, 5)]
        self.spillings = {name: Spilling(name, "pool", self.PER_S) for name in self.names}
        self.queues: dict[str, list[Candidate]] = {name: [] for name in self.names}
        self.left: Counter[str] = Counter()
        self.spilled: Counter[str] = Counter()
        self.speed = dict.fromkeys(self.names, 2)
        self.is_ready = dict.fromkeys(self.names, True)
        self.spills: Counter[str] = Counter()
        self.asked = self.answered = 0

    @rule(name=st.integers(1, 4), count=st.integers(1, 30), tenant=st.sampled_from(["a", "b"]), s=st.integers(1, 90))
    def backlog(self, name: int, count: int, tenant: str, s: int) -> None:
        deadline_ms = self.now_ms + s * 1_000
        self.queues[f"w-{name}"] += of(count, tenant, first=self.asked, deadline_ms=deadline_ms)
        self.asked += count

    @rule(name=st.integers(1, 4), speed=st.integers(0, 8))
    def becomes(self, name: int, speed: int) -> None:
        self.speed[f"w-{name}"] = speed

    @rule(name=st.integers(1, 4))
    def drains_or_comes_back(self, name: int) -> None:
        self.is_ready[f"w-{name}"] = not self.is_ready[f"w-{name}"]

    @rule(seconds=st.integers(1, 6), silent=st.integers(0, 4))
    def passes(self, seconds: int, silent: int) -> None:
        for _ in range(seconds):
            self.now_ms += 1_000
            for name in self.names:
                gone = min(self.speed[name], len(self.queues[name]))
                del self.queues[name][:gone]
                self.left[name] += gone
                self.answered += gone
            for name in self.names:
                if name != f"w-{silent}":
                    self._beats(name)

    def _beats(self, name: str) -> None:
        queue = LaneQueue(
            waiting=len(self.queues[name]), left=self.left[name] + self.spilled[name], spilled=self.spilled[name]
        )
        queues = {each: LaneQueue() for each in LANES} | {Lane.STANDARD: queue}
        state = "ready" if self.is_ready[name] else "draining"
        state_of = beat(name, self.now_ms, len(self.queues[name]), 0, queues=queues, state=state)
        for spilling in self.spillings.values():
            spilling.heard(state_of)

    @rule(name=st.integers(1, 4))
    @precondition(lambda self: self.now_ms > NOW_MS)
    def gives(self, name: int) -> None:
        giver = f"w-{name}"
        spilling, queue = self.spillings[giver], self.queues[giver]
        if not spilling.due(self.now_ms):
            return
        movable = [each for each in queue if self.spills[each.response_id] < MAX_SPILLS]
        spills = spilling.plan({Lane.STANDARD: len(queue)}, lambda lane: movable, {Lane.STANDARD: {name}}, self.now_ms)
        assert not spilling.due(self.now_ms)
        assert len(spills) == len({spill.response_id for spill in spills}) <= self.PER_S
        by_id = {each.response_id: each for each in movable}
        for spill in spills:
            candidate = by_id[spill.response_id]
            assert spill.worker_id != giver
            assert spill.partition == int(spill.worker_id[-1])
            assert candidate.deadline_ms > self.now_ms
            queue.remove(candidate)
            self.queues[spill.worker_id].append(candidate)
            self.spills[spill.response_id] += 1
            self.spilled[giver] += 1

    @invariant()
    def nothing_is_lost_or_moved_too_often(self) -> None:
        assert self.asked == self.answered + sum(map(len, self.queues.values()))
        assert max(self.spills.values(), default=0) <= MAX_SPILLS


Pool.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
test_workers_that_give_and_take = Pool.TestCase
