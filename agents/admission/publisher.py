"""Acknowledged writes to the log, and what it means when there are none."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from streams.log.port import LogError, LogProducer, RecordTooLarge
from streams.log.producer_thread import ProducerThread


class MustEnd(Exception):
    """Nothing can be decided or published here: the process ends; another takes its partitions."""


class PublishFailed(MustEnd):
    """The log did not acknowledge a record. The event must not be acknowledged; the process gives up its partitions."""


class PublishTooLarge(PublishFailed):
    """The log takes no record of this size, here or elsewhere, now or later. Nothing was written."""


class Publisher(Protocol):
    """Acknowledged writes to the log."""

    def publish(self, topic: str, value: bytes, *, key: str, partition: int | None = None) -> Awaitable[int]:
        """The record's offset, once all in-sync replicas have it. Awaiting raises PublishTooLarge, PublishFailed."""

    def note(self, topic: str, value: bytes, *, key: str) -> Awaitable[int]:
        """As `publish`, for what nobody waits to read: it may leave a little later, together with others."""


class LogPublisher:
    """Writes through producers of its own, made by `open` or the first record: there is no event loop before.

    Records of each method go out in the order of the calls, and as many at once as there are calls.
    """

    def __init__(self, new_producer: Callable[[], LogProducer], new_note_producer: Callable[[], LogProducer]) -> None:
        self._records = _Writer(new_producer)
        self._notes = _Writer(new_note_producer)

    async def open(self) -> None:
        """Begins to connect: an idempotent producer needs half a second until its first record may leave."""
        self._records.open()
        self._notes.open()

    async def publish(self, topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        return await self._records.write(topic, value, key, partition)

    async def note(self, topic: str, value: bytes, *, key: str) -> int:
        return await self._notes.write(topic, value, key, None)

    async def close(self, timeout_s: float) -> None:
        """Waits for what is outstanding. Raises PublishFailed when it is not acknowledged in time."""
        outstanding = sum(await asyncio.gather(self._records.close(timeout_s), self._notes.close(timeout_s)))
        if outstanding:
            raise PublishFailed(f"{outstanding} records were not acknowledged in time")


class _Writer:
    """One producer of a `LogPublisher`."""

    def __init__(self, new_producer: Callable[[], LogProducer]) -> None:
        self._new_producer = new_producer
        self._producer: ProducerThread | None = None

    def open(self) -> ProducerThread:
        if self._producer is None:
            self._producer = ProducerThread(self._new_producer())
        return self._producer

    async def write(self, topic: str, value: bytes, key: str, partition: int | None) -> int:
        try:
            return await self.open().send(topic, value, key=key, partition=partition)
        except RecordTooLarge as error:
            raise PublishTooLarge(str(error)) from error
        except LogError as error:
            raise PublishFailed(str(error)) from error

    async def close(self, timeout_s: float) -> int:
        if self._producer is None:
            return 0
        try:
            return await self._producer.close(timeout_s)
        except LogError as error:
            raise PublishFailed(str(error)) from error
