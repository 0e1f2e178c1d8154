"""The prices that a sink charges by, and when they must be looked up again."""

from collections.abc import Callable

from billing_jobs.pricing import PRICES_SETTLE_MS, PriceBook, PriceRow


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
        self._read_at_ms: int | None = None
        """By the monotonic clock."""
        self._read_by_clock_ms = 0
        self.book = PriceBook(self._rows)
        """Another object whenever prices are new."""

    def may_lack(self, accepted_at_ms: int) -> bool:
        """A price of what was accepted then: it may have been appended since they were read."""
        if self._read_at_ms is None:
            return True
        # By the clock as it is set now; a machine that was stopped has counted less than passed.
        ago_ms = self._monotonic_ms() - self._read_at_ms
        last_read_at_ms = min(self._clock_ms() - ago_ms, self._read_by_clock_ms)
        return accepted_at_ms >= last_read_at_ms - PRICES_SETTLE_MS

    def read(self) -> bool:
        """Whether any are new."""
        read_at_ms, by_clock_ms = self._monotonic_ms(), self._clock_ms()
        rows = self._load()
        self._read_at_ms, self._read_by_clock_ms = read_at_ms, by_clock_ms
        if rows == self._rows:
            return False
        self._rows, self.book = rows, PriceBook(rows)
        return True
