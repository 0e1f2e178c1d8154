"""A gateway that takes one step when a test says so, with its partition, its history and clients that check it.

All but the wires is real: pump, hub, service and sockets. Redis and the log are in memory and answer when told to.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar
from unittest import mock

from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from schemas.responses import RESPONSES, Release, Started, Terminal
from streams import redis_keys
from streams.gateway.closing import CLOSINGS
from streams.gateway.conversations.memory import MemoryConversations
from streams.gateway.conversations.tending import TendedConversations
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.followed import Followed
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.pump import Pump
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Closed
from streams.gateway.history.log_history import read_log
from streams.gateway.history.replay import Replay, Rest
from streams.gateway.history.store import History, RedisHistory
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.prices import KnownPrices
from streams.gateway.queues import Queues
from streams.gateway.service.service import Gateway
from streams.gateway.stored.keeper import Keeper
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Bounds
from streams.gateway.stored.replays import StoredReplays
from streams.gateway.websocket.session import Socket
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import Committed, LogRecord, TopicPartition
from streams.toml_directory import SettingsCatalog
from streams.topics import DAY_MS
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    Directory,
    gateway_settings,
    started,
)
from tests.unit.streams.gateway.hub_stories import ACME, MAX_LAG_BYTES

SETTINGS = gateway_settings("redis://127.0.0.1:1/0", "local", viewer_stall_ms=10**7)  # never asked
TOPIC = SETTINGS.topics.responses.name
SOURCE = TopicPartition(TOPIC, 0)
TOKENS = 40
MAX_UNKEPT_BYTES = 2_000

_Read = TypeVar("_Read")


class Asked:
    """What history is asked waits until the test answers: with what stood there at either moment, or not at all."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[str]] = []

    async def answer(self, look: Callable[[], _Read]) -> _Read:
        then = look()
        moment: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting.append(moment)
        match await moment:
            case "as it was asked":
                return then
            case "as it is answered":
                return look()
            case _:
                raise TimeoutError("nothing answers")


