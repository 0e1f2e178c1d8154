"""Wires a gateway over any log and runs it: the pump, the flush and the sweep beside the server."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Protocol

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from schemas.codec import Undecodable
from schemas.usage import DeliveredCount
from streams.clocks import monotonic_ms, now_ms
from streams.connections.http_protocol import HttpProtocol
from streams.dead_letters import letter_of
from streams.directory import ModelCatalog, TenantDirectory
from streams.gateway.batches.line_log import LineLog
from streams.gateway.batches.results import Results
from streams.gateway.batches.run import Services
from streams.gateway.batches.runner import Runner
from streams.gateway.batches.service import BatchService, BatchStores
from streams.gateway.batches.tending import Tending
from streams.gateway.conversations.port import ConversationStore
from streams.gateway.conversations.tending import TendedConversations
from streams.gateway.edge import Edge
from streams.gateway.fan_out.followed import Followed
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.pump import Pump
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.log_history import LogHistory
from streams.gateway.history.store import History, RedisHistory
from streams.gateway.http.app import build_app
from streams.gateway.http.usage_reader import UsageReader
from streams.gateway.idempotency.port import IdempotencyKeys
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.metrics import GatewayMetrics, HubCollector
from streams.gateway.operations.eyes import Eyes
from streams.gateway.operations.operations import Operations
from streams.gateway.prices import KnownPrices
from streams.gateway.queues import Queues
from streams.gateway.server_config import DRAIN_TIMEOUT_S, ServerConfig
from streams.gateway.service.circuit import Circuits
from streams.gateway.service.service import Gateway
from streams.gateway.stored.keeper import Keeper, replayed_ms
from streams.gateway.stored.port import Bounds, StoredResponses
from streams.gateway.stored.replays import StoredReplays
from streams.gateway.tls_listener import TlsListener
from streams.gateway.watches import Watches
from streams.gateway.websocket.deaf_peers import DeafPeers, taken_bytes
from streams.gateway.websocket.endpoint import StreamEndpoint
from streams.gateway.websocket.protocol import StreamProtocol
from streams.heartbeats import Heartbeats
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogError, LogProducer, LogRecord, TopicPartition
from streams.log.producer_thread import ProducerThread
from streams.log.watch import LogWatch
from streams.settings import Settings
from streams.tracing.tracing import Tracing

GROUP = "gateways"
DISCONNECT_GRACE_MS = 2_000
"""How long a response without viewers goes on under `on_disconnect: cancel`: long enough to reconnect and resume."""
ELSEWHERE_GRACE_MS = 15_000
"""The same for a response that this gateway did not accept: the one that did may be gone, and its viewers on the way.
"""
SWEEP_S = 0.5
UNSENT_SWEEP_S = 1.0
FAREWELL_TIMEOUT_S = 2
LEAVE_LOOK_S = 0.05
HEARTBEATS_LOOK_BACK_MS = 10_000
"""Every worker has said something since then, and what it said tells how fast its queue empties."""
MAX_POLL_RECORDS = 500
RECORDS_AT_ONCE = 32
REVOKE_FLUSH_S = 8.0
"""Less than a rebalance hook may take: what is not written and committed by then is read again by the next owner."""

_log = structlog.get_logger()


class LogClients(Protocol):
    """Opens clients of the log."""

    def producer(self) -> LogProducer: ...

    def member(self) -> LogConsumer:
        """Of group `gateways`, with this gateway's static identity."""

    def reader(self) -> LogConsumer:
        """Outside of any group."""

    def follower(self) -> LogConsumer:
        """The same, for what viewers wait for."""

    def asker(self) -> LogConsumer:
        """Takes no part in group `gateways`, and says what it has committed."""

    def watch(self) -> LogWatch: ...


