"""The shell around `WorkerCore`: reads, lets it decide, carries out what it decided.

Each event goes through the same steps. What a SIGKILL after each one causes:

1. read: lane records are tracked, nothing is committed → they are read again by the partition's next owner.
2. claim: the response is ours in Redis → its next reader waits for the lease to end, then takes over.
3. fence, submit: the attempt has begun → the next reader's takeover finds no token and generates anew.
4. publish: frames are on their way → whatever reached the log is the accepted prefix; a takeover ends it.
5. finish the claim, after the last record was acknowledged → the next reader drops the request; without the mark its
   fence is answered by post-safety with `ended`, and it drops it then.
6. commit, below the oldest request that has not ended → nothing is read again.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import structlog

from gpu_consumers.claim import ClaimRequest, ClaimStore, ClaimsUnavailable
from gpu_consumers.core import (
    Abort,
    AskClaim,
    AskReadBack,
    FinishClaim,
    Publish,
    Receipt,
    ReleaseClaim,
    Submit,
    WorkerCore,
)
from gpu_consumers.engines.port import Engine, EngineDelta, EngineDied
from gpu_consumers.membership import Membership
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.takeover import Decision, ReadBack
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED
from schemas.request import LANES
from schemas.worker import WorkerState
from streams.log.consumer_thread import ConsumerThread, ProducerThread
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition
from streams.log.reading import read_offsets
from streams.settings import WorkerSettings

TICK_S = 0.05
COMMIT_S = 1.0
HEARTBEAT_S = 1.0
CONTROL_LOOK_BACK_MS = 300_000
BEATS_LOOK_BACK_MS = 10_000
READ_BACK_TIMEOUT_S = 30.0
POSITIONS_TIMEOUT_S = 30.0
RESTART_BACKOFF_S = 0.5
MAX_RESTART_BACKOFF_S = 30.0
STABLE_ENGINE_S = 600.0
FLUSH_S = 10.0
MAX_CLAIM_MARKS = 20_000
"""Marks that wait for a claim store that is away; beyond that the oldest are given up."""

_log = structlog.get_logger()
_Life = Literal["starting", "ready", "draining", "failed"]


class WorkerFailed(Exception):
    """The worker cannot go on; its process ends with an error and is started again."""


def read_back(consumer: LogConsumer, topic: str, asks: Sequence[AskReadBack], stop: threading.Event) -> list[Decision]:
    """One pass over a partition for all `asks`, which are of that partition.

    Raises LogError, also after `READ_BACK_TIMEOUT_S` and when `stop` is set.
    """
    source = TopicPartition(topic, asks[0].partition)
    folds = [ReadBack(ask.response_id, ask.attempt_id) for ask in asks]
    needles = [ask.response_id.encode() for ask in asks]
    offsets = range(min(ask.first_offset for ask in asks), max(ask.fence_offset for ask in asks) + 1)
    for record in read_offsets(consumer, {source: offsets}, time.monotonic() + READ_BACK_TIMEOUT_S, stop=stop):
        value = record.value or b""
        # Most records are of other responses: looking for the id costs a fraction of parsing.
        if not any(needle in value for needle in needles):
            continue
        try:
            parsed = decode(GENERATED, value)
        except Undecodable:
            continue  # every reader of `generated` passes over it alike
        for fold in folds:
            fold.fold(parsed)
    return [fold.decision() for fold in folds]


@dataclass
class Ports:
    """What the shell talks to. `lanes` makes a member of the workers' group, which the shell closes; `control` reads
    control and heartbeats; `reader` opens an independent consumer, for one read-back.
    """

    engine: Engine
    lanes: Callable[[], ConsumerThread]
    control: ConsumerThread
    producer: ProducerThread
    claims: ClaimStore
    reader: Callable[[], LogConsumer]


@dataclass
class _Asked:
    """Asked for by the core, answered by a task; bounded by the requests that the core engages at once.

    `finished` and `released` also hold what the claim store could not take, up to `MAX_CLAIM_MARKS` each. `read_backs`
    are by partition.
    """

    claims: list[AskClaim] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    read_backs: defaultdict[int, list[AskReadBack]] = field(default_factory=lambda: defaultdict(list))


class Worker:
    """Runs until `stop` is set or something fails."""

    def __init__(
        self,
        core: WorkerCore,
        ports: Ports,
        settings: WorkerSettings,
        metrics: WorkerMetrics,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        self._core = core
        self._ports = ports
        self._settings = settings
        self._metrics = metrics
        self._clock_us = clock_us
        self._topics = core.config.topics
        self._life: _Life = "starting"
        self._membership = Membership(core.config.worker_id, core.config.pool)
        self._lanes: ConsumerThread | None = None
        self._asked = _Asked()
        self._claims_asked = asyncio.Event()
        self._read_back_asked = asyncio.Event()
        # Threads of their own, one per partition: what hangs holds up no other, and not the end of the process.
        self._readers = ThreadPoolExecutor(self._topics.generated.partitions, "read-back")
        self._readers_stop = threading.Event()
        self._engine_died = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens_at_beat = (0, 0)

    @property
    def not_ready(self) -> str | None:
        """None when it serves."""
        return None if self._life == "ready" else self._life

    async def run(self, stop: asyncio.Event) -> None:
        """Serves, then drains. Raises WorkerFailed and LogError."""
        background: list[asyncio.Future[None]] = [
            asyncio.create_task(run(), name=run.__name__)
            for run in (
                self._keep_engine, self._read_control, self._keep_time, self._keep_lease, self._beat, self._ask_claims,
                self._ask_read_backs, self._commit_often,
            )
        ]  # fmt: skip
        lanes = asyncio.create_task(self._read_lanes(), name="_read_lanes")

        async def leave_lanes() -> None:
            await stop.wait()
            lanes.cancel()

        stopped = asyncio.create_task(leave_lanes(), name="leave_lanes")
        try:
            await self._until_done(lanes, [*background, self._failed])
            await self._drain([*background, self._failed])
        finally:
            self._readers_stop.set()
            self._readers.shutdown(wait=False)
            tasks: list[asyncio.Future[None]] = [*background, lanes, stopped]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                await self._leave_lanes()
            finally:
                await self._ports.engine.close()

    @staticmethod
    async def _until_done(
        task: "asyncio.Future[None]", others: "list[asyncio.Future[None]]", timeout_s: float | None = None
    ) -> None:
        """Waits until `task` was cancelled. Raises what it, or any of the others, failed with."""
        done, _ = await asyncio.wait([task, *others], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            if not ended.cancelled():
                ended.result()
                raise WorkerFailed("a task ended that should not")

    async def _drain(self, background: "list[asyncio.Future[None]]") -> None:
        """Leaves the lanes, finishes what runs, hands over what is not done in time."""
        _log.info("draining", attempts=self._core.unfinished_attempts)
        self._life = "draining"
        self._core.drain()
        self._send_state()
        await self._leave_lanes()
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        while self._core.unfinished_attempts and time.monotonic() < deadline_s:
            await self._until_done(asyncio.get_running_loop().create_future(), background, TICK_S)
        if left := self._core.unfinished_attempts:
            _log.warning("handing_over", attempts=left)
        self._core.hand_over(self._now_ms())
        self._carry_out()
        await self._flush_claims()
        self._send_state()
        try:
            await self._ports.claims.resign()
        except ClaimsUnavailable as error:
            _log.warning("claims_unavailable", what="resign", error=str(error))

    # Events

    def _now_ms(self) -> int:
        return self._clock_us() // 1_000

    def _after_event(self) -> None:
        self._core.tick(self._now_ms())
        self._carry_out()

    def _carry_out(self) -> None:
        """Effects can have effects (an engine that died refuses a request), so until there are none."""
        while effects := self._core.effects():
            for effect in effects:
                match effect:
                    case Publish():
                        self._publish(effect)
                    case Submit(request):
                        try:
                            self._ports.engine.submit(request)
                        except EngineDied as death:
                            # After this event, not inside it: the core is still being carried out.
                            asyncio.get_running_loop().call_soon(self._on_died, death)
                    case Abort(attempt_id):
                        self._ports.engine.abort(attempt_id)
                    case AskClaim():
                        self._asked.claims.append(effect)
                        self._claims_asked.set()
                    case FinishClaim(response_id):
                        self._asked.finished.append(response_id)
                        self._claims_asked.set()
                    case ReleaseClaim(response_id):
                        self._asked.released.append(response_id)
                        self._claims_asked.set()
                    case AskReadBack():
                        self._asked.read_backs[effect.partition].append(effect)
                        self._read_back_asked.set()

    def _publish(self, effect: Publish) -> None:
        receipt = effect.receipt

        def on_delivery(offset: int | None, error: LogError | None) -> None:
            if error is not None:
                self._metrics.delivery_failures.inc()
                _log.error("delivery_failed", topic=effect.topic, error=str(error))
            if receipt is not None:
                self._guarded(lambda: self._delivered(receipt, offset))

        try:
            self._ports.producer.produce(
                effect.topic, effect.value, key=effect.key, partition=effect.partition, on_delivery=on_delivery
            )
        except LogError as error:
            if not error.retriable:
                raise
            # The queue is longer than Kafka can be away: the same as a delivery that failed.
            asyncio.get_running_loop().call_soon(on_delivery, None, error)

    def _delivered(self, receipt: Receipt, offset: int | None) -> None:
        if offset is None:
            self._core.undelivered(receipt, self._now_ms())
        else:
            self._core.delivered(receipt, offset, self._now_ms())
        self._after_event()

    def _guarded(self, event: Callable[[], None]) -> None:
        """For callbacks: the loop would only log what they raise."""
        try:
            event()
        except Exception as error:  # noqa: BLE001 - raised in `run`
            if not self._failed.done():
                self._failed.set_exception(error)

    # Tasks

    async def _read_lanes(self) -> None:
        """A member of the group while `Membership` says so."""
        while True:
            if not self._is_to_read_lanes():
                await asyncio.sleep(TICK_S)
                continue
            _log.info("joining_lanes", life=self._life)
            self._lanes = self._ports.lanes()
            await self._read_as_member(self._lanes)
            _log.info("leaving_lanes", life=self._life)
            await self._leave_lanes()

    def _is_to_read_lanes(self) -> bool:
        return self._membership.reads_lanes(self._life == "ready", self._now_ms())

    async def _leave_lanes(self) -> None:
        if self._lanes is not None:
            await self._lanes.close()
            self._lanes = None

    async def _read_as_member(self, lanes: ConsumerThread) -> None:
        names = [self._topics.lane(self._core.config.pool, lane).name for lane in LANES]
        paused: set[TopicPartition] = set()

        async def on_assign(partitions: Sequence[TopicPartition]) -> None:
            # One that was paused when it left may still be: what is in this set is resumed when its lane has room.
            paused.update(partitions)
            self._core.assigned(partitions)
            self._send_state()

        async def on_revoke(partitions: Sequence[TopicPartition]) -> None:
            paused.difference_update(partitions)
            offsets = self._core.revoked(partitions)
            if offsets:
                try:
                    await lanes.commit(offsets)
                except LogError as error:
                    # The partition's next owner reads again what was not committed.
                    _log.warning("commit_failed", error=str(error))
            self._send_state()

        async def on_lost(partitions: Sequence[TopicPartition]) -> None:
            paused.difference_update(partitions)
            self._core.revoked(partitions)
            self._send_state()

        await lanes.subscribe(names, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        while self._is_to_read_lanes():
            await self._share_lanes(lanes, paused)
            try:
                # Not for longer: shares are to be looked at also when nothing comes.
                records = await lanes.poll(TICK_S)
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("lanes_poll_failed", error=str(error))
                continue
            if records:
                self._core.lane_records(records, self._now_ms())
                self._after_event()

    async def _share_lanes(self, lanes: ConsumerThread, paused: set[TopicPartition]) -> None:
        """Pauses the partitions of lanes over their share and resumes the others; keeps `paused` up to date."""
        over = self._core.over_share()
        if stop := over - paused:
            paused |= stop
            await lanes.pause(stop)
        if go_on := paused - over:
            paused -= go_on
            await lanes.resume(go_on)

    async def _read_control(self) -> None:
        control = self._ports.control
        await control.assign(await self._control_positions())
        self._membership.listening(self._now_ms())
        while True:
            try:
                records = await control.poll()
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("control_poll_failed", error=str(error))
                continue
            self._hear([record for record in records if record.topic == self._topics.workers.name])
            self._core.control_records(
                [record for record in records if record.topic == self._topics.control.name], self._now_ms()
            )
            self._after_event()

    def _hear(self, beats: Sequence[LogRecord]) -> None:
        for record in beats:
            try:
                self._membership.heard(decode(WorkerState, record.value))
            except Undecodable:
                continue  # a tombstone, or a worker that routers cannot read either

    async def _control_positions(self) -> dict[TopicPartition, int]:
        """Where to begin: some minutes back, for cancels of work that waits; some heartbeats back.

        Raises LogError after a while.
        """
        control = self._ports.control
        now_ms = self._now_ms()
        since_ms = {
            self._topics.control.name: now_ms - CONTROL_LOOK_BACK_MS,
            self._topics.workers.name: now_ms - BEATS_LOOK_BACK_MS,
        }
        deadline_s = time.monotonic() + POSITIONS_TIMEOUT_S
        while True:
            try:
                return {
                    partition: await control.offset_at(partition, topic_since_ms)
                    for topic, topic_since_ms in since_ms.items()
                    for partition in await control.partitions(topic)
                }
            except LogError as error:
                if time.monotonic() >= deadline_s:
                    raise
                _log.warning("control_positions_failed", error=str(error))
                await asyncio.sleep(0.2)

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._after_event()

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            offsets = self._core.to_commit()
            if not offsets or self._lanes is None:
                continue
            try:
                await self._lanes.commit(offsets)
            except LogError as error:
                # Not ours any more, or the group is being balanced: the partition's next owner reads again.
                _log.warning("commit_failed", error=str(error))
            else:
                self._core.committed(offsets)

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self._ports.claims.renew()
            except ClaimsUnavailable as error:
                self._metrics.claim_failures.inc()
                _log.warning("claims_unavailable", what="renew", error=str(error))
            else:
                if self._asked.finished or self._asked.released:
                    self._claims_asked.set()  # it answers again: what it missed is told now
            await asyncio.sleep(self._settings.lease_ms / 4_000)

    async def _ask_claims(self) -> None:
        while True:
            await self._claims_asked.wait()
            self._claims_asked.clear()
            asks, self._asked.claims = self._asked.claims, []
            if asks:
                requests = [ClaimRequest(ask.response_id, ask.attempt_id, ask.only_begun) for ask in asks]
                claims = await self._ports.claims.claim(requests)
                if unanswered := claims.count(None):
                    self._metrics.claim_failures.inc()
                    _log.warning("claims_unavailable", what="claim", unanswered=unanswered, asked=len(claims))
                for ask, claim in zip(asks, claims, strict=True):
                    self._core.claimed(ask.response_id, ask.attempt_id, claim, self._now_ms())
                self._after_event()
            await self._flush_claims()

    async def _flush_claims(self) -> None:
        """Tells what ended. What the store does not take is kept for later; both marks may be repeated."""
        finished, self._asked.finished = self._asked.finished, []
        released, self._asked.released = self._asked.released, []
        try:
            if finished:
                await self._ports.claims.finish(finished)
                finished = []
            if released:
                await self._ports.claims.release(released)
                released = []
        except ClaimsUnavailable as error:
            self._metrics.claim_failures.inc()
            _log.warning("claims_unavailable", what="finish", error=str(error), waiting=len(finished) + len(released))
            self._asked.finished = (finished + self._asked.finished)[-MAX_CLAIM_MARKS:]
            self._asked.released = (released + self._asked.released)[-MAX_CLAIM_MARKS:]

    async def _ask_read_backs(self) -> None:
        reading: set[int] = set()
        async with asyncio.TaskGroup() as readers:
            while True:
                await self._read_back_asked.wait()
                self._read_back_asked.clear()
                for partition in self._asked.read_backs.keys() - reading:
                    reading.add(partition)
                    readers.create_task(self._read_partition_back(partition, reading))

    async def _read_partition_back(self, partition: int, reading: set[int]) -> None:
        """Until nothing more is asked of it; whatever is asked meanwhile goes into the next pass."""
        while asks := self._asked.read_backs.pop(partition, []):
            try:
                decisions = await asyncio.get_running_loop().run_in_executor(self._readers, self._read_back, asks)
            except LogError as error:
                _log.warning("read_back_failed", partition=partition, error=str(error))
                for ask in asks:
                    self._core.read_back_failed(ask.response_id, ask.attempt_id, self._now_ms())
            else:
                for ask, decision in zip(asks, decisions, strict=True):
                    _log.info("taken_over", response_id=ask.response_id, decision=decision)
                    self._core.read_back(ask.response_id, ask.attempt_id, decision, self._now_ms())
            self._after_event()
        reading.remove(partition)

    def _read_back(self, asks: Sequence[AskReadBack]) -> list[Decision]:
        consumer = self._ports.reader()
        try:
            return read_back(consumer, self._topics.generated.name, asks, self._readers_stop)
        finally:
            consumer.close()

    # Engine

    async def _keep_engine(self) -> None:
        """Starts it, and again when it died, with growing pauses. Raises WorkerFailed when it dies too often."""
        restarts = 0
        while True:
            self._engine_died.clear()
            started_s = time.monotonic()
            try:
                await self._ports.engine.start(self._on_step, self._on_died)
            except EngineDied as error:
                _log.error("engine_not_started", error=str(error))
            else:
                _log.info("engine_started", took_s=round(time.monotonic() - started_s, 1))
                started_s = time.monotonic()
                if self._life != "draining":
                    self._life = "ready"
                self._core.engine_started(self._now_ms())
                self._after_event()
                self._send_state()
                await self._engine_died.wait()
            self._metrics.engine_deaths.inc()
            restarts = 1 if time.monotonic() - started_s > STABLE_ENGINE_S else restarts + 1
            if self._life != "draining":
                self._life = "starting" if restarts <= self._settings.max_engine_restarts else "failed"
            self._send_state()
            if restarts > self._settings.max_engine_restarts:
                raise WorkerFailed(f"the engine died {restarts} times")
            await asyncio.sleep(min(RESTART_BACKOFF_S * 2 ** (restarts - 1), MAX_RESTART_BACKOFF_S))

    def _on_step(self, deltas: list[EngineDelta]) -> None:
        self._guarded(lambda: self._step(deltas))

    def _step(self, deltas: list[EngineDelta]) -> None:
        self._core.deltas(deltas, self._clock_us())
        self._carry_out()

    def _on_died(self, death: EngineDied) -> None:
        _log.error("engine_died", error=str(death))
        self._engine_died.set()
        self._guarded(self._lose_engine)

    def _lose_engine(self) -> None:
        self._core.engine_died(self._now_ms())
        self._after_event()

    # Heartbeat

    async def _beat(self) -> None:
        while True:
            self._send_state()
            await asyncio.sleep(HEARTBEAT_S)

    def _send_state(self) -> None:
        now_ms = self._now_ms()
        tokens, since_ms = self._tokens_at_beat
        elapsed_ms = now_ms - since_ms
        tokens_per_second = (self._core.generated_tokens - tokens) * 1_000 / elapsed_ms if elapsed_ms > 0 else 0.0
        if elapsed_ms >= HEARTBEAT_S * 1_000:
            self._tokens_at_beat = (self._core.generated_tokens, now_ms)
        engine = self._ports.engine
        stats = engine.stats()
        self._metrics.gauges(stats, self._core.waiting(), self._core.oldest_waiting_ms(now_ms))
        state = self._core.state(self._life, stats, round(tokens_per_second, 1), engine.accepts_seed, now_ms)
        self._publish(Publish(self._topics.workers.name, None, state.worker_id, state.encode(), None))
