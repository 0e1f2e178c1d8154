"""How long a gateway waits for what it may soon know.

A client may come back before the first record of its response, before a restarted gateway owns its partition again, or
before that gateway has read again what the client saw.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from streams.clocks import monotonic_ms, now_ms
from streams.ids import parse_response_id

YOUNG_MS = 60_000
LOOK_EVERY_S = 0.05
LOOK_SOON_S = 0.002
WAITING_OF_TENANT = 1_000
"""At once: each is looked at with every look. What is beyond is told to come again at once."""


class _Awaited(NamedTuple):
    is_so: Callable[[], bool]
    deadline_ms: int


class Patience:
    """One deadline for everything that a client's one question waits for: `patience_ms` after `begin`.

    One look serves all that wait: a task that wakes costs many times what it looks at.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._waiting: dict[asyncio.Future[bool], _Awaited] = {}
        self._of_tenant: Counter[str] = Counter()
        self._next_look: asyncio.TimerHandle | None = None
        self._looks_soon = False
        self.stopping = False

    def begin(self) -> int:
        """The deadline of a question that is asked now."""
        return monotonic_ms() + self._patience_ms

    async def until(self, tenant_id: str, is_so: Callable[[], bool], deadline_ms: int) -> bool:
        """Whether it is so in time; not when the gateway stops before, nor when so many of the tenant's wait already.

        Raises what `is_so` raises.
        """
        if self.stopping or monotonic_ms() >= deadline_ms:
            return False
        if is_so():
            return True
        if self._of_tenant[tenant_id] >= WAITING_OF_TENANT:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = _Awaited(is_so, deadline_ms)
        self._of_tenant[tenant_id] += 1
        if self._next_look is None:
            self._next_look = loop.call_later(LOOK_EVERY_S, self._look, loop)
        try:
            return await waiter
        finally:
            del self._waiting[waiter]
            self._of_tenant[tenant_id] -= 1
            if not self._of_tenant[tenant_id]:
                del self._of_tenant[tenant_id]

    def look_soon(self) -> None:
        """Something has come that somebody may wait for."""
        if self._next_look is not None and not self._looks_soon:
            self._next_look.cancel()
            self._looks_soon = True
            loop = asyncio.get_running_loop()
            self._next_look = loop.call_later(LOOK_SOON_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks_soon = False
        looked_at_ms = monotonic_ms()
        for waiter, awaited in self._waiting.items():
            if waiter.done():
                continue  # Its task has not run since.
            if self.stopping or looked_at_ms >= awaited.deadline_ms:
                waiter.set_result(False)
                continue
            try:
                if awaited.is_so():
                    waiter.set_result(True)
            except Exception as error:  # noqa: BLE001 - whoever asked has it
                waiter.set_exception(error)
        self._next_look = loop.call_later(LOOK_EVERY_S, self._look, loop) if self._waiting else None


def is_young(response_id: str) -> bool:
    """Whether its first record may still be on its way. Never of an id that was derived: it holds no time."""
    minted_at_ms = parse_response_id(response_id).minted_at_ms
    return minted_at_ms is not None and now_ms() - minted_at_ms <= YOUNG_MS
