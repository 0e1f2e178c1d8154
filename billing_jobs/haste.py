"""How long a small batch waits before it is cut. Pure: time is a parameter."""

from math import ceil

SHARE = 0.05
"""Of the time, what inserts of small batches may take in the long run."""
BURST_MS = 1_000
"""What they may take at once after a quiet time: some dozens of them."""
ROW_MS = 0.01
"""Of an insert, what each row takes in a batch of any size: waiting for others makes that no less."""


class Haste:
    """An analyst who looks right after an answer wants to see it; every batch costs four inserts, however small it is.

    So a batch is cut after `quick_wait_ms` while inserts have taken little of the time, and else as soon as what they
    took beyond that is made up for, after `max_wait_ms` at most.
    """

    def __init__(self, quick_wait_ms: int, max_wait_ms: int) -> None:
        self.max_wait_ms = max_wait_ms
        self._quick_wait_ms = min(quick_wait_ms, max_wait_ms)
        self._left_ms = float(BURST_MS)
        self._as_of_ms: int | None = None

    def wait_ms(self, now_ms: int) -> int:
        """How long a record that is read now waits for others."""
        self._refill(now_ms)
        return min(max(self._quick_wait_ms, ceil(-self._left_ms / SHARE)), self.max_wait_ms)

    def inserted(self, took_ms: int, rows: int, now_ms: int) -> None:
        """A batch was inserted. One that took very long is not held against those of an hour later."""
        self._refill(now_ms)
        self._left_ms = max(self._left_ms - max(0.0, took_ms - rows * ROW_MS), -BURST_MS)

    def _refill(self, now_ms: int) -> None:
        passed_ms = 0 if self._as_of_ms is None else max(0, now_ms - self._as_of_ms)
        self._as_of_ms = now_ms
        self._left_ms = min(self._left_ms + passed_ms * SHARE, BURST_MS)
