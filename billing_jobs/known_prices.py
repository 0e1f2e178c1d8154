"""The prices that a sink charges by, and when they must be looked up again."""

from collections.abc import Callable

from billing_jobs.pricing import PRICES_SETTLE_MS, PriceBook, PriceRow
from streams.clocks import Instant


class KnownPrices:
    """`load` gives every price appended by now, by whichever member. Raises what it raises; then all stays as it is.
    Used from one thread.
    """

    def __init__(
        self, load: Callable[[], list[PriceRow]], clock_ms: Callable[[], int], monotonic_ms: Callable[[], int]
    ) -> None:
        self._load = load
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._rows: list[PriceRow] = []
        self._read_at: Instant | None = None
        self.book = PriceBook(self._rows)
        """Another object whenever prices are new."""

    def _now(self) -> Instant:
        return Instant(self._clock_ms(), self._monotonic_ms())

    def may_lack(self, accepted_at_ms: int) -> bool:
        """A price of what was accepted then: it may have been appended since they were read."""
        return self._read_at is None or accepted_at_ms >= self._read_at.passed_ms(self._now()) - PRICES_SETTLE_MS

    def read(self) -> bool:
        """Whether any are new."""
        read_at = self._now()
        rows = self._load()
        self._read_at = read_at
        if rows == self._rows:
            return False
        self._rows, self.book = rows, PriceBook(rows)
        return True
