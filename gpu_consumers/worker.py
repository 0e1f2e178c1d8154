"""The shell around `WorkerCore`: reads, lets it decide, carries out what it decided.

Each event goes through the same steps. What a SIGKILL after each one causes:

1. read: lane records are tracked, nothing is committed → they are read again by the partition's next owner.
2. claim: the response is ours in Redis → its next reader waits for the lease to end, then takes over.
3. fence, submit: the attempt has begun → the next reader's takeover finds no token and generates anew.
4. publish: frames are on their way → whatever reached the log is the accepted prefix; a takeover ends it.
5. finish the claim, after the last record was acknowledged → the next reader drops the request; without the mark its
   fence is answered by post-safety with `ended`, and it drops it then.
6. commit, below the oldest request that has not ended → nothing is read again.

Beside them, once it was ready, with a heartbeat of each UTC hour:

7. presence → whoever goes on under its name says it again in the same hour, and equal records count once.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import structlog

from gpu_consumers.core.claims import ClaimStore
from gpu_consumers.core.effects import (
    Abort,
    AskClaim,
    AskReadBack,
    CopySent,
    FinishClaim,
    FrameSent,
    Publish,
    Receipt,
    ReleaseClaim,
    Submit,
)
from gpu_consumers.core.membership import BEAT_MS, Membership, beat_every_ms
from gpu_consumers.core.presence import PresenceHours, presence
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import Engine
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.shell.claiming import Claiming
from gpu_consumers.shell.engine_keeping import EngineKeeping, WorkerFailed
from gpu_consumers.shell.lane_reading import LanesReading
from gpu_consumers.shell.reading_back import ReadingBack
from schemas.codec import Undecodable
from schemas.request import Lane
from schemas.worker import EngineFailing
from streams.heartbeats import said_in
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import LogConsumer, LogError, LogRecord, RecordTooLarge, TopicPartition
from streams.log.producer_thread import ProducerThread
from streams.recent_ids import KEEP_MS
from streams.settings import WorkerSettings

TICK_S = 0.05
COMMIT_S = 1.0
BEATS_LOOK_BACK_MS = 60_000
"""So long a worker may be away, and its successor knows whose turn it was."""
POSITIONS_TIMEOUT_S = 30.0
FLUSH_S = 10.0
"""So long, at most, what it has written waits for Kafka when it ends."""
HEIRS_READ_WITHIN_S = 3.0
"""So long beyond its time a worker that drains goes on, at most, until others read what it has left."""

_log = structlog.get_logger()
_Life = Literal["starting", "ready", "draining", "failed"]


@dataclass
class Ports:
    """What the shell talks to. `lanes` makes a member of the workers' group, which the shell closes; `control` reads
    control and heartbeats; `reader` opens an independent consumer, for one read-back.
    """

    engine: Engine
    lanes: Callable[[Lane], ConsumerThread]
    control: ConsumerThread
    producer: ProducerThread
    claims: ClaimStore
    reader: Callable[[], LogConsumer]


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
        self._is_draining = False
        self._membership = Membership(core.config.worker_id, core.config.pool)
        self._presence = PresenceHours()
        self._lanes: LanesReading | None = None
        self._claiming = Claiming(
            core, ports.claims, metrics, settings.lease_ms, now_ms=self._now_ms, after_event=self._after_event
        )
        self._reading_back = ReadingBack(
            core, self._topics.generated, ports.reader, self._now_ms, self._after_event, self._guarded
        )
        self._engine = EngineKeeping(
            core, ports.engine, metrics, settings,
            clock_us=clock_us, carry_out=self._carry_out, after_event=self._after_event, guarded=self._guarded,
            on_state=self._send_state,
        )  # fmt: skip
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tokens_at_beat = (0, 0)
        self._failing: EngineFailing | None = None

    @property
    def _life(self) -> _Life:
        return "draining" if self._is_draining else self._engine.state

    @property
    def not_ready(self) -> str | None:
        """None when it serves."""
        return None if self._life == "ready" else self._life

    async def run(self, stop: asyncio.Event) -> None:
        """Serves, then drains. Raises WorkerFailed and LogError."""
        background: list[asyncio.Future[None]] = [
            asyncio.create_task(run(), name=run.__name__)
            for run in (
                self._engine.keep_engine, self._engine.watch_engine, self._read_control, self._keep_time, self._beat,
                self._claiming.keep_lease, self._claiming.ask_claims, self._claiming.tell_marks,
                self._reading_back.ask_read_backs, self._commit_often,
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
            self._reading_back.close()
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
        self._is_draining = True
        self._core.drain()
        lanes = self._core.lanes_read()
        self._send_state()
        await self._leave_lanes()
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        while self._core.unfinished_attempts and self._goes_on(deadline_s, lanes):
            await self._until_done(asyncio.get_running_loop().create_future(), background, TICK_S)
        if left := self._core.unfinished_attempts:
            _log.warning("handing_over", attempts=left)
        self._core.hand_over(self._now_ms())
        self._carry_out()
        await self._claiming.flush()
        self._send_state()
        await self._claiming.resign()
        # The last it says of itself: behind it a router knows nothing of this worker.
        self._bury(self._core.config.worker_id)

    def _goes_on(self, deadline_s: float, lanes: Mapping[Lane, Collection[int]]) -> bool:
        """Handed over before anybody reads `lanes`, its answers would stand still while these are balanced."""
        beyond_s = time.monotonic() - deadline_s
        return beyond_s < 0 or (
            beyond_s < HEIRS_READ_WITHIN_S and self._membership.are_to_be_read(lanes, self._now_ms())
        )

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
                        self._engine.submit(request)
                    case Abort(attempt_id):
                        self._engine.abort(attempt_id)
                    case AskClaim():
                        self._claiming.ask(effect)
                    case FinishClaim():
                        self._claiming.finish(effect)
                    case ReleaseClaim():
                        self._claiming.release(effect)
                    case AskReadBack():
                        self._reading_back.ask(effect)

    def _publish(self, effect: Publish, on_failure: Callable[[], None] = lambda: None) -> None:
        receipt = effect.receipt

        def on_delivery(offset: int | None, error: LogError | None) -> None:
            if error is not None:
                self._metrics.delivery_failures.inc()
                _log.error("delivery_failed", topic=effect.topic, error=str(error), repeats=True)
                on_failure()
            if receipt is not None:
                self._guarded(lambda: self._delivered(receipt, offset, error))

        try:
            self._ports.producer.produce(
                effect.topic, effect.value, key=effect.key, partition=effect.partition, on_delivery=on_delivery
            )
        except LogError as error:
            is_too_large = isinstance(error, RecordTooLarge) and isinstance(receipt, FrameSent | CopySent)
            if not (error.retriable or is_too_large):
                raise
            # The queue is longer than Kafka can be away, or one record is too large: as a delivery that failed.
            asyncio.get_running_loop().call_soon(on_delivery, None, error)

    def _delivered(self, receipt: Receipt, offset: int | None, error: LogError | None) -> None:
        if offset is None:
            is_too_large = isinstance(error, RecordTooLarge)
            self._core.undelivered(receipt, self._now_ms(), is_too_large=is_too_large)
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
        """A member of the group, for each lane, while `Membership` says so."""
        while True:
            if not self._is_to_read_lanes():
                await asyncio.sleep(TICK_S)
                continue
            _log.info("joining_lanes", life=self._life)
            self._lanes = LanesReading(
                self._core, self._ports.lanes, self._now_ms, self._after_event, on_partitions=self._send_state
            )
            await self._lanes.read(self._is_to_read_lanes)
            _log.info("leaving_lanes", life=self._life)
            await self._leave_lanes()

    def _is_to_read_lanes(self) -> bool:
        return self._membership.reads_lanes(self._life == "ready", self._now_ms())

    async def _leave_lanes(self) -> None:
        if self._lanes is not None:
            await self._lanes.leave()
            self._lanes = None

    async def _read_control(self) -> None:
        control = self._ports.control
        await self._learn_generated_ends()
        await control.assign(await self._control_positions())
        self._membership.listening(self._now_ms())
        while True:
            try:
                records = await control.poll()
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("control_poll_failed", error=str(error), repeats=True)
                continue
            self._hear([record for record in records if record.topic == self._topics.workers.name])
            self._core.control_records(
                [record for record in records if record.topic == self._topics.control.name], self._now_ms()
            )
            self._after_event()

    def _hear(self, beats: Sequence[LogRecord]) -> None:
        for record in beats:
            try:
                worker_id, state = said_in(record)
            except Undecodable:
                continue  # routers cannot read it either
            if state is None:
                self._membership.buried(worker_id)
                self._core.buried(worker_id, self._now_ms())
            else:
                self._membership.heard(state)
                self._core.heard(state)

    async def _control_positions(self) -> dict[TopicPartition, int]:
        """Where to begin: some minutes back, for cancels of work that waits; some heartbeats back.

        Raises LogError after a while.
        """
        control = self._ports.control
        now_ms = self._now_ms()
        since_ms = {
            self._topics.control.name: now_ms - KEEP_MS,
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
                _log.warning("control_positions_failed", error=str(error), repeats=True)
                await asyncio.sleep(0.2)

    async def _learn_generated_ends(self) -> None:
        """Of the home partitions; only a help, for read-backs that begin there."""
        homes = [TopicPartition(self._topics.generated.name, number) for number in self._core.config.home_partitions]
        try:
            ends = await self._ports.control.ends(homes)
        except LogError as error:
            _log.warning("generated_ends_unknown", error=str(error))
        else:
            self._core.generated_ends({home.partition: end for home, end in ends.items()})

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._core.engine_tells(self._ports.engine.stats(), self._now_ms())
            self._after_event()
            self._tell_failing()

    def _tell_failing(self) -> None:
        """Routers are to know it before they send more."""
        failing = self._core.failing
        if failing == self._failing:
            return
        if failing is None:
            _log.info("engine_answers_again")
        elif self._failing is None or failing.until_ms != self._failing.until_ms:
            _log.error("engine_fails_requests", failed=failing.failed, attempts=failing.attempts, repeats=True)
        self._failing = failing
        self._metrics.failing(is_failing=failing is not None)
        self._send_state()

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            if self._lanes is not None:
                await self._lanes.commit()

    # Heartbeat

    def _bury(self, worker_id: str) -> None:
        self._publish(Publish(self._topics.workers.name, None, worker_id, None, None))

    async def _beat(self) -> None:
        while True:
            self._send_state()
            self._tell_presence()
            for worker_id in self._membership.take_lost(self._now_ms()):
                _log.info("buried", lost_worker=worker_id)
                self._bury(worker_id)
            await asyncio.sleep(beat_every_ms(self._settings.lease_ms) / 1_000)

    def _tell_presence(self) -> None:
        now_ms = self._now_ms()
        for hour_ms in self._presence.due(now_ms, is_ready=self._life == "ready"):
            on_failure = partial(self._presence.undelivered, hour_ms, now_ms)
            self._publish(presence(self._core.config, hour_ms), on_failure)

    def _send_state(self) -> None:
        now_ms = self._now_ms()
        tokens, since_ms = self._tokens_at_beat
        elapsed_ms = now_ms - since_ms
        tokens_per_second = (self._core.generated_tokens - tokens) * 1_000 / elapsed_ms if elapsed_ms > 0 else 0.0
        if elapsed_ms >= BEAT_MS:
            self._tokens_at_beat = (self._core.generated_tokens, now_ms)
        engine = self._ports.engine
        stats = engine.stats()
        self._metrics.memory(stats, self._core.kv_blocks_reserved)
        self._metrics.gauges(stats, self._core.waiting(), self._core.oldest_waiting_ms(now_ms))
        state = self._core.state(self._life, stats, round(tokens_per_second, 1), engine.accepts_seed, now_ms)
        self._metrics.beat(state)
        self._publish(Publish(self._topics.workers.name, None, state.worker_id, state.encode(), None))
