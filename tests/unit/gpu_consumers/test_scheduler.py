"""The scheduler against a plain model of lanes, floors and slots, and before an engine whose answers end one by one."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import LARGE, Given, Scheduler, Sizes
from schemas.request import LANES, Lane
from schemas.worker import LaneQueue
from streams.lane_policy import LANE_POLICIES

MAX_CHOICES = 9
TENANTS = ("acme", "beta")
POLICIES = LANE_POLICIES


class SchedulerMachine(RuleBasedStateMachine):
    """The model is what waits, and of each answer in the engine its lane, its tenant and whether it is on a floor."""

    def __init__(self) -> None:
        super().__init__()
        self.model: list[Queued] = []
        self.in_engine: list[Given] = []
        """Each as often as it has answers that have not ended."""
        self.silent: set[str] = set()
        self.spoke: list[str] = []
        """Of those that may be paused, in this order."""
        self.names = 0
        self.now_ms = 0

    @initialize(sizes=st.sampled_from([Sizes(4), Sizes(1), Sizes(4, buffer=2), Sizes(20, 2, 8), Sizes(20, 0)]))
    def begin(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.scheduler = Scheduler(sizes)
        self.floors = {lane: int(POLICIES.of(lane).floor * sizes.batch) for lane in LANES}
        self.begun_at_ms = dict.fromkeys(LANES, 0)
        self.left: list[Queued] = []
        """For the engine, or for good."""

    def held(self) -> Held:
        held = Held()
        for given in self.in_engine:
            held.add(given.item.lane, given.item.tenant_id, 1, on_floor=given.on_floor)
        for given in {given.item.response_id: given for given in self.in_engine}.values():
            held.silent[given.item.lane] += given.item.response_id in self.silent
        return held

    def starves(self, lane: Lane) -> bool:
        waits = [queued for queued in self.model if queued.lane is lane]
        patience_ms = POLICIES.of(lane).starves_after_ms
        return (
            bool(waits and patience_ms)
            and not self.held().of_lane[lane]
            and (
                self.now_ms - max(waits[0].queued_at_ms - waits[0].queued_before_ms, self.begun_at_ms[lane])
                >= patience_ms
            )
        )

    @rule(
        lane=st.sampled_from(LANES), tokens=st.integers(1, 50), front=st.booleans(),
        choices=st.integers(1, MAX_CHOICES), tenant_id=st.sampled_from(TENANTS), before_ms=st.sampled_from([0, 6_000]),
        may_pause=st.booleans(),
    )  # fmt: skip
    def add(
        self, lane: Lane, tokens: int, front: bool, choices: int, tenant_id: str, before_ms: int, may_pause: bool
    ) -> None:
        self.names += 1
        queued = Queued(
            str(self.names), lane, tokens, self.now_ms, choices, tenant_id, tokens, 10 * choices,
            queued_before_ms=before_ms, may_pause=may_pause,
        )  # fmt: skip
        self.scheduler.add(queued, front=front)
        self.model.insert(0 if front else len(self.model), queued)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="queued"):
            self.scheduler.add(data.draw(st.sampled_from(self.model)))

    @rule()
    def take(self) -> None:
        while (given := self.scheduler.take(self.held(), self.now_ms)) is not None:
            if given.instead_of:
                self.pause(given)
            self.judge(given)
            self.model.remove(given.item)
            self.in_engine += [given] * given.item.slots
            self.silent.add(given.item.response_id)
            self.begun_at_ms[given.item.lane] = self.now_ms
            self.left.append(given.item)
        self.judge_who_waits()

    def pausable(self) -> list[Given]:
        """The one that began to speak last comes last."""
        return [each for name in self.spoke for each in self.in_engine if each.item.response_id == name]

    def pause(self, given: Given) -> None:
        assert given.why == "pause"
        paused = self.pausable()[-1]
        assert paused.item.response_id == given.instead_of
        assert not POLICIES.of(paused.item.lane).waits_for_first_tokens
        assert self.held().total <= self.sizes.all
        self.in_engine.remove(paused)
        self.spoke.remove(given.instead_of)
        self.scheduler.left(paused.item.lane, given.instead_of, 10, goes_on=True)
        assert not paused.on_floor

    def judge(self, given: Given) -> None:
        held, lane, sizes = self.held(), given.item.lane, self.sizes
        own = [each for each in self.model if each.lane is lane and each.tenant_id == given.item.tenant_id]
        assert given.item is own[0], "of one tenant in order"
        is_crowd = held.total > sizes.batch
        assert given.on_floor == (given.why == "starving" or held.on_floor[lane] < self.floors[lane])
        assert held.total < sizes.all or is_crowd
        match given.why:
            case "starving":
                assert self.starves(lane)
            case "floor":
                assert held.of_lane[lane] < self.floors[lane]
                waits_above = any(LANES.index(each.lane) < LANES.index(lane) for each in self.model)
                assert waits_above or held.total >= sizes.shared, "order would have given it"
            case "pause":
                assert self.sizes.headroom
                assert POLICIES.of(lane).waits_for_first_tokens
            case "headroom":
                assert POLICIES.of(lane).waits_for_first_tokens
                assert held.of_tenant(lane, given.item.tenant_id) < max(sizes.batch // LARGE, 1)
                assert sizes.shared <= held.total < sizes.all
            case "order":
                is_below_floor = held.of_lane[lane] < self.floors[lane]
                assert not any(self.starves(each) for each in LANES) or is_crowd or is_below_floor
                assert held.total < sizes.shared or is_crowd
                assert self.taken(lane) < sizes.shared, "a crowd makes no more room than there is"
        if given.why in ("headroom", "order", "pause"):
            assert all(LANES.index(lane) <= LANES.index(each.lane) for each in self.model), "in strict order"

    def taken(self, lane: Lane) -> int:
        """By it and those above it."""
        held = self.held()
        return sum(held.of_lane[each] for each in LANES[: LANES.index(lane) + 1])

    def judge_who_waits(self) -> None:
        held = self.held()
        highest = min((queued.lane for queued in self.model), key=LANES.index, default=None)
        if highest is not None and POLICIES.of(highest).waits_for_first_tokens and self.sizes.headroom:
            assert not self.pausable() or held.total > self.sizes.all, "nobody waits beside one that may be paused"
        for queued in (each for each in self.model if each.lane is highest):
            assert held.total >= self.sizes.shared, "nobody waits beside a free slot that is for all"
            silent = sum(held.silent[lane] for lane in LANES[: LANES.index(queued.lane) + 1])
            if held.total > self.sizes.batch and self.taken(queued.lane) < self.sizes.shared:
                assert silent, "nobody waits for a crowd of a lower lane"

    @precondition(lambda self: self.in_engine)
    @rule(data=st.data())
    def an_answer_ends(self, data: st.DataObject) -> None:
        given = data.draw(st.sampled_from(self.in_engine))
        self.in_engine.remove(given)
        self.silent.discard(given.item.response_id)
        if given.item.response_id in self.spoke:
            self.spoke.remove(given.item.response_id)
        if given not in self.in_engine:
            self.scheduler.left(given.item.lane, given.item.response_id, 10)

    @precondition(lambda self: self.silent)
    @rule(data=st.data())
    def it_says_something(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.silent)))
        self.silent.remove(name)
        given = next(each for each in self.in_engine if each.item.response_id == name)
        item = given.item
        if item.may_pause and item.slots == 1 and item.lane is Lane.BATCH and not given.on_floor:
            assert given.told_beyond == 0, "or it would not be heard"
            self.spoke.append(name)
        self.scheduler.grown(item.lane, name, 1)

    @rule(which=st.integers(0, 60), is_moved=st.booleans())
    def remove(self, which: int, is_moved: bool) -> None:
        name = str(which)
        expected = next((queued for queued in self.model if queued.response_id == name), None)
        assert self.scheduler.remove(name, is_moved=is_moved) == expected
        if expected is not None:
            self.model.remove(expected)
            self.left += [] if is_moved else [expected]

    @rule(passed_ms=st.sampled_from([1, 150, 6_000, 70_000]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @invariant()
    def figures_agree(self) -> None:
        assert len(self.scheduler) == len(self.model)
        assert self.scheduler.queued_tokens == sum(queued.tokens for queued in self.model)
        for tenant_id in TENANTS:
            own = [queued for queued in self.model if queued.tenant_id == tenant_id]
            assert self.scheduler.tokens_of[tenant_id] == sum(queued.tokens for queued in own)
            assert self.scheduler.slots_of[tenant_id] == sum(queued.slots for queued in own)
            assert (tenant_id in self.scheduler.tokens_of) == bool(own)
        assert self.scheduler.queued_slots == sum(queued.slots for queued in self.model)
        for lane in LANES:
            in_lane = [queued for queued in self.model if queued.lane is lane]
            assert self.scheduler.waiting()[lane] == len(in_lane)
            left = [queued.tokens for queued in self.left if queued.lane is lane]
            assert self.scheduler.queues()[lane] == LaneQueue(
                waiting=len(in_lane), left=len(left), left_tokens=sum(left)
            )
            oldest_ms = self.now_ms - in_lane[0].queued_at_ms if in_lane else 0
            assert self.scheduler.oldest_waiting_ms(self.now_ms)[lane] == oldest_ms


TestSchedulerMachine = SchedulerMachine.TestCase


class Engine:
    """Answers of one length: one of them ends with each call of `ends`, the oldest first."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.held = Held()
        self.running: list[Given] = []
        self.now_ms = 0
        self.names = 0

    def add(self, lane: Lane, count: int, tenant_id: str = "acme") -> None:
        for _ in range(count):
            self.names += 1
            self.scheduler.add(Queued(f"r{self.names}", lane, 60, self.now_ms, 1, tenant_id, 10, 50))

    def fill(self) -> list[Given]:
        taken = []
        while (given := self.scheduler.take(self.held, self.now_ms)) is not None:
            self.held.add(given.item.lane, given.item.tenant_id, 1, on_floor=given.on_floor)
            self.running.append(given)
            taken.append(given)
        return taken

    def ends(self, after_ms: int = 100) -> list[Given]:
        self.now_ms += after_ms
        given = self.running.pop(0)
        self.held.add(given.item.lane, given.item.tenant_id, -1, on_floor=given.on_floor)
        self.scheduler.left(given.item.lane, given.item.response_id, 50)
        return self.fill()

    def share(self, lane: Lane) -> float:
        return self.held.of_lane[lane] / self.held.total


