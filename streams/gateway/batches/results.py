"""Reads the results of lines, once for all batches that this gateway holds, outside of any group."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from streams.gateway.batches.told import Place, unpacked
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition

MAX_RECORDS: Final = 16
"""Each may have 4 MiB."""
POLL_S: Final = 1.0
RETRY_S: Final = 1.0

_log = structlog.get_logger()


class Follower(Protocol):
    """Who is told of the results of one batch. What it is told twice it knows."""

    @property
    def batch_id(self) -> str: ...

    @property
    def positions(self) -> tuple[int, ...]:
        """By partition, below which it needs nothing."""

    async def room(self) -> None:
        """Returns once it has not enough for now, or needs nothing more."""

    def take(self, place: Place, value: bytes) -> None: ...


class Results:
    """`follow` and `leave` at any time; `read` runs beside them."""

    def __init__(self, new_reader: Callable[[], LogConsumer], topic: str) -> None:
        self._new_reader = new_reader
        self._topic = topic
        self._thread: ConsumerThread | None = None
        self._followers: dict[str, Follower] = {}
        self._reached: list[int] = []
        self._has_moved = False
        self._wanted = asyncio.Event()

    async def ends(self) -> list[int]:
        """By partition: what is written from now on stands behind these. Raises LogError."""
        thread = self._open()
        places = sorted(await thread.partitions(self._topic))
        ends = await thread.ends(places)
        return [ends[place] for place in places]

    def follow(self, follower: Follower) -> None:
        """From its positions on, whatever was read for others meanwhile."""
        positions = follower.positions
        if not self._followers:
            self._reached = list(positions)
        size = max(len(self._reached), len(positions))
        known = [*self._reached, *[0] * (size - len(self._reached))]
        wanted = [*positions, *[0] * (size - len(positions))]
        self._reached = [min(pair) for pair in zip(known, wanted, strict=True)]
        self._followers[follower.batch_id] = follower
        self._has_moved = True
        self._wanted.set()

    def leave(self, follower: Follower) -> None:
        """Whoever follows in its stead is told on."""
        if self._followers.get(follower.batch_id) is follower:
            del self._followers[follower.batch_id]

    def reached(self) -> tuple[int, ...]:
        """By partition: all that stands below was told to who follows."""
        return tuple(self._reached)

    async def unread(self) -> dict[int, int]:
        """By partition, where that ends what stands on the log now and was not told yet. Raises LogError."""
        thread = self._open()
        found: dict[int, int] = {}
        for number in range(len(self._reached)):
            first, end = await thread.watermarks(TopicPartition(self._topic, number))
            if max(first, self._reached[number]) < end:
                found[number] = end
        return found

    async def read(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._read_some()
            except LogError as error:
                _log.warning("batch_results_not_read", why=str(error), repeats=True)
                await self._drop_thread()
                await asyncio.sleep(RETRY_S)
            except Exception as error:  # noqa: BLE001 - a batch is no reason to end a gateway
                _log.error("batch_results_not_read", why=type(error).__name__, repeats=True)
                await self._drop_thread()
                await asyncio.sleep(RETRY_S)

    async def _read_some(self) -> None:
        if not self._followers:
            self._wanted.clear()
            if self._thread is not None:
                await self._thread.assign({})
            await self._wanted.wait()
        thread = self._open()
        if self._has_moved:
            self._has_moved = False
            places = {TopicPartition(self._topic, number): offset for number, offset in enumerate(self._reached)}
            await thread.assign(places)
        for record in await thread.poll(POLL_S):
            if self._has_moved:
                return  # It comes again, and what stands before it comes first.
            self._tell(record)
        for follower in [*self._followers.values()]:
            await follower.room()

    def _tell(self, record: LogRecord) -> None:
        self._reached[record.partition] = record.offset + 1
        place = unpacked((record.key or b"").decode(errors="replace"))
        if place is not None and (follower := self._followers.get(place.batch_id)) is not None:
            follower.take(place, record.value or b"")

    def _open(self) -> ConsumerThread:
        if self._thread is None:
            self._thread = ConsumerThread(self._new_reader(), max_records=MAX_RECORDS)
            self._has_moved = True
        return self._thread

    async def _drop_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                await thread.close()
            except Exception as error:  # noqa: BLE001 - it failed before, and another one is opened
                _log.warning("batch_results_reader_failed", why=type(error).__name__, repeats=True)

    async def close(self) -> None:
        await self._drop_thread()
