"""Runs the stage table over one event, to everything acknowledged. Knows neither Faust nor Kafka.

An event ends in one of these ways, and only then may be acknowledged: admitted, refused (an ending), or a dead letter.
Whatever else happens is retried a bounded number of times; a log that does not take an outcome raises MustEnd,
after which the process ends without acknowledging.

While the quota store is away, an event waits for it: only the store knows whether an earlier delivery was admitted, and
where that stands in `generated`; an ending written without asking could be a second one. After the event's deadline it
can only be refused, and the refusal waits as well. What was opened ends at its deadline meanwhile, by post-safety; the
rest waits in Kafka, as if admission itself were away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import structlog

from agents import metrics
from agents.admission.entrances import intake, read_request
from agents.admission.publication import MustEnd, Publication, Publisher, RecordTooLarge
from agents.admission.refusals import DEADLINE_PASSED, TOO_LARGE, UNAVAILABLE, Buried, Origin, Refused
from agents.admission.routing import overloaded
from agents.admission.services import Services
from agents.admission.stages import STAGES, Stage, StageResult
from agents.quota.store import EpochLost, Finished, QuotaUnavailable
from agents.safety.output_policies import OutputPolicyWriter
from schemas.admission import Admission
from schemas.codec import Undecodable, decode
from schemas.request import Request
from streams.log.port import LogRecord

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 0.8
HOLD_S = 0.25
STORE_HOLD_S = 10.0
"""More than one attempt at a silent store can take."""
_log = structlog.get_logger()

T = TypeVar("T")
Recover = Callable[[], Awaitable[None]]
"""Rebuilds the quota store after `EpochLost`; returns when decisions may be taken again, or raises MustEnd."""
Destination = Callable[[Admission], str]
"""The topic that an admission goes to."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`handle_*` return when the event may be acknowledged. Raise MustEnd."""

    services: Services
    publisher: Publisher
    recover: Recover
    max_attempts: int
    on_hold: Callable[[LogRecord, float], None] = lambda _record, _for_s: None
    """Told that a record waits on purpose, for so many seconds."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    output_policies: OutputPolicyWriter = field(default_factory=OutputPolicyWriter)

    @property
    def publication(self) -> Publication:
        s = self.services
        return Publication(s.topics, self.publisher, s.quota, s.directory, self.output_policies)

    async def handle_request(self, record: LogRecord, stages: Sequence[Stage] = STAGES) -> None:
        """A record of `requests`, through `stages`: all of them (fused) or the first (split)."""
        await self._handle(record, "validation", self._read_request, stages, self._behind(stages))

    async def handle_job(self, record: LogRecord) -> None:
        """A record of `intake.batch`: proved, validated, and put into the queue of its pool."""
        await self._handle(record, "intake", lambda job: intake(job, self.services), STAGES[:1], self._jobs_of_pool)

    async def handle_queued_job(self, record: LogRecord, stages: Sequence[Stage] = STAGES[1:]) -> None:
        """A record of a pool's `admission.jobs`: waits while the pool is full, then goes through `stages`.

        Without any (split) it goes where requests go behind the first stage.
        """
        await self._handle(record, "jobs", self._read_queued_job, stages, self._behind(stages or STAGES[:1]))

    async def handle_admission(self, record: LogRecord, stages: Sequence[Stage]) -> None:
        """A record of a topic between two stages."""
        await self._handle(record, stages[0].name, self._read_admission, stages, self._behind(stages))

    def _behind(self, stages: Sequence[Stage]) -> Destination | None:
        topic_after = stages[-1].topic_after
        return None if topic_after is None else lambda _: topic_after(self.services.topics)

    def _jobs_of_pool(self, job: Admission) -> str:
        return self.services.topics.jobs(job.pool).name

    async def _read_request(self, record: LogRecord) -> StageResult:
        return read_request(record, self.services)

    async def _read_queued_job(self, record: LogRecord) -> StageResult:
        """Waits, unread by anybody else, until there is room, or until the job has expired."""
        job = await self._read_admission(record)
        services = self.services
        while (now_ms := services.clock_ms()) < job.request.deadline_ms:
            if not overloaded(services.workers.live(job.pool, now_ms), job.lane, services.queue_bound):
                return job
            self.on_hold(record, 10 * HOLD_S)
            await self.sleep(HOLD_S)
        return Refused(Origin.of(job), DEADLINE_PASSED)

    async def _read_admission(self, record: LogRecord) -> Admission:
        try:
            return decode(Admission, record.value)
        except Undecodable as error:
            raise Buried(error.reason, error.detail) from None

    async def _handle(
        self,
        record: LogRecord,
        first_stage: str,
        read: Callable[[LogRecord], Awaitable[StageResult]],
        stages: Sequence[Stage],
        destination: Destination | None,
    ) -> None:
        """`destination`: where an admission goes behind these stages; None: it is decided by them, and published."""
        metrics.ADMISSION_IN_FLIGHT.inc()
        try:
            event = await self._read(record, first_stage, read)
            if event is None:
                return
            for stage in stages:
                if not isinstance(event, Request | Admission):
                    break
                event = await self._stage(record, stage, event)
            try:
                await self._conclude(record, destination, event)
            except RecordTooLarge:
                if not isinstance(event, Request | Admission):
                    raise
                # If `opened` stands already, quota knows where, and the ending goes beside it.
                _log.warning("record_too_large", response_id=event.response_id)
                await self._refuse(record, Refused(Origin.of(event), TOO_LARGE))
        finally:
            metrics.ADMISSION_IN_FLIGHT.dec()
        metrics.ADMISSION_SECONDS.observe(max(self.services.clock_ms() - record.timestamp_ms, 0) / 1_000)

    async def _read(
        self, record: LogRecord, stage: str, read: Callable[[LogRecord], Awaitable[StageResult]]
    ) -> StageResult | None:
        try:
            return await read(record)
        except Buried as buried:
            await self._bury(record, stage, buried)
        except Exception as error:  # noqa: BLE001
            # A defect of ours in reading: the same bytes would raise it again.
            _log.exception("stage_failed", stage=stage, topic=record.topic, offset=record.offset)
            await self._bury(record, stage, Buried("stage_failed", type(error).__name__))
        return None

    async def _stage(self, record: LogRecord, stage: Stage, event: Request | Admission) -> StageResult:
        """The stage's result, after bounded retries; an ending where they were in vain."""
        started = perf_counter()
        origin = Origin.of(event)
        try:
            result = await self._attempts(
                record, stage.name, lambda: stage.function(event, self.services), origin.deadline_ms
            )
        except QuotaUnavailable:
            result = Refused(origin, DEADLINE_PASSED)
        except MustEnd:
            raise
        except Exception as error:  # noqa: BLE001
            _log.exception("stage_failed", stage=stage.name, response_id=origin.response_id)
            await self._bury(record, stage.name, Buried("stage_failed", type(error).__name__))
            result = Refused(origin, UNAVAILABLE)
        metrics.admission_stage_seconds(stage.name).observe(perf_counter() - started)
        if isinstance(result, Admission):
            result.stage_ms = {**result.stage_ms, stage.name: self.services.clock_ms()}
        return result

    async def _attempts(
        self, record: LogRecord, stage: str, call: Callable[[], Awaitable[T]], deadline_ms: int | None = None
    ) -> T:
        """Waits for the quota store; raises QuotaUnavailable if it is away at `deadline_ms`.

        Raises whatever else `call` keeps raising.
        """
        wait_s = FIRST_RETRY_S
        failures = 0
        while True:
            try:
                return await call()
            except EpochLost:
                # Bounded by `recover` itself, which raises when the store cannot be rebuilt.
                await self.recover()
                continue
            except MustEnd:
                raise
            except QuotaUnavailable:
                if deadline_ms is not None and self.services.clock_ms() >= deadline_ms:
                    raise
                self.on_hold(record, STORE_HOLD_S)
            except Exception:
                failures += 1
                if failures >= self.max_attempts:
                    raise
            metrics.ADMISSION_RETRIES.labels(stage).inc()
            await self.sleep(wait_s)
            wait_s = min(wait_s * 2, LAST_RETRY_S)

    async def _conclude(self, record: LogRecord, destination: Destination | None, event: StageResult) -> None:
        match event:
            case Finished():
                metrics.admission_outcome("finished").inc()
            case Refused():
                await self._refuse(record, event)
            case Admission() if destination is not None:
                await self.publisher.publish(destination(event), event.encode(), key=event.response_id)
            case Admission(decision=decision) if decision is not None:
                await self.publication.admitted(event, decision, self.services.clock_ms())
                # Without a verdict of its own, an earlier delivery had decided it.
                metrics.admission_outcome("replayed" if event.verdict is None else "admitted").inc()
            case Admission() | Request():
                raise AssertionError("the last stage left a request undecided")

    async def _refuse(self, record: LogRecord, refused: Refused) -> None:
        if refused.buried is not None:
            stage = "intake" if record.topic == self.services.topics.intake_batch.name else STAGES[0].name
            await self._bury(record, stage, refused.buried)
        # Without a deadline: whether and where the response was opened is known to the store alone.
        await self._attempts(record, "refusal", lambda: self.publication.refused(refused))
        metrics.admission_outcome(refused.refusal.code.value).inc()

    async def _bury(self, record: LogRecord, stage: str, buried: Buried) -> None:
        await self.publication.bury(record, stage, buried, self.services.clock_ms())
        metrics.ADMISSION_DEAD_LETTERS.labels(buried.reason).inc()
        _log.warning(
            "dead_letter", stage=stage, reason=buried.reason, topic=record.topic, partition=record.partition,
            offset=record.offset,
        )  # fmt: skip
