"""The tracker against a model that remembers everything."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streams.log.offset_tracker import OffsetTracker


class Tracking(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.open: dict[int, int] = {}
        self.seen: list[int] = []
        self.acknowledged: int | None = None

    @rule(gap=st.integers(0, 3), size_bytes=st.integers(0, 1_000))
    def a_record_starts(self, gap: int, size_bytes: int) -> None:
        """Offsets have gaps: markers and compaction leave some."""
        offset = (self.seen[-1] + 1 if self.seen else 0) + gap
        self.tracker.started(offset, size_bytes)
        self.open[offset] = size_bytes
        self.seen.append(offset)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def any_open_record_finishes(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.open)))
        self.tracker.finished(offset)
        del self.open[offset]

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def what_was_seen_cannot_start_again(self, data: st.DataObject) -> None:
        with pytest.raises(ValueError, match="is below"):
            self.tracker.started(data.draw(st.integers(0, self.seen[-1])))

    @rule(offset=st.integers(0, 500))
    def what_is_not_open_cannot_finish(self, offset: int) -> None:
        if offset not in self.open:
            with pytest.raises(KeyError):
                self.tracker.finished(offset)

    @rule()
    def a_commit_is_acknowledged(self) -> None:
        offset = self.tracker.to_commit()
        if offset is not None:
            self.tracker.committed(offset)
            assert self.acknowledged is None or offset > self.acknowledged
            self.acknowledged = offset
        assert self.tracker.to_commit() is None

    @precondition(lambda self: self.acknowledged)
    @rule()
    def a_commit_never_goes_back(self) -> None:
        assert self.acknowledged is not None
        with pytest.raises(ValueError, match="is below"):
            self.tracker.committed(self.acknowledged - 1)

    @invariant()
    def a_restart_at_the_watermark_repeats_all_open_work_and_no_more_than_it_must(self) -> None:
        mark = self.tracker.watermark
        if not self.seen:
            assert mark is None
        elif self.open:
            assert mark == min(self.open)
        else:
            assert mark == self.seen[-1] + 1
        assert self.acknowledged is None or all(offset >= self.acknowledged for offset in self.open)

    @invariant()
    def what_is_open_is_counted(self) -> None:
        assert self.tracker.open_count == len(self.open)
        assert self.tracker.open_bytes == sum(self.open.values())

    @invariant()
    def what_a_restart_would_repeat_is_counted(self) -> None:
        first = min(self.open, default=None)
        assert self.tracker.uncommitted_count == (0 if first is None else self.seen[-1] + 1 - first)


TestTracking = Tracking.TestCase
