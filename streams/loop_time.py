"""A bound in time for what others answer, which a loop that is late itself does not use up."""

import asyncio
from types import TracebackType

SLICES = 4
"""What a loop may be late for once uses up one of them at most; where it is late all the time, so many of its turns are
waited for.
"""


class Within:
    """As `asyncio.timeout`, for one block; None: no bound. Raises TimeoutError.

    `asyncio.timeout` says no to an answer that is there already if the loop comes to look after the time is up. Here
    the time runs in slices, and each of them begins when the loop has come to look at the end of the one before: what
    came meanwhile is read first. A loop that is on time waits neither more nor less.
    """

    __slots__ = ("_bound", "_left", "_slice_s", "_timer")

    def __init__(self, timeout_s: float | None) -> None:
        self._bound = asyncio.timeout(None)
        self._slice_s = None if timeout_s is None else timeout_s / SLICES
        self._left = SLICES
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._bound.__aenter__()
        if self._slice_s is not None:
            self._begin_slice(self._slice_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._bound.__aexit__(kind, error, trace)

    def _begin_slice(self, slice_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._left -= 1
        if self._left:
            self._timer = loop.call_later(slice_s, self._begin_slice, slice_s)
        else:
            self._bound.reschedule(loop.time() + slice_s)
