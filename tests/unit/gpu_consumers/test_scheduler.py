"""The scheduler against a plain list."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.core.scheduler import Queued, Scheduler
from schemas.request import LANES, Lane


class SchedulerMachine(RuleBasedStateMachine):
    """The model is one list in the order in which requests must leave."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.model: list[Queued] = []
        self.names = 0
        self.now_ms = 0

    def ordered(self) -> list[Queued]:
        return sorted(self.model, key=lambda queued: LANES.index(queued.lane))

    @rule(lane=st.sampled_from(LANES), tokens=st.integers(1, 50), front=st.booleans(), choices=st.integers(1, 4))
    def add(self, lane: Lane, tokens: int, front: bool, choices: int) -> None:
        self.names += 1
        queued = Queued(str(self.names), lane, tokens, self.now_ms, choices)
        self.scheduler.add(queued, front=front)
        self.model.insert(0 if front else len(self.model), queued)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="queued"):
            self.scheduler.add(data.draw(st.sampled_from(self.model)))

    @rule(slots=st.integers(-1, 5))
    def take(self, slots: int) -> None:
        expected: list[Queued] = []
        for queued in self.ordered():
            if sum(each.slots for each in expected) < slots:
                expected.append(queued)
        assert self.scheduler.take(slots) == expected
        self.model = [queued for queued in self.model if queued not in expected]

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
    def figures_agree(self) -> None:
        assert len(self.scheduler) == len(self.model)
        assert self.scheduler.queued_tokens == sum(queued.tokens for queued in self.model)
        for lane in LANES:
            in_lane = [queued for queued in self.model if queued.lane is lane]
            assert self.scheduler.waiting()[lane] == len(in_lane)
            oldest_ms = self.now_ms - in_lane[0].queued_at_ms if in_lane else 0
            assert self.scheduler.oldest_waiting_ms(self.now_ms)[lane] == oldest_ms


TestSchedulerMachine = SchedulerMachine.TestCase
