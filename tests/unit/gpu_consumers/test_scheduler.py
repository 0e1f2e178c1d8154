"""The scheduler against a plain list, and the choice of home partitions."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.scheduler import Queued, Scheduler, home_partitions
from schemas.request import LANES, Lane


def item(name: str, lane: Lane, tokens: int = 1, queued_at_ms: int = 0) -> Queued:
    return Queued(name, lane, "acme", tokens, queued_at_ms)


def test_nothing_overtakes_what_does_not_fit() -> None:
    scheduler = Scheduler()
    scheduler.add(item("long", Lane.INTERACTIVE, tokens=100))
    scheduler.add(item("short", Lane.INTERACTIVE, tokens=1))
    assert scheduler.take(10, tokens=50) == []
    assert [queued.response_id for queued in scheduler.take(10, tokens=101)] == ["long", "short"]


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

    @rule(lane=st.sampled_from(LANES), tokens=st.integers(1, 50), front=st.booleans())
    def add(self, lane: Lane, tokens: int, front: bool) -> None:
        self.names += 1
        queued = item(str(self.names), lane, tokens, self.now_ms)
        self.scheduler.add(queued, front=front)
        self.model.insert(0 if front else len(self.model), queued)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="queued"):
            self.scheduler.add(data.draw(st.sampled_from(self.model)))

    @rule(slots=st.integers(-1, 5), tokens=st.none() | st.integers(0, 120))
    def take(self, slots: int, tokens: int | None) -> None:
        expected: list[Queued] = []
        for queued in self.ordered()[: max(slots, 0)]:
            if tokens is not None:
                tokens_left = tokens - sum(taken.tokens for taken in expected)
                if queued.tokens > tokens_left:
                    break
            expected.append(queued)
        assert self.scheduler.take(slots, tokens) == expected
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


@given(st.text(min_size=1, max_size=20), st.integers(1, 16), st.integers(1, 4))
def test_home_partitions_are_stable_and_distinct(worker_id: str, partitions: int, count: int) -> None:
    homes = home_partitions(worker_id, range(partitions), count)
    assert homes == home_partitions(worker_id, range(partitions), count)
    assert len(set(homes)) == min(count, partitions)
    assert set(homes) <= set(range(partitions))


def test_a_new_partition_moves_few_workers_and_load_is_spread() -> None:
    workers = [f"worker-{number}" for number in range(1_000)]
    before = [home_partitions(worker, range(8), 1)[0] for worker in workers]
    after = [home_partitions(worker, range(9), 1)[0] for worker in workers]
    assert sum(old != new for old, new in zip(before, after, strict=True)) < 180
    assert all(80 < before.count(partition) < 180 for partition in range(8))
