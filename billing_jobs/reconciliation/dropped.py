"""Months whose usage events left the tables, by the operator's word: the log still has them, and rightly so. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from schemas.month import Month
from streams.clocks import DAY_MS

LOGGED_WITHIN_MS = 31 * DAY_MS
"""So long after its month usage may have been logged, where something was down; not for ever, or nothing could be read
again that was logged before the last drop."""
BROKERS_APART_MS = 300_000
"""The clocks of brokers, each of which times what it appends: a leader that takes over may be behind the one before."""


class DroppedMonth(NamedTuple):
    month: Month
    dropped_at_ms: int

    def has(self, accepted_at_ms: int, logged_at_ms: int) -> bool:
        """What came later of the month is in the tables as ever."""
        return self.month.start_ms <= accepted_at_ms < self.month.end_ms and logged_at_ms < self.dropped_at_ms


Dropped = tuple[DroppedMonth, ...]


def dropped_with(dropped: Dropped, accepted_at_ms: int, logged_at_ms: int) -> DroppedMonth | None:
    """The month with which an event left the tables."""
    return next((each for each in dropped if each.has(accepted_at_ms, logged_at_ms)), None)


def brought_back(dropped: Dropped, from_offset: int, offset_at: Callable[[int], int]) -> list[Month]:
    """Whose events may come into the tables again if a partition is read again from there: kept sums have them already.
    `offset_at`: of the partition, the first offset that was written then or later.
    """
    return [
        month
        for month, dropped_at_ms in dropped
        if from_offset < offset_at(min(dropped_at_ms, month.end_ms + LOGGED_WITHIN_MS) + BROKERS_APART_MS)
    ]


def told_of(counts: Iterable[Counter[DroppedMonth]]) -> list[str]:
    """How many events are not compared for it, a line for each month."""
    events: Counter[DroppedMonth] = Counter()
    for each in counts:
        events.update(each)
    return [
        f"usage: {month} was dropped on {datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M} UTC:"
        f" {number} events of the log are not compared"
        for (month, at_ms), number in sorted(events.items())
    ]
