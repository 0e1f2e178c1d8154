"""What a commit says of the offsets above it, and what the next owner makes of that."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpu_consumers.core.finished_offsets import decode, encode
from gpu_consumers.core.lanes import Lanes
from schemas.request import Lane
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import MAX_METADATA_BYTES, Committed, LogRecord, TopicPartition
from tests.unit.gpu_consumers.test_lane_bounds import CONFIG


@given(st.integers(0, 2**40), st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 100_000)), max_size=50))
def test_what_is_told_is_what_is_heard(committed: int, gaps: list[tuple[int, int]]) -> None:
    ranges, offset = [], committed
    for open_length, ended_length in gaps:
        ranges.append(range(offset + open_length, offset + open_length + ended_length))
        offset = ranges[-1].stop
    text, untold = encode(committed, ranges)
    assert (decode(committed, text), untold) == (ranges, 0)


@pytest.mark.parametrize("every", [2, 3, 7])
def test_what_has_no_room_is_left_out_at_the_far_end(every: int) -> None:
    chance = [range(at * every + at % 5 * at % 3, at * every + at % 5 * at % 3 + 1) for at in range(1, 60_000)]
    ranges = [each for before, each in itertools.pairwise(chance) if each.start > before.stop]
    text, untold = encode(0, ranges)
    assert len(text.encode()) <= MAX_METADATA_BYTES
    told = decode(0, text)
    assert told == ranges[: len(told)]
    assert untold == sum(map(len, ranges[len(told) :]))


def test_one_long_answer_with_everything_ended_behind_it_takes_a_few_bytes() -> None:
    text, untold = encode(10, [range(11, 500_000)])
    assert (len(text) < 32, untold) == (True, 0)


@pytest.mark.parametrize("text", ["", "0abc", "1", "1!", "1\x00", '{"a": 1}', "1" + "~" * 50])
def test_a_text_of_another_form_says_nothing(text: str) -> None:
    assert decode(5, text) == []


SOURCE = TopicPartition(CONFIG.topics.lane("pool", Lane.STANDARD).name, 0)


class Owners(RuleBasedStateMachine):
    """A partition whose owners read, end, commit and are lost in any order; with gaps, as transactions leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        self.ended: set[int] = set()
        self.commit = Committed(None)
        self._own()

    def _own(self) -> None:
        self.lanes = Lanes(CONFIG)
        self.lanes.assign({SOURCE: self.commit})
        self.open: dict[int, OffsetTracker] = {}
        self.position = self.commit.offset or 0
        self.given: set[int] = set()

    @rule(gap=st.integers(0, 2))
    def a_record_is_written(self, gap: int) -> None:
        self.log.append((self.log[-1] + 1 if self.log else 0) + gap)

    @rule(count=st.integers(1, 8))
    def some_are_read(self, count: int) -> None:
        for offset in [each for each in self.log if each >= self.position][:count]:
            self.position = offset + 1
            tracker = self.lanes.read(LogRecord(SOURCE.topic, 0, offset, None, b"x", (), 0))
            if tracker is None:
                assert offset in self.ended, "what has not ended is never passed over"
            else:
                self.open[offset] = tracker
                self.given.add(offset)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def one_ends(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.open)))
        self.open.pop(offset).finished(offset)
        self.ended.add(offset)

    @rule()
    def what_may_be_is_committed(self) -> None:
        for commit in self.lanes.to_commit().values():
            self.commit = commit
            self.lanes.committed({SOURCE: commit})
        assert self.lanes.to_commit() == {}

    @rule(cleanly=st.booleans())
    def it_is_lost(self, cleanly: bool) -> None:
        _, commits = self.lanes.revoke([SOURCE])
        if cleanly and commits:
            self.commit = commits[SOURCE]
        told = {offset for ended in decode(self.commit.offset or 0, self.commit.metadata) for offset in ended}
        self._own()
        self.some_are_read(1_000)
        assert not self.given & told, "nobody looks again at what a commit says has ended"
        self._own()

    @invariant()
    def no_commit_says_what_is_not_so(self) -> None:
        if self.commit.offset is not None:
            below = [offset for offset in self.log if offset < self.commit.offset]
            above = [offset for ended in decode(self.commit.offset, self.commit.metadata) for offset in ended]
            assert set(below) | (set(above) & set(self.log)) <= self.ended


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=80, stateful_step_count=40)
