"""A circuit breaker: while something fails for everybody, one asks it at a time and nobody else waits in vain. Pure."""

from collections import deque
from typing import Final, Literal

WINDOW_MS: Final = 30_000
"""Within which failures count together."""
LONGEST_FACTOR: Final = 8
"""Of what a breaker is open at first: with each who tries in vain it is open twice as long, up to that."""


class Breaker:
    """*Closed*, all may ask. It opens with so many `failures` in a row, within half a minute, and nobody may; after
    `open_ms` it is *half open*, and one may try, whose success closes it. So does anybody's who had asked before.

    Not thread-safe. `probe_ms`: so long the one who tries is waited for, who may be lost. `of`: it opens with so many
    failures among the last so many that were answered, in the place of those in a row.
    """

    def __init__(self, failures: int, open_ms: int, probe_ms: int, *, of: int | None = None) -> None:
        if of is not None and of < failures:
            raise ValueError(f"{failures} failures of {of}")
        self._failures = failures
        self._are_in_a_row = of is None
        self._failed_at_ms: deque[int | None] = deque(maxlen=of or failures)
        """When those failed that were answered last; None: one succeeded."""
        self._open_ms = open_ms
        self._probe_ms = probe_ms
        self._next_open_ms = open_ms
        self._until_ms: int | None = None
        self._probed_at_ms: int | None = None
        self._succeeded_at_ms = 0

    def state(self, now_ms: int) -> Literal["closed", "open", "half open"]:
        if self._until_ms is None:
            return "closed"
        return "open" if now_ms < self._until_ms else "half open"

    def may_ask(self, now_ms: int) -> bool:
        """Who may does ask, and says how it went."""
        if not self.lets_in(now_ms):
            return False
        if self._until_ms is not None:
            self._probed_at_ms = now_ms
        return True

    def lets_in(self, now_ms: int) -> bool:
        """Whether somebody who asks now may; it changes nothing."""
        if self._until_ms is None:
            return True
        is_tried = self._probed_at_ms is not None and now_ms < self._probed_at_ms + self._probe_ms
        return now_ms >= self._until_ms and not is_tried

    def wait_ms(self, now_ms: int) -> int:
        """Until somebody may ask again; 0 where it is not known."""
        return 0 if self._until_ms is None else max(self._until_ms - now_ms, 0)

    @property
    def is_open(self) -> bool:
        """Also while one tries."""
        return self._until_ms is not None

    @property
    def open_until_ms(self) -> int | None:
        """None: it is closed. Until then nobody may ask, and one at a time from then on."""
        return self._until_ms

    @property
    def answered_lately(self) -> int:
        """Of how many `failed_lately` failed."""
        return len(self._failed_at_ms)

    @property
    def failed_lately(self) -> int:
        """Of those that were answered last before it opened, or until now."""
        return sum(at_ms is not None for at_ms in self._failed_at_ms)

    def succeeded(self, now_ms: int) -> None:
        was_open = self._until_ms is not None
        if was_open:
            self._failed_at_ms.clear()
        self._failed_at_ms.append(None)
        self._until_ms = self._probed_at_ms = None
        self._next_open_ms = self._open_ms
        if was_open or self._are_in_a_row:
            self._succeeded_at_ms = now_ms

    def learnt_nothing(self, asked_at_ms: int) -> None:
        """It ended before it could tell: where it was the one who tries, the next may."""
        if asked_at_ms == self._probed_at_ms:
            self._probed_at_ms = None

    def failed(self, asked_at_ms: int, now_ms: int) -> None:
        """Who asked before the last success says nothing of what is now (with `of`: before it closed); nor does, once
        it is open, who asked before the one who tries.
        """
        if asked_at_ms < self._succeeded_at_ms:
            return
        if self._until_ms is not None:
            if self._probed_at_ms is not None and asked_at_ms >= self._probed_at_ms:
                self._open(now_ms)
            return
        self._failed_at_ms.append(now_ms)
        lately = sum(at_ms is not None and now_ms - at_ms <= WINDOW_MS for at_ms in self._failed_at_ms)
        if lately >= self._failures:
            self._open(now_ms)

    def _open(self, now_ms: int) -> None:
        self._until_ms, self._probed_at_ms = now_ms + self._next_open_ms, None
        self._next_open_ms = min(2 * self._next_open_ms, LONGEST_FACTOR * self._open_ms)