def test_each_lane_has_its_floor_beside_a_flood_of_those_above_it() -> None:
    engine = Engine(Scheduler(Sizes(64, 3)))
    engine.add(Lane.INTERACTIVE, 1_000)
    engine.fill()
    assert engine.share(Lane.INTERACTIVE) == 1
    engine.add(Lane.STANDARD, 200)
    engine.add(Lane.BATCH, 200)
    for _ in range(300):
        engine.ends()
    held = engine.held
    assert (held.of_lane[Lane.STANDARD], held.of_lane[Lane.BATCH], held.total) == (6, 6, 61)
    assert all(given.on_floor for given in engine.running if given.item.lane is not Lane.INTERACTIVE)


def test_what_a_lane_would_have_had_anyway_is_not_counted_as_its_floors() -> None:
    engine = Engine(Scheduler(Sizes(20, 2)))
    engine.add(Lane.STANDARD, 5)
    assert [given.why for given in engine.fill()] == ["order"] * 5
    engine.add(Lane.INTERACTIVE, 50)
    engine.add(Lane.BATCH, 50)
    given = engine.fill()
    assert [each.why for each in given if each.item.lane is Lane.BATCH] == ["floor"] * 2
    assert {each.why for each in given if each.item.lane is Lane.INTERACTIVE} == {"order"}


