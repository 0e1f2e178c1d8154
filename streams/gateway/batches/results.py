"""Reads the results of lines, once for all batches that this gateway holds, outside of any group."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from streams.clocks import monotonic_ms
from streams.gateway.batches.told import Place, unpacked
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition

MAX_RECORDS: Final = 16
"""Each may have 4 MiB."""
POLL_S: Final = 1.0
RETRY_S: Final = 1.0
ROUND_LOOK_EVERY_MS: Final = 60_000
"""At a round that somebody waits for: the log may have let go of what it is to end with."""

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

    def __init__(
        self, new_reader: Callable[[], LogConsumer], topic: str, clock_ms: Callable[[], int] = monotonic_ms
    ) -> None:
        self._new_reader = new_reader
        self._topic = topic
        self._clock_ms = clock_ms
        self._thread: ConsumerThread | None = None
        self._followers: dict[str, Follower] = {}
        self._latecomers: dict[str, Follower] = {}
        """Reading has not gone back for them yet."""
        self._rounds_ends: dict[int, int] = {}
        """By partition, where the log ended when reading went back last. What is read by then ends a round."""
        self._round_looked_at_ms = 0
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
        """From its positions on, whatever was read for others meanwhile.

        Reading goes back for it once it is where the log ended when it went back last: where batches take turns they
        come one by one, each from far behind, and it would never get to what is new.
        """
        self._followers.pop(follower.batch_id, None)
        self._latecomers[follower.batch_id] = follower
        if not self._followers:
            self._go_back()
        self._wanted.set()

    def _go_back(self) -> None:
        """To where the latecomers are told from."""
        for follower in self._latecomers.values():
            positions = follower.positions
            if not self._followers:
                self._reached = list(positions)
            size = max(len(self._reached), len(positions))
            known = [*self._reached, *[0] * (size - len(self._reached))]
            wanted = [*positions, *[0] * (size - len(positions))]
            self._reached = [min(pair) for pair in zip(known, wanted, strict=True)]
            self._followers[follower.batch_id] = follower
        self._latecomers.clear()
        self._rounds_ends = {}
        self._has_moved = True

    def leave(self, follower: Follower) -> None:
        """Whoever follows in its stead is told on."""
        for known in (self._followers, self._latecomers):
            if known.get(follower.batch_id) is follower:
                del known[follower.batch_id]

    def reached(self, follower: Follower) -> tuple[int, ...]:
        """By partition: all that stands below was told to it."""
        is_late = self._latecomers.get(follower.batch_id) is follower
        return follower.positions if is_late else tuple(self._reached)

    async def unread(self, follower: Follower) -> dict[int, int]:
        """By partition, where that ends what stands on the log now and was not told to it yet. Raises LogError."""
        return await self._above(self._open(), self.reached(follower))

    async def _above(self, thread: ConsumerThread, positions: Sequence[int]) -> dict[int, int]:
        """Where those partitions end that have something there. Raises LogError."""
        found: dict[int, int] = {}
        for number, at in enumerate(positions):
            first, end = await thread.watermarks(TopicPartition(self._topic, number))
            if max(first, at) < end:
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
        is_round_over = all(self._reached[number] >= end for number, end in self._rounds_ends.items())
        if self._latecomers and (is_round_over or not self._followers):
            self._go_back()
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
            await self._begin_round(thread)
        elif self._latecomers and self._clock_ms() - self._round_looked_at_ms >= ROUND_LOOK_EVERY_MS:
            await self._shorten_round(thread)
        records = await thread.poll(POLL_S)
        if not records:
            self._rounds_ends = {}  # Nothing more is there: the log has let go of it.
        for record in records:
            if self._has_moved:
                return  # It comes again, and what stands before it comes first.
            self._tell(record)
        for follower in [*self._followers.values()]:
            await follower.room()

    async def _begin_round(self, thread: ConsumerThread) -> None:
        self._round_looked_at_ms = self._clock_ms()
        ends = await self._above(thread, self._reached)
        # Where reading went back meanwhile they are those of other places, maybe of more partitions.
        self._rounds_ends = {} if self._has_moved else ends

    async def _shorten_round(self, thread: ConsumerThread) -> None:
        """By the partitions that have nothing more to read: while others have, no empty poll tells it."""
        self._round_looked_at_ms = self._clock_ms()
        left = await self._above(thread, self._reached)
        self._rounds_ends = {number: end for number, end in self._rounds_ends.items() if number in left}

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
