"""Months whose usage events left the tables, by the operator's word: the log still has them, and rightly so. Pure."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from schemas.month import Month


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