class GatewayRuntime:
    """One gateway in one event loop. `start`, serve `edge`, `run` beside it, `stop` before the server does, `close`."""

    def __init__(
        self,
        settings: Settings,
        *,
        clients: LogClients,
        redis: Redis,
        directory: TenantDirectory,
        catalog: ModelCatalog,
        usage: UsageReader,
        stored: StoredResponses,
        keys: IdempotencyKeys,
        batches: BatchStores,
        conversations: ConversationStore,
        registry: CollectorRegistry,
        tracing: Tracing | None = None,
        database_is_away: Callable[[], bool] = lambda: False,
        disconnect_grace_ms: int = DISCONNECT_GRACE_MS,
        elsewhere_grace_ms: int = ELSEWHERE_GRACE_MS,
    ) -> None:
        options = settings.gateway
        self._settings = settings
        self._topics = settings.topics
        self._redis = redis
        self._is_running = False
        self._tracing = tracing
        self.hub = Hub(
            max_lag_bytes=options.viewer_lag_bytes,
            stall_ms=options.viewer_stall_ms,
            disconnect_grace_ms=disconnect_grace_ms,
            elsewhere_grace_ms=elsewhere_grace_ms,
        )
        self._metrics = GatewayMetrics(registry)
        self._collector = HubCollector(self.hub)
        registry.register(self._collector)
        self._log_history = LogHistory(clients.reader, self._topics.responses.name)
        near = RedisHistory(
            redis,
            settings.region,
            retention_s=options.history_retention_s,
            response_timeout_ms=options.request_timeout_ms,
        )
        kept = StoredReplays(stored)
        history = History(near, self._log_history, kept)
        self._keeper = Keeper(kept, history, settings.metadata, self._metrics)
        self._keys = TendedKeys(keys, settings.metadata.tenant_keys)
        of_each = Bounds(settings.metadata.tenant_conversations, settings.metadata.tenant_bytes)
        self._conversations = TendedConversations(conversations, of_each, replayed_ms(settings))
        self._producer = ProducerThread(clients.producer())
        self._consumer = ConsumerThread(clients.member(), max_records=MAX_POLL_RECORDS)
        self.pump = Pump(
            self.hub,
            history,
            self._metrics,
            dead_letter=self._dead_letter,
            commit=self._consumer.commit,
            committed=self._consumer.committed,
            coalesce_ms=options.coalesce_ms,
            on_ended=self._keeper.ended,
        )
        self.followed = Followed(
            self.pump.following, self.hub, self._topics.responses.name, open_reader=clients.follower,
            open_asker=clients.asker, wake_viewers=self.pump.wake_viewers, on_read=lambda: self.gateway.look_soon(),
        )  # fmt: skip
        self._watches = Watches(redis, settings.region)
        self._queues = Queues(
            lambda: Heartbeats(clients.reader(), self._topics.workers.name, now_ms() - HEARTBEATS_LOOK_BACK_MS)
        )
        self._prices = KnownPrices(clients.reader, self._topics.prices.name)
        self.gateway = Gateway(
            settings,
            directory=directory,
            catalog=catalog,
            hub=self.hub,
            history=history,
            sender=self._producer,
            ownership=self.pump,
            metrics=self._metrics,
            keeper=self._keeper,
            keys=self._keys,
            conversations=self._conversations,
            queues=self._queues,
            prices=self._prices,
            tracing=tracing,
            follows=self.followed,
            watches=self._watches,
        )
        self._results = Results(clients.reader, self._topics.batch_results.name)
        self._runner = Runner(
            Services(
                batches.batches, batches.files, batches.blobs,
                LineLog(settings, settings.response_ids, self._producer, directory), self._results, settings.batches,
                now_ms, changed=self._metrics.batch_changed,
            ),
            options.gateway_id,
        )  # fmt: skip
        self._metrics.running_batches.set_function(lambda: self._runner.running)
        self._tending = Tending(
            batches.files, batches.batches, batches.blobs, settings.batches.kept_days, self._metrics.files_held
        )
        self._sockets = StreamEndpoint(self.gateway, options.allowed_origins)
        circuits: Circuits = {
            "admission": lambda: self.gateway.circuit.is_open,
            "database": database_is_away,
            "history": lambda: near.circuit_is_open,
        }
        self._metrics.show_circuits(circuits)
        self._operations = Operations(
            settings.region, options.gateway_id, self._topics,
            lambda: {model.name for model in catalog.models()},
            lambda: Eyes(clients.watch(), clients.reader(), self._topics), self.hub, self._metrics.recent, circuits,
        )  # fmt: skip
        batching = BatchService(batches, self._runner, settings.files, settings.batches, self._keys)
        http = build_app(self.gateway, usage, batching, self._operations)
        self.edge = Edge(
            http, self._sockets, self.gateway, max_connections=options.max_connections,
            max_strangers=options.max_strangers, allowed_origins=options.allowed_origins,
        )  # fmt: skip
        self.server_config = ServerConfig(
            self.edge, options, self._metrics, http=HttpProtocol, websocket=StreamProtocol
        )

    async def start(self) -> None:
        """Joins the group; partitions arrive while `run` runs."""
        await self._consumer.subscribe(
            [self._topics.responses.name], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    async def run(self) -> None:
        """Until cancelled. Raises what a loop failed with: the process cannot go on then."""
        works = (
            self._pump(), self._flush(), self._sweep(), self._meet(), self._producer.ended(),
            self._keeper.write(), self._keeper.read_back(), self._keeper.tend(), self._keys.tend(),
            self._runner.run(), self._tending.tend(),
            self._conversations.tend(),
            self._operations.run(),
            self._queues.run(),
            self.followed.read(), self.followed.ask(), self._watches.tend(self.hub),
        )  # fmt: skip
        loops = [asyncio.ensure_future(work) for work in works]
        self._is_running = True
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_running = False
            for loop in loops:
                loop.cancel()
            outcomes = await asyncio.gather(*loops, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def stop(self) -> None:
        """No new requests; whoever is connected is told to come back elsewhere, before the server hangs up: viewers
        some at a time, as long as there is something to tell the others.
        """
        if self._is_running:
            await self.gateway.dismiss()
        await asyncio.gather(self.gateway.stop(), self._sockets.go_away(FAREWELL_TIMEOUT_S))

    async def close(self) -> None:
        """Writes what history lacks, commits, leaves the group, waits for deliveries.

        Everything is closed, whatever of it fails; raises the last failure.
        """
        async with AsyncExitStack() as closing:
            if self._tracing is not None:
                closing.push_async_callback(asyncio.to_thread, self._tracing.close)
            closing.push_async_callback(self._redis.aclose)
            closing.callback(self._log_history.close)
            closing.push_async_callback(self._keeper.close)
            closing.push_async_callback(self._prices.close)
            closing.push_async_callback(self._producer.close, DRAIN_TIMEOUT_S)
            closing.push_async_callback(self._consumer.close)
            await self.pump.flush()
            self._tell_finished(self.gateway.sweep())

    async def _pump(self) -> None:
        while True:
            try:
                records = await self._consumer.poll()
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("responses_poll_failed", why=str(error), repeats=True)
                continue
            for start in range(0, len(records), RECORDS_AT_ONCE):
                batch = records[start : start + RECORDS_AT_ONCE]
                self.pump.handle(batch, monotonic_ms(), time.time_ns() // 1_000)
                # Writers send before the next batch: a backlog must not starve the sockets.
                await asyncio.sleep(0)

    async def _flush(self) -> None:
        busy_s, wall_s = time.thread_time(), time.monotonic()
        while True:
            await asyncio.sleep(self._settings.gateway.history_flush_ms / 1_000)
            await self.pump.flush()
            now_busy_s, now_wall_s = time.thread_time(), time.monotonic()
            ratio = (now_busy_s - busy_s) / max(now_wall_s - wall_s, 1e-6)
            busy_s, wall_s = now_busy_s, now_wall_s
            self._collector.utilisation = ratio
            self.pump.measure(ratio)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.pump.following.sweep(monotonic_ms())
            self.followed.look()
            stands = self.gateway.keys.standing()
            self._sockets.close_unless(stands)
            self.gateway.close_unless(stands)
            self._tell_finished(self.gateway.sweep())

    async def _meet(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.gateway.meet()

    def _tell_finished(self, finished: Sequence[Stream]) -> None:
        """How many tokens viewers had, and the spans of what was accepted here."""
        for stream in finished:
            if self._tracing is not None and stream.opened_here and stream.terminal is not None:
                self._tracing.served(
                    stream.scope.traceparent, stream.given_traceparent, stream.terminal, stream.stage_ms,
                    self._settings.gateway.gateway_id,
                )  # fmt: skip
            if stream.viewed:
                count = DeliveredCount(
                    response_id=stream.response_id, scope=stream.scope, delivered_tokens=stream.delivered_tokens,
                    gateway_id=self._settings.gateway.gateway_id, stage_ms={**stream.stage_ms, "gateway": now_ms()},
                )  # fmt: skip
                try:
                    self._producer.produce(
                        self._topics.usage.name, count.encode(), key=stream.response_id, on_delivery=_unpriced
                    )
                except LogError as error:
                    _unpriced(None, error)

    async def _dead_letter(self, record: LogRecord, error: Undecodable) -> None:
        letter = letter_of(record, "gateway", error.reason, error.detail, now_ms())
        await self._producer.send(self._topics.dead_letters.name, letter.encode(), key=letter.key)

    async def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        await self.pump.assigned(partitions, monotonic_ms())
        self.followed.look()
        _log.info("partitions_assigned", partitions=sorted(p.partition for p in partitions))

    async def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(REVOKE_FLUSH_S):
                await self.pump.flush()
        except TimeoutError:
            _log.warning("flush_late", partitions=sorted(p.partition for p in partitions))
        finally:
            self._give_up(partitions)
        _log.info("partitions_revoked", partitions=sorted(p.partition for p in partitions))

    async def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._give_up(partitions)
        _log.warning("partitions_lost", partitions=sorted(p.partition for p in partitions))

    def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        self.pump.revoked(partitions, monotonic_ms())
        self.followed.look()


def _unpriced(_offset: int | None, error: LogError | None) -> None:
    if error is not None:
        _log.warning("delivered_count_lost", why=str(error), repeats=True)


class GatewayServer(uvicorn.Server):
    """Tells viewers to come back elsewhere before it stops listening to them; aborts peers that are deaf."""

    config: ServerConfig

    def __init__(
        self, config: ServerConfig, before_shutdown: Callable[[], Awaitable[None]], *, stall_s: float,
        leave: Callable[[], None] = lambda: None, leave_s: float = 0,
    ) -> None:  # fmt: skip
        """`leave` is called `leave_s` before `before_shutdown`; sooner, where nobody is connected."""
        super().__init__(config)
        self._leave = leave
        self._leave_s = leave_s
        self._before_shutdown = before_shutdown
        self._peers: DeafPeers[asyncio.Transport] = DeafPeers(stall_s)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        aborting = asyncio.ensure_future(self._abort_deaf_peers())
        aborting.add_done_callback(lambda _: self.stop_soon())
        try:
            await super().serve(sockets)
        finally:
            aborting.cancel()
            await asyncio.wait((aborting,))
        if not aborting.cancelled():
            aborting.result()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        if config.tls is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        listener = config.bind_socket()
        listener.setblocking(False)
        listener.listen(config.backlog)
        self.servers = [
            TlsListener(  # type: ignore[list-item]
                listener, config.tls, lambda: HttpProtocol(config, self.server_state, self.lifespan.state),
                config.open_connections, config.metrics, handshake_timeout_s=config.head_timeout_s,
            )
        ]  # fmt: skip
        self.started = True

    async def _abort_deaf_peers(self) -> None:
        while True:
            await asyncio.sleep(UNSENT_SWEEP_S)
            transports = [c.transport for c in self.server_state.connections if c.transport is not None]
            unsent = ((t, taken_bytes(t)) for t in transports if t.get_write_buffer_size())
            for transport in self._peers.judge(unsent, time.monotonic()):
                _log.info("deaf_peer_aborted", peer=str(transport.get_extra_info("peername")))
                transport.abort()

    def stop_soon(self, *, at_once: bool = False) -> None:
        """`at_once`: nobody is given time to leave, nor what is left of it."""
        if at_once:
            self._leave_s = 0
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's: uvicorn would raise them again before the gateway has cleaned up."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leave()
        looks = 0
        while self.server_state.connections and looks * LEAVE_LOOK_S < self._leave_s:
            looks += 1
            await asyncio.sleep(LEAVE_LOOK_S)
        await self._before_shutdown()
        await super().shutdown(sockets)

    @property
    def port(self) -> int:
        """The port listened to, once `started`."""
        return int(self.servers[0].sockets[0].getsockname()[1])
