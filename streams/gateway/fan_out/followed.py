"""Reads what `Following` says of other gateways' partitions, beside the group, and tells it to the hub's viewers.

Nothing of it is kept as history, committed or counted, and what cannot be read is passed over: all that is for its
owner. While the log is away it is tried again; `Following` decides how long viewers wait for that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from schemas.responses import RESPONSES, Release, Started, Terminal
from streams.clocks import monotonic_ms
from streams.gateway.fan_out.following import Following
from streams.gateway.fan_out.hub import Hub
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import Committed, LogConsumer, LogError, LogRecord, TopicPartition

ASK_EVERY_S = 1.0
"""How often the group is asked where the owners stand: so long, and a little, is held what they may lack."""
RETRY_S = 0.5
READER_POLL_S = 0.005
"""What is to be read anew waits so long for a poll that finds nothing, and somebody may wait for it."""
MAX_RECORDS = 500
RECORDS_AT_ONCE = 32

_log = structlog.get_logger()


class Followed:
    """Run `read` and `ask` beside each other, on the loop of the hub.

    `wake_viewers` is called after each batch, `on_read` when somebody may find what it waits for.
    """

    def __init__(
        self, following: Following, hub: Hub, topic: str, *, open_reader: Callable[[], LogConsumer],
        open_asker: Callable[[], LogConsumer], wake_viewers: Callable[[], None], on_read: Callable[[], None],
    ) -> None:  # fmt: skip
        """`open_asker`: of a client that says what the group has committed, and takes no part in it."""
        self._following = following
        self._hub = hub
        self._topic = topic
        self._open_reader = open_reader
        self._open_asker = open_asker
        self._wake_viewers = wake_viewers
        self._on_read = on_read
        self._reading: dict[int, int] = {}
        """The numbers of what the reader is assigned."""
        self._changed = asyncio.Event()
        self._waiting = asyncio.Event()

    def number(self, partition: int) -> int | None:
        """See `Following.number`."""
        return self._following.number(partition)

    def want(self, partition: int) -> int | None:
        """The same; asks that it be read."""
        self._following.want(partition, monotonic_ms())
        self.look()
        return self._following.number(partition)

    def look(self) -> None:
        """What is followed may have changed."""
        if self._following.has_changed:
            self._following.has_changed = False
            self._changed.set()
            self._waiting.set()

    # Reading

    async def read(self) -> None:
        """Until cancelled."""
        await self._with_client(self._open_reader, self._read, poll_s=READER_POLL_S)

    async def _read(self, reader: ConsumerThread) -> None:
        self._reading = {}
        self._changed.set()
        while True:
            if self._changed.is_set():
                await self._assign(reader)
            if not self._reading:
                await self._changed.wait()
                continue
            records = await self._poll(reader)
            for start in range(0, len(records), RECORDS_AT_ONCE):
                self._apply(records[start : start + RECORDS_AT_ONCE])
                # As where the gateway reads its own: a backlog must not starve the sockets.
                await asyncio.sleep(0)

    async def _assign(self, reader: ConsumerThread) -> None:
        self._changed.clear()
        positions = self._following.positions()
        numbers = {partition: self._following.number(partition) for partition in positions}
        self._reading = {partition: number for partition, number in numbers.items() if number is not None}
        await reader.assign({TopicPartition(self._topic, partition): at for partition, at in positions.items()})

    async def _poll(self, reader: ConsumerThread) -> list[LogRecord]:
        """The next records; none when something else is to be read now."""
        polling = asyncio.ensure_future(reader.poll())
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((polling, changing), return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                return polling.result()
        except LogError as error:
            if not error.retriable:
                raise
            _log.warning("followed_poll_failed", why=str(error), repeats=True)
        finally:
            polling.cancel()
            changing.cancel()
            await asyncio.gather(polling, changing, return_exceptions=True)
        return []

    def _apply(self, records: Sequence[LogRecord]) -> None:
        hub, following, now_ms = self._hub, self._following, monotonic_ms()
        for record in records:
            partition = record.partition
            number = following.number(partition)
            if number is None or number != self._reading.get(partition):
                continue  # Its owner is this gateway by now, or nobody watches it.
            try:
                event = RESPONSES.validate_json(record.value or b"")
            except ValueError:
                _log.warning("unreadable_record", topic=record.topic, offset=record.offset, repeats=True)
            else:
                if isinstance(event, Release):
                    hub.apply_release(event, partition, now_ms)
                elif isinstance(event, Started):
                    hub.apply_started(event, partition, now_ms)
                elif isinstance(event, Terminal):
                    hub.apply_terminal(event, partition, now_ms)
            following.read(partition, record.offset + 1, now_ms)
        self._wake_viewers()
        self._on_read()

    # Asking

    async def ask(self) -> None:
        """Until cancelled."""
        await self._with_client(self._open_asker, self._ask)

    async def _ask(self, asker: ConsumerThread) -> None:
        # The first answer takes longest, and nobody need wait for it.
        await self._committed(asker, [0])
        while True:
            if not self._following.is_waiting:
                await self._wait_to_ask()
            self._waiting.clear()
            asked = self._following.asked()
            if asked and (committed := await self._committed(asker, list(asked))) is not None:
                self._following.told(asked, committed, monotonic_ms())
                self.look()
                self._on_read()

    async def _committed(self, asker: ConsumerThread, partitions: Sequence[int]) -> dict[int, Committed] | None:
        """None where the group does not answer; it is asked again a little later."""
        try:
            found = await asker.committed([TopicPartition(self._topic, partition) for partition in partitions])
        except LogError as error:
            if not error.retriable:
                raise
            _log.warning("committed_unknown", why=str(error), repeats=True)
            await asyncio.sleep(RETRY_S)
            return None
        return {source.partition: at for source, at in found.items()}

    async def _wait_to_ask(self) -> None:
        try:
            async with asyncio.timeout(ASK_EVERY_S):
                await self._waiting.wait()
        except TimeoutError:
            return

    # Clients

    async def _with_client(
        self, open_client: Callable[[], LogConsumer], work: Callable[[ConsumerThread], Awaitable[None]],
        poll_s: float = 0.02,
    ) -> None:  # fmt: skip
        """Whatever the log fails with, it is tried again with a client of its own."""
        while True:
            client: ConsumerThread | None = None
            try:
                client = ConsumerThread(open_client(), max_records=MAX_RECORDS, poll_s=poll_s)
                await work(client)
            except LogError as error:
                _log.warning("followed_log_failed", why=str(error), repeats=True)
            finally:
                if client is not None:
                    await _close(client)
            await asyncio.sleep(RETRY_S)


async def _close(client: ConsumerThread) -> None:
    try:
        await client.close()
    except LogError as error:
        _log.warning("followed_close_failed", why=str(error), repeats=True)
