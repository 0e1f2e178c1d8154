"""What tenants are charged, as far as a gateway has read the price list: read only while somebody asks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from streams.clocks import monotonic_ms
from streams.log.port import LogConsumer, LogError
from streams.price_list import PriceList, PriceReader
from streams.pricing import PriceBook

READ_EVERY_MS: Final = 5_000
WAIT_S: Final = 2.0
"""For a read: the first one takes in all that there is."""

_log = structlog.get_logger()


class KnownPrices:
    """Asked on the event loop; it reads in a thread of its own."""

    def __init__(self, new_consumer: Callable[[], LogConsumer], topic: str) -> None:
        self._list = PriceList()
        # What is no price is told by those who decide by it, admission and settlement.
        self._reader = PriceReader(new_consumer, topic, self._list, lambda *_: None)
        self._thread = ThreadPoolExecutor(1, "prices")
        self._reading: asyncio.Future[None] | None = None
        self._begun_ms: int | None = None

    async def book(self) -> PriceBook | None:
        """Of some seconds ago at most, while the log answers; None: nothing was read yet."""
        now = monotonic_ms()
        is_idle = self._reading is None or self._reading.done()
        if is_idle and (self._begun_ms is None or now - self._begun_ms >= READ_EVERY_MS):
            self._begun_ms = now
            self._reading = asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=WAIT_S)
        return self._list.book if self._list.are_read else None

    async def close(self) -> None:
        self._thread.submit(self._reader.close)
        await asyncio.to_thread(self._thread.shutdown)

    def _read(self) -> None:
        try:
            self._reader.read_on()
        except LogError as error:
            _log.warning("prices_not_read", why=str(error), repeats=True)