def test_a_floor_without_work_is_for_the_others() -> None:
    engine = Engine(Scheduler(Sizes(64, 3)))
    engine.add(Lane.INTERACTIVE, 500)
    engine.add(Lane.BATCH, 2)
    engine.fill()
    for _ in range(100):
        engine.ends()
    assert engine.held.of_lane[Lane.INTERACTIVE] == 61


def test_above_their_floors_lanes_are_in_strict_order() -> None:
    engine = Engine(Scheduler(Sizes(64, 3)))
    engine.add(Lane.BATCH, 1_000)
    engine.fill()
    engine.add(Lane.STANDARD, 200)
    for _ in range(100):
        for given in engine.ends():
            assert given.item.lane is Lane.STANDARD or engine.held.of_lane[Lane.BATCH] <= 6
    assert engine.held.of_lane[Lane.STANDARD] == 55


def test_where_a_floor_is_no_whole_slot_a_lane_has_a_turn_when_it_has_been_patient() -> None:
    engine = Engine(Scheduler(Sizes(4)))
    engine.add(Lane.INTERACTIVE, 3_000)
    engine.add(Lane.STANDARD, 100)
    engine.add(Lane.BATCH, 100)
    engine.fill()
    begun_at_ms: dict[Lane, list[int]] = {lane: [0] for lane in LANES}
    for _ in range(2_000):
        for given in engine.ends():
            begun_at_ms[given.item.lane].append(engine.now_ms)
    for lane in (Lane.STANDARD, Lane.BATCH):
        gaps = [later - earlier for earlier, later in zip(begun_at_ms[lane], begun_at_ms[lane][1:], strict=False)]
        assert max(gaps) <= POLICIES.of(lane).starves_after_ms + 500
        assert engine.now_ms - begun_at_ms[lane][-1] <= POLICIES.of(lane).starves_after_ms + 500