class Lists:
    """As much of Redis as history needs, and of its pipelines."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.lists: defaultdict[str, list[bytes]] = defaultdict(list)
        self.marks: dict[str, int] = {}
        self.is_away = False

    async def lrange(self, key: str, first: int, last: int) -> list[bytes]:
        return await self._asked.answer(lambda: self.lists[key][first : last + 1])

    async def get(self, key: str) -> int | None:
        return await self._asked.answer(lambda: self.marks.get(key))

    async def lindex(self, key: str, index: int) -> bytes | None:
        return self.lists[key][index] if self.lists[key] else None

    async def eval(self, _script: str, count: int, *words: Any) -> None:
        """What appends, of which the entries matter here."""
        if self.is_away:
            raise RedisError("away")
        keys, arguments = words[:count], words[count:]
        for key, entry in zip(keys, arguments[::2], strict=True):
            self.lists[key].append(entry)

    def pipeline(self, *, transaction: bool) -> "Pipeline":
        assert not transaction
        return Pipeline(self)


class Pipeline:
    """What history reads in one waits as it does alone, command by command: others come between them."""

    def __init__(self, redis: Lists) -> None:
        self._redis = redis
        self._commands: list[Callable[[], object]] = []
        self._questions: list[Callable[[], Awaitable[object]]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def set(self, key: str, value: int, ex: int) -> None:
        self._commands.append(lambda: self._redis.marks.update({key: value}))

    def lindex(self, key: str, index: int) -> None:
        self._commands.append(lambda: self._redis.lists[key][index] if self._redis.lists[key] else None)

    def get(self, key: str) -> None:
        self._questions.append(lambda: self._redis.get(key))

    def lrange(self, key: str, first: int, last: int) -> None:
        self._questions.append(lambda: self._redis.lrange(key, first, last))

    async def execute(self, raise_on_error: bool = True) -> list[object]:
        if self._questions:
            return [await question() for question in self._questions]
        if self._redis.is_away:
            raise RedisError("away")
        return [command() for command in self._commands]


class LogReader:
    """The log behind Redis."""

    def __init__(self, log: MemoryLog, asked: Asked) -> None:
        self._log = log
        self._asked = asked

    async def read(self, tenant_id: str, response_id: str, after: int, rest: Rest = Rest()) -> Replay:
        def look() -> Replay:
            reader = MemoryConsumer(self._log, None, "reader", "earliest")
            return read_log(reader, SOURCE, tenant_id, response_id, after, 0, time.monotonic() + 60, rest)

        try:
            return await self._asked.answer(look)
        except TimeoutError as error:
            raise HistoryUnavailable(str(error)) from None


class Client:
    """Follows the response over as many connections as it takes, and checks what it hears."""

    def __init__(self, world: "World", after: int) -> None:
        self.world = world
        self.last = after
        self.is_done = False
        self.connection: Connection | None = None

    def connect(self, *, on_socket: bool) -> None:
        self.connection = Connection(self, on_socket=on_socket)

    def leave(self) -> None:
        if self.connection is not None:
            self.connection.inbox.put_nowait({"type": "websocket.disconnect"})
            if not self.connection.on_socket:
                self.connection.task.cancel()
            self.connection.may_take.set()
            self.connection = None

    def hear_span(self, first: int, last: int, text: str) -> None:
        assert first == self.last + 1, f"{first}–{last} after {self.last}"
        assert text == "".join(self.world.tokens[first - 1 : last])
        self.last = last

    def hear_end(self) -> None:
        assert self.world.has_ended
        assert self.last == len(self.world.tokens)
        self.is_done = True


class Connection:
    """One of a client: a socket, which writes frames past its queue while it is read, or an event stream."""

    def __init__(self, client: Client, *, on_socket: bool) -> None:
        self._client = client
        self._world = client.world
        self._after = client.last
        self._has_started = False
        self.on_socket = on_socket
        self.may_take = asyncio.Event()
        self.may_take.set()
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task = self._world.start(self._serve_socket() if on_socket else self._serve_events())

    @property
    def takes_frames(self) -> bool:
        return self.may_take.is_set()

    def write_frame(self, frame: bytes) -> None:
        self._hear_text(frame[2 if frame[1] < 126 else 4 :])

    def admit(self) -> None:
        return None

    def account_to(self, hold: Callable[[int], bool], spend: Callable[[float], bool]) -> None:
        return None

    async def _serve_socket(self) -> None:
        ask = {"type": "resume", "response_id": self._world.response_id, "starting_after": self._after}
        self.inbox.put_nowait({"type": "websocket.receive", "text": json.dumps(ask)})
        await Socket(self._world.gateway, self.inbox.get, self._send, "", self).run(KEY)

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self.may_take.wait()
        if message["type"] == "websocket.send":
            self._hear_text(message["text"])

    def _hear_text(self, text: str | bytes) -> None:
        """What is wrong is kept for the test: the socket would only log it."""
        if self._client.connection is self:
            try:
                self._hear(json.loads(text))
            except AssertionError as error:
                self._world.wrong.append(error)

    def _hear(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "started":
                self._start()
            case "delta":
                self._client.hear_span(message["first_sequence"], message["sequence_number"], message["text"])
            case "terminal":
                self._client.hear_end()
                self._client.leave()
            case _:
                assert message["resumable"], message
                self._client.leave()

    def _start(self) -> None:
        assert (self._after, self._client.last, self._has_started) == (0, 0, False)
        self._has_started = True

    async def _serve_events(self) -> None:
        gateway = self._world.gateway
        try:
            follower = await gateway.resume(gateway.authenticate(KEY), self._world.response_id, self._after)
        except ApiError as error:
            if not error.resumable:
                raise
            self._gone()
            return
        try:
            while True:
                await self.may_take.wait()
                event = await follower.next(1_000)
                if isinstance(event, Span):
                    self._client.hear_span(event.first_sequence, event.sequence_number, event.text)
                elif isinstance(event, Started):
                    self._start()
                elif isinstance(event, Terminal):
                    self._client.hear_end()
                    break
                else:
                    assert isinstance(event, Closed)
                    assert CLOSINGS[event.reason].resumable, event
                    break
        finally:
            gateway.release(follower)
        self._gone()

    def _gone(self) -> None:
        if self._client.connection is self:
            self._client.connection = None


class World:
    """One partition of `responses`, history, a gateway that reads the one into the other, and its clients."""

    def __init__(self, *, is_accepted_here: bool) -> None:
        self.loop = asyncio.new_event_loop()
        self.tokens = [f"{number} " for number in range(1, TOKENS + 1)]
        self.written = 0
        self.has_ended = False
        self.response_id = SETTINGS.response_ids.mint(0)
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, 1)
        self.asked = Asked()
        self.redis = Lists(self.asked)
        self.committed: int | None = None
        self.clients: list[Client] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.wrong: list[BaseException] = []
        self.followed_to = 0
        self.start_gateway()
        if is_accepted_here:
            self.hub.open(self.response_id, 0, ACME, "continue", 0)
        self.write(started(self.response_id, ACME))

    @property
    def key(self) -> str:
        return redis_keys.history("local", "acme", self.response_id)

    def start_gateway(self) -> None:
        near = RedisHistory(self.redis, "local", retention_s=100, response_timeout_ms=100_000)  # type: ignore[arg-type]
        history = History(near, LogReader(self.log, self.asked))  # type: ignore[arg-type]
        metrics = GatewayMetrics(CollectorRegistry())
        self.hub = Hub(
            max_lag_bytes=MAX_LAG_BYTES, stall_ms=10**9, disconnect_grace_ms=10**9, max_unkept_bytes=MAX_UNKEPT_BYTES,
            max_unkept_ended=0,
        )  # fmt: skip
        self.pump = Pump(
            self.hub, history, metrics, dead_letter=mock.AsyncMock(), commit=self._commit,
            committed=self._look_up_committed, coalesce_ms=1,
        )  # fmt: skip
        self.following = self.pump.following
        self.followed = Followed(
            self.following, self.hub, TOPIC, open_reader=mock.Mock(), open_asker=mock.Mock(),
            wake_viewers=self.pump.wake_viewers, on_read=mock.Mock(),
        )  # fmt: skip
        stored = MemoryStoredResponses()
        self.gateway = Gateway(
            SETTINGS, directory=Directory(), catalog=SettingsCatalog(SETTINGS), hub=self.hub, history=history,
            sender=mock.Mock(), ownership=self.pump, metrics=metrics,
            keeper=Keeper(StoredReplays(stored), history, SETTINGS.metadata, metrics),
            keys=TendedKeys(MemoryIdempotencyKeys(), 1), follows=self.followed, queues=Queues(mock.Mock()),
            prices=KnownPrices(mock.Mock(), "prices"),
            conversations=TendedConversations(MemoryConversations(stored), Bounds(1, 1), DAY_MS),
        )  # fmt: skip
        self.gateway._patience._patience_ms = 0
        self.take_partition()

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.committed = offsets[SOURCE]

    async def _look_up_committed(self, _: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        return {SOURCE: Committed(self.committed)}

    @property
    def is_owned(self) -> bool:
        return bool(self.pump.owned)

    def take_partition(self) -> None:
        self.run(self.pump.assigned([SOURCE], 0))
        self.position = self.committed or 0

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.wrong.append(error)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(work)

    def turn(self, times: int) -> None:
        for _ in range(times):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def write(self, record: Started | Release | Terminal) -> None:
        self.log.append(TOPIC, record.encode(), key=self.response_id)

    def shown(self) -> int:
        """The last token that some gateway may have shown."""
        records = self.log.records(TOPIC)[: max(self.position, self.committed or 0, self.followed_to)]
        rows = (RESPONSES.validate_json(record.value or b"") for record in records)
        return max(
            (row.first_sequence[0] + len(row.text_ends[0]) - 1 for row in rows if isinstance(row, Release)), default=0
        )

    def unread(self) -> list[LogRecord]:
        return self.log.records(TOPIC)[self.position :]

    def read(self, records: Sequence[LogRecord]) -> None:
        self.position += len(records)
        self.pump.handle(records, 0, 0)

    def ask(self) -> None:
        """Where the owner of what is followed stands."""
        if asked := self.following.asked():
            self.following.told(asked, {0: Committed(self.committed)}, 0)

    def follow(self, count: int) -> None:
        """As another gateway's, if it is."""
        if (at := self.following.positions().get(0)) is None or (number := self.following.number(0)) is None:
            return
        records = self.log.records(TOPIC)[at : at + count]
        self.followed._reading = {0: number}
        self.followed._apply(records)
        self.followed_to = max(self.followed_to, at + len(records))

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.run(_settled(self.tasks))
        self.loop.close()


async def _settled(tasks: Iterable[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
