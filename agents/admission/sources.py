"""Reads single records of the log again: what a response was admitted from."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from schemas.generated import Source
from streams.log.port import LogConsumer, TopicPartition
from streams.log.reading import kept_offsets, read_offsets

READ_TIMEOUT_S = 5.0


class SourceReader:
    """One reader outside of any group, and a thread of its own, made when they are first asked. One read at a time."""

    def __init__(self, new_consumer: Callable[[], LogConsumer]) -> None:
        self._new_consumer = new_consumer
        self._consumer: LogConsumer | None = None
        self._thread = ThreadPoolExecutor(1, "sources")

    async def read(self, source: Source) -> bytes | None:
        """The record's value; None where it is gone. Raises LogError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, source)

    def _read(self, source: Source) -> bytes | None:
        if self._consumer is None:
            self._consumer = self._new_consumer()
        place = TopicPartition(source.topic, source.partition)
        [kept] = kept_offsets(self._consumer, [place]).values()
        if source.offset not in kept:
            return None
        wanted = {place: range(source.offset, source.offset + 1)}
        records = read_offsets(self._consumer, wanted, time.monotonic() + READ_TIMEOUT_S)
        return next((record.value for record in list(records)), None)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._consumer is not None:
            self._consumer.close()
