"""Runs the stage table over one event, to everything acknowledged. Knows neither Faust nor Kafka.

An event ends in one of these ways, and only then may be acknowledged: admitted, refused (an ending), or a dead letter.
Whatever else happens is retried a bounded number of times; a log that does not take an outcome raises MustEnd,
after which the process ends without acknowledging.

A producer's job that gets `NotYet` (its tenant's quota or its pool has no room) keeps its place in the queue and is
tried again. A tenant has few places, and all of them together have half of what may be in work: where these are taken,
the next job steps aside, into a topic where only such jobs stand, so that others get by. Nobody keeps a place for long,
since the commit stands behind it: then the job goes to the end of the queue that it came from.

While the quota store is away, an event waits for it: only the store knows whether an earlier delivery was admitted, and
where that stands in `generated`; an ending written without asking could be a second one. After the event's deadline it
can only be refused, and the refusal waits as well. What was opened ends at its deadline meanwhile, by post-safety; the
rest waits in Kafka, as if admission itself were away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeVar

import structlog

from agents.admission import metrics
from agents.admission.catching_up import TIERS
from agents.admission.entrances import (
    CANCELLED,
    ClaimedJob,
    JobReaders,
    claimed_job,
    intake,
    is_of_gateway,
    read_batch_line,
    read_request,
)
from agents.admission.in_order import MAX_BYTES_IN_WORK
from agents.admission.moving import Nowhere, moved
from agents.admission.places import Place, Places, Taken
from agents.admission.publication import Publication
from agents.admission.publisher import MustEnd, Publisher, PublishTooLarge
from agents.admission.refusals import DEADLINE_PASSED, UNAVAILABLE, Buried, Origin, Refused, too_large
from agents.admission.services import Services
from agents.admission.stages import FUSED, ROOM, STAGES, Stage, StageResult, weight_of
from agents.admission.turns import Pace
from agents.admission.validation import readmitted
from agents.quota.port import EpochLost, Finished, NotYet, QuotaUnavailable
from agents.safety.output_policies import OutputPolicyWriter
from schemas.admission import Admission, Decision, Move
from schemas.base import Record
from schemas.codec import Undecodable, decode
from schemas.generated import Source
from schemas.request import Request
from streams.clocks import monotonic_ms
from streams.log.port import LogError, LogRecord

FIRST_RETRY_S = 0.05
LAST_RETRY_S = 0.8
HOLD_S = 0.25
PLACES = 64
"""Of one tenant, in each queue of jobs; fewer where they hold an eighth of the bytes that may be in work."""
STAY_MS = 60_000
ASIDE_PER_SECOND = 20
"""Jobs that go round in the topic of those that stepped aside: each is written anew."""
LATER_PER_SECOND = 100
"""Requests that go round in `admission.later`, since their pool is full and another is not: each is written anew."""
STORE_HOLD_S = 10.0
"""More than one attempt at a silent store, or at a silent log, can take."""
_log = structlog.get_logger()

T = TypeVar("T")
R = TypeVar("R", bound=Record)
Recover = Callable[[], Awaitable[None]]
"""Rebuilds the quota store after `EpochLost`; returns when decisions may be taken again, or raises MustEnd."""
Handle = Callable[[LogRecord], Awaitable[None]]
Destination = Callable[[Request | Admission], str]
"""The topic that it goes to."""


def _decoded(schema: type[R], record: LogRecord) -> R:
    """Raises Buried."""
    try:
        return decode(schema, record.value)
    except Undecodable as error:
        raise Buried(error.reason, error.detail) from None


def places_among(in_flight: int, bytes_in_work: int = MAX_BYTES_IN_WORK) -> Places:
    """Where jobs wait, of what may be in work: half of that never waits, or nobody would get by."""
    return Places(Taken(PLACES, bytes_in_work // 8), Taken(in_flight // 2, bytes_in_work // 2), STAY_MS)


@dataclass(frozen=True, slots=True)
class Entry:
    """Whose turn a job takes at the intake, and how it is handled when it comes. `rank`: its tenant's tier's."""

    holder: str
    handle: Handle
    rank: int = len(TIERS)


@dataclass(slots=True)
class _Waiting:
    """One event's stay in a queue. It takes a place only when it has to wait. `generation`: in which it was read."""

    places: Places | None
    generation: int
    place: Place | None = None

    def may_go_on(self, record: LogRecord, holder: Hashable, now_ms: int) -> bool:
        if self.place is None and self.places is not None:
            self.place = self.places.take(record.topic, holder, len(record.value or b""), now_ms)
        return self.place is not None and now_ms < self.place.until_ms

    def end(self) -> None:
        if self.place is not None:
            self.place.leave()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`handle_*` return when the event may be acknowledged. Raise MustEnd."""

    services: Services
    publisher: Publisher
    recover: Recover
    max_attempts: int
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    output_policies: OutputPolicyWriter = field(default_factory=OutputPolicyWriter)
    readers: JobReaders = field(default_factory=JobReaders)
    places: Places = field(default_factory=lambda: places_among(256))
    rounds: Pace = field(default_factory=lambda: Pace(ASIDE_PER_SECOND))
    later_rounds: Pace = field(default_factory=lambda: Pace(LATER_PER_SECOND))
    monotonic_ms: Callable[[], int] = monotonic_ms
    """For what waits here; Unix time may be set."""
    generation: Callable[[], int] = lambda: 0
    """Of the group, another one with each balance: what was read in an earlier one comes again."""

    @property
    def publication(self) -> Publication:
        s = self.services
        return Publication(s.topics, self.publisher, s.quota, s.directory, s.catalog, self.output_policies)

    async def handle_request(self, record: LogRecord, stages: Sequence[Stage] = FUSED) -> None:
        """A record of `requests`, through `stages`: all of them (fused) or the first (split)."""
        await self._handle(record, "validation", self._read_request, stages, self._behind(stages))

    async def put_aside(self, record: LogRecord) -> None:
        """A record of `requests`, proved, and written to `admission.later`: it gives way to what stands behind it."""
        later = self.services.topics.later.name
        await self._handle(record, "validation", self._read_request, (), lambda _: later)

    async def handle_later(self, record: LogRecord, stages: Sequence[Stage] = FUSED) -> None:
        """A record of `admission.later`, as `handle_request`. It was proved before it stepped aside."""
        await self._handle(record, "validation", self._read_later, stages, self._behind(stages))

    async def go_round(self, record: LogRecord) -> None:
        """A record of `admission.later`, written to its end, at a pace. A crash behind that: quota decides once."""
        generation, wait_s = self.generation(), self.later_rounds.wait_s(self.monotonic_ms() / 1_000)
        self._hold(record, wait_s + STORE_HOLD_S)
        await self.sleep(wait_s)
        if self.generation() == generation:
            # Otherwise a balance has begun: it comes again, here or elsewhere.
            await self._handle(record, "validation", self._read_later, (), lambda _: record.topic)

    async def handle_job(self, record: LogRecord) -> None:
        """A record of `intake.batch`: proved, validated, and put into the queue of its pool."""
        await self.enter_job(record).handle(record)

    def enter_job(self, record: LogRecord) -> Entry:
        """The first half of `handle_job`. What nobody is proved to have written takes turns of nobody's."""
        claimed: ClaimedJob | Request | Refused | Exception
        try:
            reading = read_batch_line if is_of_gateway(record) else claimed_job
            claimed = reading(record, self.services)
        except Exception as error:  # noqa: BLE001
            # It becomes a dead letter where its handling reads it.
            claimed = error
        holder = claimed.scope.tenant_id if isinstance(claimed, Request) else ""
        if isinstance(claimed, Refused) and not claimed.unproved:
            holder = claimed.origin.scope.tenant_id
        if isinstance(claimed, ClaimedJob) and claimed.signed:
            holder = claimed.tenant_id

        async def read(_record: LogRecord) -> StageResult:
            if isinstance(claimed, Exception):
                raise claimed
            return await intake(claimed, self.services, self.readers) if isinstance(claimed, ClaimedJob) else claimed

        tenant = self.services.directory.tenant(holder) if holder else None
        rank = len(TIERS) if tenant is None else TIERS.index(tenant.tier)
        return Entry(holder, lambda job: self._handle(job, "intake", read, STAGES[:1], self._jobs_of_pool), rank)

    async def handle_queued_job(self, record: LogRecord, stages: Sequence[Stage] = STAGES[1:]) -> None:
        """A record of a pool's `admission.jobs`, or of `admission.aside`: waits for room, then goes through `stages`.

        One of these is the quota stage, so that nobody waits among requests.
        """
        behind = self._behind(stages)
        await self._handle(record, "jobs", self._read_admission, (ROOM, *stages), behind, self.places)

    async def handle_admission(self, record: LogRecord, stages: Sequence[Stage]) -> None:
        """A record of a topic between two stages."""
        await self._handle(record, stages[0].name, self._read_admission, stages, self._behind(stages))

    async def handle_moved(self, record: LogRecord) -> None:
        """A record of `admission.moved`: a response that goes to another pool. Its place is stored before anybody hears
        of it, so a crash before the acknowledgement has it put there again.
        """
        move = await self._read(record, "moved", self._read_move)
        if move is None:
            return
        try:
            place = await self._attempts(record, "moved", lambda: moved(move, self.services), move.opened.deadline_ms)
        except MustEnd:
            raise
        except (QuotaUnavailable, LogError):
            # Post-safety has ended it by now.
            place = Nowhere(is_over=True)
        except Exception as error:  # noqa: BLE001
            _log.exception("stage_failed", stage="moved", response_id=move.response_id)
            await self._bury(record, "moved", Buried("stage_failed", type(error).__name__))
            place = Nowhere()
        if not isinstance(place, Nowhere):
            await self._put(move, *place)
        elif place.is_over:
            metrics.outcome("finished").inc()
        else:
            await self._not_moved(move)

    async def _put(self, move: Move, admission: Admission, decision: Decision) -> None:
        admission = admission.model_copy(update={"stage_ms": move.opened.stage_ms})
        weight = weight_of(admission, decision.lane, self.services)
        self.services.workers.routed(decision.worker_id, move.response_id, weight, self.services.clock_ms())
        try:
            await self.publication.moved(admission, decision, move, self.services.clock_ms())
        except PublishTooLarge:
            await self._not_moved(move)
            return
        metrics.outcome("moved").inc()
        metrics.fell_back(admission.fallback)
        _log.info("moved", response_id=move.response_id, move=move.move, pool=decision.pool, why=move.failed.code.value)

    async def _not_moved(self, move: Move) -> None:
        await self.publication.not_moved(move)
        metrics.outcome("not_moved").inc()

    def _hold(self, record: LogRecord, for_s: float) -> None:
        self.services.on_hold(record.topic, for_s)

    def _behind(self, stages: Sequence[Stage]) -> Destination | None:
        topic_after = stages[-1].topic_after
        return None if topic_after is None else lambda _: topic_after(self.services.topics)

    def _jobs_of_pool(self, job: Request | Admission) -> str:
        assert isinstance(job, Admission), "validation has named its pool"
        return self.services.topics.jobs(job.pool).name

    async def _read_request(self, record: LogRecord) -> StageResult:
        return self._unless_cancelled(read_request(record, self.services))

    async def _read_later(self, record: LogRecord) -> StageResult:
        return self._unless_cancelled(_decoded(Request, record))

    def _unless_cancelled(self, event: Request | Refused) -> StageResult:
        """What was cancelled before it was read need not begin to end. Where an earlier delivery was routed, it ends
        beside its `opened`, as a producer's job does that is cancelled.
        """
        if isinstance(event, Request) and event.response_id in self.services.cancels:
            return Refused(Origin.of(event), CANCELLED)
        return event

    async def _read_admission(self, record: LogRecord) -> Admission:
        return _decoded(Admission, record)

    async def _read_move(self, record: LogRecord) -> Move:
        return _decoded(Move, record)

    async def _handle(
        self,
        record: LogRecord,
        first_stage: str,
        read: Callable[[LogRecord], Awaitable[StageResult]],
        stages: Sequence[Stage],
        destination: Destination | None,
        places: Places | None = None,
    ) -> None:
        """`destination`: where an admission goes behind these stages; None: it is decided by them, and published.

        `places`: where jobs wait; None: nobody waits here.
        """
        metrics.IN_FLIGHT.inc()
        waiting = _Waiting(places, self.generation())
        try:
            event = await self._read(record, first_stage, read)
            if event is None:
                return
            try:
                for stage in stages:
                    if not isinstance(event, Request | Admission):
                        break
                    result = await self._until_it_may(record, stage, event, waiting)
                    if isinstance(result, NotYet):
                        assert isinstance(event, Admission), "only jobs wait, and only behind the first stage"
                        await self._requeue(record, event, waiting)
                        return
                    event = result
                if isinstance(event, Refused):
                    event = await self._refuse(record, event)
                if event is not None:
                    await self._conclude(record, destination, event)
            except PublishTooLarge:
                if not isinstance(event, Request | Admission):
                    raise
                # If `opened` stands already, quota knows where, and the ending goes beside it.
                _log.warning("record_too_large", response_id=event.response_id)
                if isinstance(event, Admission) and event.decision is not None:
                    self.services.workers.not_routed(event.decision.worker_id, event.response_id)
                await self._refuse(record, too_large(event))
        finally:
            waiting.end()
            metrics.IN_FLIGHT.dec()
        metrics.REQUEST_SECONDS.observe(max(self.services.clock_ms() - record.timestamp_ms, 0) / 1_000)

    async def _until_it_may(
        self, record: LogRecord, stage: Stage, event: Request | Admission, waiting: "_Waiting"
    ) -> StageResult | NotYet:
        """The stage's result; NotYet when the event has no place to wait in, or none any more."""
        while isinstance(result := await self._stage(record, stage, event), NotYet):
            origin = Origin.of(event)
            if self.services.clock_ms() >= origin.deadline_ms:
                return Refused(origin, DEADLINE_PASSED)
            if self.generation() != waiting.generation:
                return result
            if not waiting.may_go_on(record, origin.scope.tenant_id, self.monotonic_ms()):
                return result
            self._hold(record, 10 * HOLD_S)
            await self.sleep(HOLD_S)
        return result

    async def _requeue(self, record: LogRecord, job: Admission, waiting: "_Waiting") -> None:
        """Writes the job again. A crash after it: both are handled, and quota decides once."""
        aside = self.services.topics.aside.name
        if record.topic == aside:
            wait_s = self.rounds.wait_s(self.monotonic_ms() / 1_000)
            self._hold(record, wait_s + STORE_HOLD_S)
            await self.sleep(wait_s)
        if self.generation() != waiting.generation:
            # A balance has begun: it cannot be acknowledged any more, and comes again, here or elsewhere.
            return
        to = aside if waiting.place is None else record.topic
        await self.publisher.publish(to, job.encode(), key=job.response_id)
        metrics.outcome("requeued").inc()

    async def _read(self, record: LogRecord, stage: str, read: Callable[[LogRecord], Awaitable[T]]) -> T | None:
        try:
            return await read(record)
        except Buried as buried:
            await self._bury(record, stage, buried)
        except Exception as error:  # noqa: BLE001
            # A defect of ours in reading: the same bytes would raise it again.
            _log.exception("stage_failed", stage=stage, topic=record.topic, offset=record.offset)
            await self._bury(record, stage, Buried("stage_failed", type(error).__name__))
        return None

    async def _stage(self, record: LogRecord, stage: Stage, event: Request | Admission) -> StageResult | NotYet:
        """The stage's result, after bounded retries; an ending where they were in vain."""
        started = perf_counter()
        try:
            result = await self._attempts(
                record, stage.name, lambda: stage.function(event, self.services), _deadline_ms(event)
            )
        except QuotaUnavailable:
            result = Refused(Origin.of(event), DEADLINE_PASSED)
        except MustEnd:
            raise
        except Exception as error:  # noqa: BLE001
            _log.exception("stage_failed", stage=stage.name, response_id=event.response_id)
            await self._bury(record, stage.name, Buried("stage_failed", type(error).__name__))
            result = Refused(Origin.of(event), UNAVAILABLE)
        metrics.stage_seconds(stage.name).observe(perf_counter() - started)
        if isinstance(result, Admission):
            result.stage_ms = {**result.stage_ms, stage.name: self.services.clock_ms()}
        return result

    async def _attempts(
        self, record: LogRecord, stage: str, call: Callable[[], Awaitable[T]], deadline_ms: int | None = None
    ) -> T:
        """Waits for the quota store, and for the log where a record is read again; raises QuotaUnavailable or LogError
        if it is away at `deadline_ms`.

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
            except (QuotaUnavailable, LogError):
                if deadline_ms is not None and self.services.clock_ms() >= deadline_ms:
                    raise
                self._hold(record, STORE_HOLD_S)
            except Exception:
                failures += 1
                if failures >= self.max_attempts:
                    raise
            metrics.RETRIES.labels(stage).inc()
            await self.sleep(wait_s)
            wait_s = min(wait_s * 2, LAST_RETRY_S)

    async def _conclude(
        self, record: LogRecord, destination: Destination | None, event: Request | Admission | Finished
    ) -> None:
        match event:
            case Finished():
                metrics.outcome("finished").inc()
            case Request() | Admission() if destination is not None:
                await self.publisher.publish(destination(event), event.encode(), key=event.response_id)
                if isinstance(event, Request):
                    metrics.outcome("put_aside").inc()
            case Admission(decision=decision) if decision is not None:
                source = Source(topic=record.topic, partition=record.partition, offset=record.offset)
                await self.publication.admitted(event, decision, self.services.clock_ms(), source)
                metrics.outcome("replayed" if event.replayed else "admitted").inc()
                if not event.replayed:
                    metrics.decided(event, decision)
            case Admission() | Request():
                raise AssertionError("the last stage left a request undecided")

    async def _refuse(self, record: LogRecord, refused: Refused) -> Admission | None:
        """What an earlier delivery was admitted as, where it was and can be: then it is not refused."""
        if refused.buried is not None:
            stage = "intake" if record.topic == self.services.topics.intake_batch.name else STAGES[0].name
            await self._bury(record, stage, refused.buried)
        # Without a deadline: whether and where the response was opened is known to the store alone.
        decided = await self._attempts(record, "refusal", lambda: self.publication.refused(refused))
        if decided is not None and refused.request is not None:
            request = refused.request
            admission = await self._attempts(record, "refusal", lambda: readmitted(request, decided, self.services))
            if admission is not None:
                return admission
            refused = replace(refused, request=None)
            await self._attempts(record, "refusal", lambda: self.publication.refused(refused))
        metrics.outcome(refused.refusal.code.value).inc()
        return None

    async def _bury(self, record: LogRecord, stage: str, buried: Buried) -> None:
        await self.publication.bury(record, stage, buried, self.services.clock_ms())
        metrics.DEAD_LETTERS.labels(buried.reason).inc()
        _log.warning(
            "dead_letter", stage=stage, reason=buried.reason, topic=record.topic, partition=record.partition,
            offset=record.offset,
        )  # fmt: skip


def _deadline_ms(event: Request | Admission) -> int:
    return (event.request if isinstance(event, Admission) else event).deadline_ms
