"""Long prompts are tokenised beside the event loop, their tenants by turns, and not many of them wait.

Quota counts tokens, so tokenising comes before it, and it takes as long as a client's text is long. So a tenant that
sends more than can be tokenised gets its share of the threads, and no more than its share of what is in work; what is
beyond that is refused at once, and whatever others send passes.
"""

import asyncio
import os
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agents.admission.in_order import MAX_BYTES_IN_WORK
from agents.admission.places import Place, Places, Taken
from agents.admission.turns import FairOrder

LONG_CHARS = 4_000
"""From here on tokenising takes longer than the rest of admission."""

T = TypeVar("T")


class LongPrompts:
    """Of one admission worker, in one event loop. One thread fewer than there are processors."""

    def __init__(
        self, in_flight: int = 256, bytes_in_work: int = MAX_BYTES_IN_WORK, threads: int | None = None
    ) -> None:
        self._places = Places(
            Taken(in_flight // 2, bytes_in_work // 4), Taken(in_flight * 3 // 4, bytes_in_work // 2), stay_ms=0
        )
        self._free = threads or max(len(os.sched_getaffinity(0)) - 1, 1)
        self._threads = ThreadPoolExecutor(self._free, "long-prompts")
        self._waiting: FairOrder[asyncio.Future[None]] = FairOrder()

    def place(self, holder: Hashable, size_bytes: int) -> Place | None:
        """To be left when it is done with; None: the holder has all of its own, or all are taken."""
        return self._places.take("", holder, size_bytes, 0)

    async def in_turn(self, holder: Hashable, weight: float, work: Callable[[], T]) -> T:
        """What `work` gives, in a thread, when it is the holder's turn; holders share the threads by weight."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.put(holder, weight, turn)
        self._give()
        try:
            await turn
            return await loop.run_in_executor(self._threads, work)
        finally:
            if turn.done() and not turn.cancelled():
                self._free += 1
            self._give()

    def _give(self) -> None:
        while self._free and self._waiting:
            _, turn = self._waiting.take()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