def test_a_turn_that_comes_to_nothing_is_not_a_lanes_turn() -> None:
    """What it was given for is taken over from a lost worker first, and waits for a slot once more."""
    engine = Engine(Scheduler(Sizes(4)))
    engine.add(Lane.INTERACTIVE, 100)
    engine.fill()
    engine.add(Lane.BATCH, 2)
    starves_after_ms = POLICIES.of(Lane.BATCH).starves_after_ms
    [given] = engine.ends(starves_after_ms)
    assert (given.item.lane, given.why) == (Lane.BATCH, "starving")
    engine.running.remove(given)
    engine.held.add(Lane.BATCH, "acme", -1, on_floor=given.on_floor)
    engine.scheduler.left(Lane.BATCH, given.item.response_id, None)
    engine.scheduler.add(replace(given.item, queued_at_ms=engine.now_ms, queued_before_ms=starves_after_ms), front=True)
    assert [again.item.response_id for again in engine.fill()] == [given.item.response_id]
    assert [next_one.item.lane for next_one in engine.ends()] == [Lane.INTERACTIVE]


def test_who_comes_beside_a_flood_has_a_slot_at_once() -> None:
    engine = Engine(Scheduler(Sizes(64, 3)))
    engine.add(Lane.STANDARD, 500, "flood")
    engine.fill()
    assert engine.held.total == 61
    engine.add(Lane.STANDARD, 1, "small")
    [given] = engine.fill()
    assert (given.item.tenant_id, given.why) == ("small", "headroom")
    engine.add(Lane.STANDARD, 1, "small")
    [again] = engine.fill()
    assert (again.item.tenant_id, again.why) == ("small", "headroom"), "though the flood is next"
    for _ in range(2):
        assert not engine.ends(), "what was kept free is so again before the flood goes on"
    assert [given.item.tenant_id for given in engine.ends()] == ["flood"]
    engine.add(Lane.INTERACTIVE, 1, "urgent")
    assert [given.item.tenant_id for given in engine.fill()] == ["urgent"]


def test_nothing_that_nobody_waits_for_takes_what_is_kept_free() -> None:
    engine = Engine(Scheduler(Sizes(64, 3)))
    engine.add(Lane.BATCH, 100, "one")
    engine.fill()
    engine.add(Lane.BATCH, 1, "another")
    assert not engine.fill()


def test_tenants_that_fill_a_lane_together_share_also_what_is_kept_free() -> None:
    """Whoever holds little is not next for that alone."""
    engine = Engine(Scheduler(Sizes(64, 3)))
    for tenant_id in ("a", "b", "c", "d", "e", "f", "g", "h"):
        engine.add(Lane.STANDARD, 400, tenant_id)
    engine.fill()
    begun = dict.fromkeys("abcdefgh", 0)
    for _ in range(800):
        for given in engine.ends():
            begun[given.item.tenant_id] += 1
    assert max(begun.values()) - min(begun.values()) <= 8
