"""Which hours of usage may be read from their rollup, and which from the events. No I/O and no clock.

A rollup is never added to. Whoever writes usage *opens* the hours that it writes to, before the first row, and *closes*
them some minutes after the last one; an hour that is open, or was closed since it was last rolled, is read from the
events. The roller takes an hour that nobody has open, sums it anew from the events (`FINAL`: late, repriced and
repeated ones count once) and stores, in one insert, the sums and which closings they cover. So each view is exact at
every moment, and nothing depends on when a rollup is made, or whether.

Marks are numbered by their writer: an odd step opens, an even one closes, and each is greater than those before it. An
hour is *settled* when of every writer the last step is covered. What a crash leaves:

| killed after | then |
|---|---|
| hours opened, nothing written | they are read from the events; the next writer's marks come beside; see lost |
| rows written, not closed | the same: the cut is inserted again under its token, under marks of who recovers it |
| hours closed | they are rolled by whoever rolls |
| the roller has summed, not stored | nothing has happened |
| the roller has stored | the hour is settled: sums and what they cover are one insert |

*Lost*: a writer opens anew what it has had open for `SPAN_MS`, so a mark that stays open for `LOST_MS` is of one that
died, and is taken for a closing. Should it live after all, and write, its next mark unsettles the hour again.

Two rollers, or one that was stopped in the middle and goes on: of two rollups of an hour the one that covers more
counts. Both looked at the marks before they looked at the events, and marks only grow, so it knows all that the other
knows. Where they cover the same, either is right, or the hour is not settled.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from streams.clocks import HOUR_MS

SPAN_MS = 300_000
"""How long a writer may go on writing to an hour that it has opened once."""
LOST_MS = 3_600_000
"""Much longer than `SPAN_MS` and any insert: see above."""
NONCE_BITS = 24
"""Of a generation: tells rollups apart that cover the same."""


def hours_of(at_ms: Iterable[int]) -> set[int]:
    """The starts of all: of every row that is inserted, so without a call for each."""
    return {each - each % HOUR_MS for each in at_ms}


@dataclass(frozen=True, slots=True)
class Mark:
    """`hour_ms` is its start. Whoever reads it knows by `step` that the hour was opened (odd) or closed (even)."""

    hour_ms: int
    step: int


class OpenHours:
    """What one writer has open. A mark counts once it is stored: give it back to `stored` then."""

    def __init__(self) -> None:
        self._last_step = 0
        self._opened_at_ms: dict[int, int] = {}

    def opening(self, hours_ms: Iterable[int], now_ms: int) -> list[Mark]:
        """To be stored before anything is written to these hours; none where all of them are open."""
        missing = [hour_ms for hour_ms in sorted(set(hours_ms)) if not self._is_fresh(hour_ms, now_ms)]
        return self._marks(missing, odd=True)

    def closing(self, now_ms: int, *, all_of_them: bool = False) -> list[Mark]:
        """To be stored when nothing is being written."""
        due = [hour_ms for hour_ms in sorted(self._opened_at_ms) if all_of_them or not self._is_fresh(hour_ms, now_ms)]
        return self._marks(due, odd=False)

    def stored(self, marks: Iterable[Mark], asked_at_ms: int) -> None:
        """`asked_at_ms`: when they were asked for, which is before anybody could read them."""
        for mark in marks:
            if mark.step % 2:
                self._opened_at_ms[mark.hour_ms] = asked_at_ms
            else:
                self._opened_at_ms.pop(mark.hour_ms, None)

    def _is_fresh(self, hour_ms: int, now_ms: int) -> bool:
        opened_at_ms = self._opened_at_ms.get(hour_ms)
        return opened_at_ms is not None and now_ms - opened_at_ms < SPAN_MS

    def _marks(self, hours_ms: Sequence[int], *, odd: bool) -> list[Mark]:
        if not hours_ms:
            return []
        self._last_step += 1 if self._last_step % 2 != odd else 2
        return [Mark(hour_ms, self._last_step) for hour_ms in hours_ms]


@dataclass(frozen=True, slots=True)
class WriterSeen:
    """What the tables say of one writer and one hour. `marked_ms_ago` is the age of its last mark; `covered`: the step
    up to which a rollup covers it, 0: none does."""

    hour_ms: int
    writer: str
    step: int
    marked_ms_ago: int
    covered: int

    @property
    def is_settled(self) -> bool:
        return self.covered >= self.step

    @property
    def is_writing(self) -> bool:
        return self.step % 2 == 1 and self.marked_ms_ago < LOST_MS


@dataclass(frozen=True, slots=True)
class Rollup:
    """An hour to be summed, and of each writer the step that the sums will cover. Of two rollups of an hour the greater
    `generation` counts."""

    hour_ms: int
    steps: dict[str, int]
    generation: int


class LooksInVain:
    """Months that were not found dropped are looked at again after `first_s`, then twice as long each time, up to
    `longest_s`. Pure.
    """

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._waits: dict[int, tuple[float, float]] = {}
        """How long, and until when."""

    def due(self, months: Iterable[int], now_s: float) -> list[int]:
        """Of those that wait to be dropped. Others are forgotten."""
        self._waits = {month: self._waits[month] for month in months if month in self._waits}
        return [month for month in months if month not in self._waits or self._waits[month][1] <= now_s]

    def stayed(self, month: int, now_s: float) -> None:
        last_s, _ = self._waits.get(month, (0.0, 0.0))
        wait_s = min(self._longest_s, 2 * last_s) if last_s else self._first_s
        self._waits[month] = wait_s, now_s + wait_s


def next_rollup(seen: Iterable[WriterSeen], now_ms: int, nonce: Callable[[], int]) -> Rollup | None:
    """Of what was read of the marks just now: the newest hour that is over, that nobody writes to and that is not
    settled. `nonce` gives a number below `2 ** NONCE_BITS` that others will hardly have.
    """
    hours: dict[int, list[WriterSeen]] = {}
    for each in seen:
        hours.setdefault(each.hour_ms, []).append(each)
    for hour_ms in sorted(hours, reverse=True):
        writers = hours[hour_ms]
        if hour_ms + HOUR_MS > now_ms or any(each.is_writing for each in writers):
            continue
        if not all(each.is_settled for each in writers):
            steps = {each.writer: each.step for each in writers}
            return Rollup(hour_ms, steps, (sum(steps.values()) << NONCE_BITS) | nonce())
    return None
