"""The scheduler against a plain list, and against an engine whose answers end one by one."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.core.scheduler import Queued, Scheduler
from schemas.request import LANES, Lane

SLOTS = 4
MAX_CHOICES = 9
TENANTS = ("acme", "beta")


class SchedulerMachine(RuleBasedStateMachine):
    """The model is one list in the order in which requests must leave, and the lane of each answer in the engine."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.model: list[Queued] = []
        self.in_engine: list[Lane] = []
        self.names = 0
        self.now_ms = 0

    def held(self) -> dict[Lane, int]:
        return {lane: self.in_engine.count(lane) for lane in LANES}

    def held_from(self, lane: Lane) -> int:
        """By it and those above it."""
        return sum(LANES.index(each) <= LANES.index(lane) for each in self.in_engine)

    @rule(
        lane=st.sampled_from(LANES), tokens=st.integers(1, 50), front=st.booleans(),
        choices=st.integers(1, MAX_CHOICES), tenant_id=st.sampled_from(TENANTS),
    )  # fmt: skip
    def add(self, lane: Lane, tokens: int, front: bool, choices: int, tenant_id: str) -> None:
        self.names += 1
        queued = Queued(str(self.names), lane, tokens, self.now_ms, choices, tenant_id)
        self.scheduler.add(queued, front=front)
        self.model.insert(0 if front else len(self.model), queued)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="queued"):
            self.scheduler.add(data.draw(st.sampled_from(self.model)))

    @rule()
    def take(self) -> None:
        taken = self.scheduler.take(SLOTS, self.held())
        assert taken == sorted(taken, key=lambda queued: LANES.index(queued.lane)), "the highest first"
        for queued in taken:
            assert queued == next(each for each in self.model if each.lane is queued.lane), "in the order of its lane"
            assert self.held_from(queued.lane) < SLOTS, "nobody enters where there is no slot"
            self.model.remove(queued)
            self.in_engine += [queued.lane] * queued.slots
        for queued in self.model:
            assert self.held_from(queued.lane) >= SLOTS, "nobody waits for what a lower lane holds"

    @precondition(lambda self: self.in_engine)
    @rule(data=st.data())
    def an_answer_ends(self, data: st.DataObject) -> None:
        self.in_engine.remove(data.draw(st.sampled_from(self.in_engine)))

    @rule(which=st.integers(0, 60))
    def remove(self, which: int) -> None:
        name = str(which)
        expected = next((queued for queued in self.model if queued.response_id == name), None)
        assert self.scheduler.remove(name) == expected
        if expected is not None:
            self.model.remove(expected)

    @rule(passed_ms=st.integers(0, 150))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @invariant()
    def the_engine_holds_no_more_of_a_lane_than_its_slots_and_one_request_over(self) -> None:
        assert max(self.held().values()) < SLOTS + MAX_CHOICES

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
            oldest_ms = self.now_ms - in_lane[0].queued_at_ms if in_lane else 0
            assert self.scheduler.oldest_waiting_ms(self.now_ms)[lane] == oldest_ms


TestSchedulerMachine = SchedulerMachine.TestCase
