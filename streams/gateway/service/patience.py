"""How long a gateway waits for what it may soon know.

A client may come back before the first record of its response, before a restarted gateway owns its partition again, or
before that gateway has read again what the client saw.
"""

import asyncio
from collections.abc import Callable

from streams.clocks import monotonic_ms, now_ms
from streams.ids import parse_response_id

YOUNG_MS = 60_000
LOOK_EVERY_S = 0.05


class Patience:
    """One deadline for everything that a client's one question waits for: `patience_ms` after `begin`."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self.stopping = False

    def begin(self) -> int:
        """The deadline of a question that is asked now."""
        return monotonic_ms() + self._patience_ms

    async def until(self, is_so: Callable[[], bool], deadline_ms: int) -> bool:
        """Whether it is so in time; not when the gateway stops before."""
        while not self.stopping and monotonic_ms() < deadline_ms:
            if is_so():
                return True
            await asyncio.sleep(LOOK_EVERY_S)
        return False


def is_young(response_id: str) -> bool:
    """Whether its first record may still be on its way. Never of an id that was derived: it holds no time."""
    minted_at_ms = parse_response_id(response_id).minted_at_ms
    return minted_at_ms is not None and now_ms() - minted_at_ms <= YOUNG_MS
