"""Reads single records of the log again: what a response was admitted from."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from schemas.generated import Source
from streams.log.port import LogConsumer, LogError, TopicPartition
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
        try:
            return _value_at(self._consumer, source)
        except LogError:
            # It may never get well again: the next one to ask has a new one.
            broken, self._consumer = self._consumer, None
            broken.close()
            raise

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._consumer is not None:
            self._consumer.close()


def _value_at(consumer: LogConsumer, source: Source) -> bytes | None:
    place = TopicPartition(source.topic, source.partition)
    [kept] = kept_offsets(consumer, [place]).values()
    if source.offset not in kept:
        return None
    wanted = {place: range(source.offset, source.offset + 1)}
    records = read_offsets(consumer, wanted, time.monotonic() + READ_TIMEOUT_S)
    return next((record.value for record in list(records)), None)
