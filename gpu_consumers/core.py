"""What a worker decides: which work to start, how to fence it, when it is done. Pure.

`WorkerCore` is told what happened (records, claims, deliveries, engine steps, the time) and answers with effects, which
its shell carries out in order. No effect needs the answer of another: answers come back as further events.

The life of one piece of work:

    queued → claiming → running → closing → done          (nobody had it)
                      → fencing → reading → queued …      (somebody may have begun it)
                      → waiting → queued …                (another worker's lease, or a retry)

Only what enters the engine waits for a slot in it. What waits is looked up among the claims meanwhile: to end what a
dead worker began takes neither slot nor engine, and its client waits for that ending.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Literal, Protocol

from gpu_consumers.claim import Claim
from gpu_consumers.engines.port import EngineDelta, EngineRequest, EngineStats
from gpu_consumers.frames import MAX_FRAME_ROWS, FrameColumns, HeldRows, joined
from gpu_consumers.scheduler import Queued, Scheduler
from gpu_consumers.takeover import Decision
from schemas.base import Record, Scope
from schemas.codec import Undecodable, decode
from schemas.control import CONTROL, AttemptVoid, Cancel
from schemas.dead_letter import DeadLetter
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Ending, Fence
from schemas.request import LANES, AdmittedRequest, Lane, Sampling
from schemas.usage import ComputeRecord
from schemas.worker import WorkerState
from streams.deadlines import Deadlines
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import LogRecord, TopicPartition
from streams.topics import Topics

MAX_ENGINE_RETRIES = 3
RETRY_MS = 1_000
REMEMBERED_MS = 300_000
MAX_REMEMBERED = 65_536
MAX_RECENT = 4_096
MAX_LOOKS = 128
"""Look-ups on their way at once: one round trip, so that claims of new work do not wait behind a whole backlog."""
LANE_SHARES: dict[Lane, float] = {Lane.INTERACTIVE: 1.0, Lane.STANDARD: 0.8, Lane.BATCH: 0.5}
"""The part of the bounds of uncommitted work that a lane and those below it may fill: the rest is for higher ones."""
_NO_SAMPLING = Sampling()
_NO_PROMPT = [0]
_PRIORITY = {lane: index for index, lane in enumerate(LANES)}


# Effects


@dataclass(frozen=True, slots=True)
class FenceSent:
    response_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class FrameSent:
    """`finished` are the attempts whose last row it holds."""

    attempt_ids: frozenset[str]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndingSent:
    response_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class DeadLetterSent:
    tracker: OffsetTracker
    offset: int


Receipt = FenceSent | FrameSent | EndingSent | DeadLetterSent


@dataclass(frozen=True, slots=True)
class Publish:
    """`receipt` comes back with the delivery; None: nothing depends on it."""

    topic: str
    partition: int | None
    key: str
    value: bytes
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class AskClaim:
    """`only_begun`: claim it if somebody has begun it, else leave it to whoever has a slot for it."""

    response_id: str
    attempt_id: str
    only_begun: bool


@dataclass(frozen=True, slots=True)
class AskReadBack:
    """Fold partition `partition` of `generated` from `first_offset` up to and including `fence_offset`."""

    response_id: str
    attempt_id: str
    partition: int
    first_offset: int
    fence_offset: int


@dataclass(frozen=True, slots=True)
class Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    attempt_id: str


@dataclass(frozen=True, slots=True)
class FinishClaim:
    response_id: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    response_id: str


Effect = Publish | AskClaim | AskReadBack | Submit | Abort | FinishClaim | ReleaseClaim


class Observer(Protocol):
    """Told what metrics count; decides nothing."""

    def started(self, lane: Lane, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens: int, first_token_ms: int, last_token_ms: int) -> None: ...


class NoObserver:
    def started(self, lane: Lane, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens: int, first_token_ms: int, last_token_ms: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CoreConfig:
    worker_id: str
    pool: str
    model: str
    engine: Literal["vllm", "simulated"]
    topics: Topics
    home_partitions: tuple[int, ...]
    lease_ms: int
    max_running: int
    healthy_buffer: int
    max_uncommitted_records: int
    max_uncommitted_bytes: int
    coalesce_ms: int
    coalesce_rows: int


class _Phase(Enum):
    QUEUED = auto()
    CLAIMING = auto()
    FENCING = auto()
    READING = auto()
    RUNNING = auto()
    WAITING = auto()
    CLOSING = auto()


_ENGAGED = frozenset({_Phase.CLAIMING, _Phase.FENCING, _Phase.READING, _Phase.RUNNING})
_IN_SLOT = frozenset({_Phase.CLAIMING, _Phase.RUNNING})

_Plan = Literal["claim", "fresh", "takeover", "generate"]


@dataclass(slots=True, eq=False)
class _Work:
    """One response that this worker has read. `plan` is what happens when the scheduler gives it out."""

    request: AdmittedRequest
    prompt: "array[int]"
    prompt_tokens: int
    scope: Scope
    phase: _Phase = _Phase.QUEUED
    plan: _Plan = "claim"
    sources: list[tuple[OffsetTracker, int]] = field(default_factory=list)
    attempt_id: str = ""
    claimed: bool = False
    must_take_over: bool = False
    cancelled: bool = False
    engine_retries: int = 0
    retry_at_ms: int = 0
    submitted_at_ms: int = 0
    first_token_at_ms: int = 0
    last_token_at_ms: int = 0
    next_sequence: int = 1
    cached_tokens: int = 0
    outcome: str = ""
    # Of the request; looked at with every token, so kept at hand.
    response_id: str = field(init=False)
    partition: int = field(init=False)

    def __post_init__(self) -> None:
        self.response_id = self.request.response_id
        self.partition = self.request.generated_partition


@dataclass(frozen=True, slots=True)
class _Ended:
    """What it takes to end a response once more: `request` without its prompt, as JSON, a tenth of it as an object."""

    forget_at_ms: int
    attempt_id: str
    prompt_tokens: int
    request: bytes

    @staticmethod
    def of(work: _Work, forget_at_ms: int) -> "_Ended":
        bare = work.request.model_copy(update={"prompt_token_ids": _NO_PROMPT, "sampling": _NO_SAMPLING})
        json = bare.model_dump_json(exclude_defaults=True).encode()
        return _Ended(forget_at_ms, work.attempt_id, work.prompt_tokens, json)

    def work(self) -> _Work:
        """Has no prompt: it can only be ended."""
        request = AdmittedRequest.model_validate_json(self.request)
        return _Work(request, array("I"), self.prompt_tokens, request.scope, attempt_id=self.attempt_id)


_Frames = dict[tuple[int, int], FrameColumns]
"""By partition, and by when the oldest token in it was generated, in microseconds."""


class WorkerCore:
    """Not thread-safe. `mint_attempt_id` gives unique ids. Call `effects` after every event and carry them out."""

    def __init__(
        self, config: CoreConfig, mint_attempt_id: Callable[[], str], observer: Observer = NoObserver()
    ) -> None:
        self.config = config
        self._mint = mint_attempt_id
        self._observer = observer
        self._scheduler = Scheduler()
        self._works: dict[str, _Work] = {}
        self._by_attempt: dict[str, _Work] = {}
        self._slots_taken = 0
        # What waits for a slot and was not looked up yet, and the look-ups on their way, by response.
        self._unlooked: deque[str] = deque()
        self._looks: dict[str, AskClaim] = {}
        self._look_not_before_ms = 0
        self._waiting: list[tuple[int, str]] = []
        self._deadlines = Deadlines()
        self._trackers: dict[TopicPartition, OffsetTracker] = {}
        self._next_offsets: dict[TopicPartition, int] = {}
        self._scopes: dict[Scope, Scope] = {}
        # Ids with the time until which they are remembered, oldest first.
        self._cancels: OrderedDict[str, int] = OrderedDict()
        self._halts: OrderedDict[str, int] = OrderedDict()
        self._recent: OrderedDict[str, _Ended] = OrderedDict()
        self._effects: list[Effect] = []
        self._held = HeldRows(config.coalesce_ms * 1_000, config.coalesce_rows)
        self._engine_ready = False
        self._draining = False
        self.generated_tokens = 0
        self.undecodable_control_records = 0

    def effects(self) -> list[Effect]:
        """What is to be done, in this order; each is given once."""
        effects, self._effects = self._effects, []
        return effects

    # Lanes

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._trackers[partition] = OffsetTracker()
            self._next_offsets[partition] = 0

    def revoked(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What to commit before they go. Unstarted work of theirs is forgotten, started work goes on.

        What waits for an engine that is away is given back: its next reader has one, or waits as well.
        """
        gone = {partition: self._trackers.pop(partition) for partition in partitions if partition in self._trackers}
        trackers = set(map(id, gone.values()))
        for work in list(self._works.values()):
            work.sources = [source for source in work.sources if id(source[0]) not in trackers]
            # The answer of a look-up decides what becomes of it: it may be ours by then.
            if work.sources or work.response_id in self._looks:
                continue
            if work.plan == "claim":
                if work.phase in (_Phase.QUEUED, _Phase.WAITING) and not work.claimed:
                    self._forget(work)
            elif work.phase is _Phase.QUEUED and not self._engine_ready:
                if work.claimed:
                    self._effects.append(ReleaseClaim(work.response_id))
                self._forget(work)
        return {partition: offset for partition, tracker in gone.items() if (offset := tracker.to_commit()) is not None}

    def lane_records(self, records: Sequence[LogRecord], now_ms: int) -> None:
        """Records of partitions that are not assigned (any more) are ignored: their owner reads them again. So are
        repeated ones."""
        for record in records:
            tracker = self._trackers.get(record.source)
            if tracker is None or record.offset < self._next_offsets[record.source]:
                continue
            self._next_offsets[record.source] = record.offset + 1
            tracker.started(record.offset, len(record.value or b""))
            try:
                request = decode(AdmittedRequest, record.value)
            except Undecodable as error:
                self._dead_letter(record, error, tracker, now_ms)
                continue
            self._admit(request, (tracker, record.offset), now_ms)

    def to_commit(self) -> dict[TopicPartition, int]:
        """Offsets below which everything ended."""
        return {
            partition: offset
            for partition, tracker in self._trackers.items()
            if (offset := tracker.to_commit()) is not None
        }

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            if (tracker := self._trackers.get(partition)) is not None:
                tracker.committed(offset)

    def over_share(self) -> set[TopicPartition]:
        """The assigned partitions of which no further records are to be read for now.

        When the open records of a lane and those below it together fill its share of the bounds (`LANE_SHARES`), all
        of these stop: whatever waits in lower lanes, a higher one has room of its own. A partition stops alone when
        so many records from its oldest open one on are not committed: after a crash all of them are read again.
        """
        over = {
            source
            for source, tracker in self._trackers.items()
            if tracker.uncommitted_count >= self.config.max_uncommitted_records
        }
        up_to_here: set[TopicPartition] = set()
        records = size_bytes = 0
        for lane in reversed(LANES):
            topic = self.config.topics.lane(self.config.pool, lane).name
            own = {source: tracker for source, tracker in self._trackers.items() if source.topic == topic}
            records += sum(tracker.open_count for tracker in own.values())
            size_bytes += sum(tracker.open_bytes for tracker in own.values())
            up_to_here |= own.keys()
            if self._fills(records, size_bytes, LANE_SHARES[lane]):
                over |= up_to_here
        return over

    def _fills(self, records: int, size_bytes: int, share: float) -> bool:
        config = self.config
        # One record fits into any share, or a lane would never be read under a tiny bound.
        return records >= max(share * config.max_uncommitted_records, 1) or size_bytes >= max(
            share * config.max_uncommitted_bytes, 1
        )

    # Control

    def control_records(self, records: Sequence[LogRecord], now_ms: int) -> None:
        for record in records:
            try:
                control = decode(CONTROL, record.value)
            except Undecodable:
                self.undecodable_control_records += 1
                continue
            if isinstance(control, AttemptVoid):
                if control.worker_id == self.config.worker_id:
                    self._void(control, now_ms)
                continue
            work = self._works.get(control.response_id)
            cancel = isinstance(control, Cancel)
            if work is None:
                self._remember(self._cancels if cancel else self._halts, control.response_id, now_ms)
            elif not cancel:
                self._stop(work, "halted")
                self._done(work, now_ms)
            else:
                work.cancelled = True
                # While another worker has the lease, the cancel is that worker's to answer.
                if work.phase is not _Phase.WAITING:
                    self._end(work, EndingCode.CANCELLED, now_ms)

    def _void(self, void: AttemptVoid, now_ms: int) -> None:
        work = self._works.get(void.response_id)
        ended = self._recent.get(void.response_id)
        if work is None and ended is not None and ended.attempt_id == void.attempt_id and void.why == "tokens_precede":
            # It ran to its end before the answer came. What it wrote is void: the older attempt has to be ended.
            del self._recent[void.response_id]
            work = self._works[void.response_id] = ended.work()
            self._deadlines.add(work.response_id, work.request.deadline_ms)
            self._take_over(work, now_ms)
            return
        if work is None or self._by_attempt.get(void.attempt_id) is not work:
            return
        self._stop(work, "void")
        if void.why == "ended":
            self._done(work, now_ms)
        elif void.why == "superseded" and not work.sources:
            self._forget(work)
        elif work.claimed and void.why != "superseded":
            self._take_over(work, now_ms)
        else:
            # Another's, or begun without a claim: whoever was first may be alive, so ask again before taking over.
            work.must_take_over = True
            self._wait(work, "claim", now_ms + RETRY_MS)

    # Time

    def tick(self, now_ms: int) -> None:
        """Deadlines, retries and new starts. Call it after every other event, and at least every 100 ms."""
        if self._held.overdue(now_ms * 1_000):
            self._publish_held()
        while self._waiting and self._waiting[0][0] <= now_ms:
            retry_at_ms, response_id = heappop(self._waiting)
            work = self._works.get(response_id)
            if work is None or work.phase is not _Phase.WAITING or work.retry_at_ms != retry_at_ms:
                continue
            if work.plan == "takeover":
                self._take_over(work, now_ms)
            else:
                self._enqueue(work, now_ms, front=True)
        for response_id in self._deadlines.take_due(now_ms):
            work = self._works[response_id]
            if work.phase is not _Phase.CLOSING:
                self._end(work, EndingCode.DEADLINE_EXCEEDED, now_ms)
        for memory in (self._cancels, self._halts):
            while memory and next(iter(memory.values())) <= now_ms:
                memory.popitem(last=False)
        while self._recent and next(iter(self._recent.values())).forget_at_ms <= now_ms:
            self._recent.popitem(last=False)
        self._start(now_ms)
        self._look_up(now_ms)

    def _start(self, now_ms: int) -> None:
        if not self._engine_ready or self._draining:
            return
        slots = self.config.max_running + self.config.healthy_buffer - self._slots_taken
        for item in self._scheduler.take(slots):
            work = self._works[item.response_id]
            self._observer.started(item.lane, now_ms - item.queued_at_ms)
            if work.plan == "claim":
                work.attempt_id = self._mint()
                self._set_phase(work, _Phase.CLAIMING)
                self._effects.append(AskClaim(work.response_id, work.attempt_id, only_begun=False))
            elif work.plan == "fresh":
                work.attempt_id = self._mint()
                self._generate_fresh(work, now_ms)
            else:
                self._submit(work, now_ms)

    def _look_up(self, now_ms: int) -> None:
        """Asks, of what found no slot, whether somebody has begun it."""
        if self._draining or now_ms < self._look_not_before_ms:
            return
        while self._unlooked and len(self._looks) < MAX_LOOKS:
            response_id = self._unlooked.popleft()
            work = self._works.get(response_id)
            if work is None or not self._waits_for_claim(work) or response_id in self._looks:
                continue
            look = AskClaim(response_id, self._mint(), only_begun=not work.must_take_over)
            self._looks[response_id] = look
            self._effects.append(look)

    @staticmethod
    def _waits_for_claim(work: _Work) -> bool:
        return work.phase is _Phase.QUEUED and work.plan == "claim"

    # Claims

    def claimed(self, response_id: str, attempt_id: str, claim: Claim | None, now_ms: int) -> None:
        """The answer to `AskClaim`; None when the store did not answer."""
        work = self._works.get(response_id)
        look = self._looks.get(response_id)
        if look is not None and look.attempt_id == attempt_id:
            del self._looks[response_id]
            self._looked_up(work, look, claim, now_ms)
        elif work is None or work.phase is not _Phase.CLAIMING or work.attempt_id != attempt_id:
            # Cancelled or expired meanwhile; what it was replaced by is marked when it ends.
            return
        elif claim is None and not work.must_take_over:
            # Without claims the fences alone decide; they are enough to be right.
            self._generate_fresh(work, now_ms)
        elif claim is not None and claim.state == "fresh" and not work.must_take_over:
            work.claimed = True
            self._generate_fresh(work, now_ms)
        else:
            self._not_fresh(work, claim, now_ms)

    def _looked_up(self, work: _Work | None, look: AskClaim, claim: Claim | None, now_ms: int) -> None:
        if work is None:
            if claim is not None and claim.state in ("fresh", "expired"):
                self._effects.append(ReleaseClaim(look.response_id))  # nothing, where it is not ours
        elif not self._waits_for_claim(work):
            # It found a slot, or ended, before the answer came: that is what decides.
            return
        elif claim is None or (claim.state == "fresh" and look.only_begun):
            if not work.sources:
                self._forget(work)
            elif claim is None:
                self._look_not_before_ms = now_ms + RETRY_MS
                self._unlooked.append(work.response_id)
        else:
            self._not_fresh(work, claim, now_ms)

    def _not_fresh(self, work: _Work, claim: Claim | None, now_ms: int) -> None:
        """Somebody has, had or may have begun it."""
        if claim is None:
            self._wait(work, "claim", now_ms + RETRY_MS)
        elif claim.state == "finished":
            self._done(work, now_ms)
        elif claim.state == "leased":
            if work.sources:
                self._wait(work, "claim", now_ms + max(claim.retry_in_ms, 1))
            else:
                self._forget(work)
        else:
            work.claimed = True
            self._take_over(work, now_ms)

    # Attempts

    def _generate_fresh(self, work: _Work, now_ms: int) -> None:
        self._by_attempt[work.attempt_id] = work
        self._fence(work, "fresh", now_ms)
        self._submit(work, now_ms)

    def _take_over(self, work: _Work, now_ms: int) -> None:
        """Another attempt may have begun: fence, then read back up to the fence."""
        self._scheduler.remove(work.response_id)
        self._drop_attempt(work)
        work.attempt_id = self._mint()
        work.must_take_over = True
        work.next_sequence = 1
        self._by_attempt[work.attempt_id] = work
        self._set_phase(work, _Phase.FENCING)
        self._fence(work, "takeover", now_ms)

    def _fence(self, work: _Work, kind: Literal["fresh", "takeover"], now_ms: int) -> None:
        request = work.request
        fence = Fence(
            stage_ms={**request.stage_ms, "worker": now_ms},
            response_id=work.response_id,
            scope=request.scope,
            attempt_id=work.attempt_id,
            worker_id=self.config.worker_id,
            kind=kind,
        )
        self._generated(work, fence, FenceSent(work.response_id, work.attempt_id))

    def read_back(self, response_id: str, attempt_id: str, decision: Decision, now_ms: int) -> None:
        """The answer to `AskReadBack`."""
        work = self._works.get(response_id)
        if work is None or work.phase is not _Phase.READING or work.attempt_id != attempt_id:
            return
        if decision == "ended":
            self._done(work, now_ms)
        elif decision == "superseded":
            self._wait(work, "claim", now_ms + RETRY_MS)
        elif work.cancelled:
            self._end(work, EndingCode.CANCELLED, now_ms)
        elif work.request.deadline_ms <= now_ms:
            self._end(work, EndingCode.DEADLINE_EXCEEDED, now_ms)
        elif decision == "interrupted" or len(work.prompt) < work.prompt_tokens:
            # Without its prompt it is one from `_recent`, which an older attempt's tokens precede.
            self._end(work, EndingCode.GENERATION_INTERRUPTED, now_ms)
        else:
            work.plan = "generate"
            self._enqueue(work, now_ms, front=True)

    def read_back_failed(self, response_id: str, attempt_id: str, now_ms: int) -> None:
        """The log could not be read; tried again with a new fence."""
        work = self._works.get(response_id)
        if work is not None and work.phase is _Phase.READING and work.attempt_id == attempt_id:
            self._wait(work, "takeover", now_ms + RETRY_MS)

    def _submit(self, work: _Work, now_ms: int) -> None:
        request = work.request
        self._set_phase(work, _Phase.RUNNING)
        work.next_sequence = 1
        work.cached_tokens = 0
        work.submitted_at_ms = now_ms
        work.first_token_at_ms = work.last_token_at_ms = 0
        self._effects.append(
            Submit(
                EngineRequest(
                    work.attempt_id,
                    work.prompt.tolist(),
                    request.sampling,
                    request.max_tokens,
                    _PRIORITY[request.lane],
                    request.scope.tenant_id,
                )
            )
        )

    # The engine

    def engine_started(self, now_ms: int) -> None:
        self._engine_ready = True
        self.tick(now_ms)

    def engine_died(self, now_ms: int) -> None:
        """Every attempt in it is lost: retried while no token of it was published, else taken over and ended."""
        self._publish_held()
        self._engine_ready = False
        for work in [work for work in self._works.values() if work.phase is _Phase.RUNNING]:
            if work.next_sequence == 1 and work.engine_retries >= MAX_ENGINE_RETRIES:
                self._end(work, EndingCode.ENGINE_FAILED, now_ms)
                continue
            self._account(work, "engine_died", now_ms)
            if work.next_sequence > 1:
                self._take_over(work, now_ms)
            else:
                work.engine_retries += 1
                self._drop_attempt(work)
                work.plan = "fresh"
                self._enqueue(work, now_ms, front=True)

    def deltas(self, deltas: Sequence[EngineDelta], now_us: int) -> None:
        """One engine step: one frame per partition, in the order of the deltas.

        Under load, rows that neither begin nor end an answer may wait for the next step (`HeldRows`).
        """
        now_ms = now_us // 1_000
        held = self._held
        held_since_us = held.since_us if held else now_us
        may_wait = held.may_wait(len(deltas), now_us)
        frames: _Frames = {}
        failed: list[tuple[_Work, EngineDelta]] = []
        tokens = 0
        for delta in deltas:
            work = self._by_attempt.get(delta.request_id)
            if work is None or work.phase is not _Phase.RUNNING:
                continue
            if delta.error is not None:
                failed.append((work, delta))
                continue
            row, row_us = delta, now_us
            if held and (earlier := held.pop(delta.request_id)) is not None:
                if earlier.choice == delta.choice:
                    row, row_us = joined(earlier, delta), held_since_us
                else:
                    self._add_row(frames, work, earlier, held_since_us)
            if count := len(delta.token_ids):
                tokens += count
                work.next_sequence += count
                work.last_token_at_ms = now_ms
            is_first = count and not work.first_token_at_ms
            if is_first:
                work.first_token_at_ms = now_ms
                work.cached_tokens = delta.cached_tokens
                self._observer.first_token(work.request.lane, now_ms - work.request.accepted_at_ms)
            if may_wait and not is_first and not delta.finish:
                held.put(row, row_us)
                continue
            self._add_row(frames, work, row, row_us)
            if delta.finish:
                self._account(work, "completed", now_ms)
                self._set_phase(work, _Phase.CLOSING)
        if not may_wait:
            self._add_held(frames)
        self._publish_frames(frames)
        if tokens:
            self.generated_tokens += tokens
            self._observer.tokens(tokens)
        for work, delta in failed:
            if delta.refused_param is not None:
                self._end(work, EndingCode.UNSUPPORTED_PARAMETER, now_ms, param=delta.refused_param)
            else:
                self._end(work, EndingCode.ENGINE_FAILED, now_ms)

    def _add_row(self, frames: _Frames, work: _Work, row: EngineDelta, row_us: int) -> None:
        """`row` holds the newest of the tokens that `work` has generated, from `row_us` on."""
        columns = frames.get((work.partition, row_us))
        if columns is None:
            columns = frames[work.partition, row_us] = FrameColumns()
        columns.add(work.scope, work.response_id, work.next_sequence - len(row.token_ids), row)
        if len(columns) >= MAX_FRAME_ROWS:
            self._publish_frames(frames)
            frames.clear()

    def _add_held(self, frames: _Frames) -> None:
        since_us = self._held.since_us
        for row in self._held.pop_all():
            self._add_row(frames, self._by_attempt[row.request_id], row, since_us)

    def _publish_held(self) -> None:
        """Whatever may end, stop or replace an attempt comes behind the tokens that it has generated."""
        if self._held:
            frames: _Frames = {}
            self._add_held(frames)
            self._publish_frames(frames)

    def _publish_frames(self, frames: _Frames) -> None:
        # The oldest first: an engine that was late gives several deltas of a request at once, and the first of them
        # may have joined a row that waited.
        for (partition, since_us), columns in sorted(frames.items(), key=lambda item: item[0][1]):
            self._effects.append(
                Publish(
                    self.config.topics.generated.name,
                    partition,
                    self.config.worker_id,
                    columns.encode(self.config.worker_id, since_us),
                    FrameSent(frozenset(columns.attempt_ids), tuple(columns.finished_ids)),
                )
            )

    # Deliveries

    def delivered(self, receipt: Receipt, offset: int, now_ms: int) -> None:
        """Kafka acknowledged a record."""
        if isinstance(receipt, FenceSent):
            work = self._by_attempt.get(receipt.attempt_id)
            if work is not None and work.phase is _Phase.FENCING:
                self._set_phase(work, _Phase.READING)
                request = work.request
                self._effects.append(
                    AskReadBack(
                        work.response_id, work.attempt_id, request.generated_partition, request.opened_offset, offset
                    )
                )
        elif isinstance(receipt, FrameSent):
            for attempt_id in receipt.finished:
                work = self._by_attempt.get(attempt_id)
                if work is not None and work.phase is _Phase.CLOSING:
                    self._done(work, now_ms)
        elif isinstance(receipt, EndingSent):
            work = self._works.get(receipt.response_id)
            if work is not None and work.phase is _Phase.CLOSING and work.attempt_id == receipt.attempt_id:
                self._done(work, now_ms)
        else:
            receipt.tracker.finished(receipt.offset)

    def undelivered(self, receipt: Receipt, now_ms: int) -> None:
        """Delivery failed for good: what follows it in the log would leave a gap, so its attempts are over.

        They begin again with a read-back. Raises RuntimeError for a dead letter: nothing else can be done with it.
        """
        if isinstance(receipt, DeadLetterSent):
            raise RuntimeError(f"the dead letter for offset {receipt.offset} could not be delivered")  # noqa: TRY004
        if isinstance(receipt, FrameSent):
            works = [self._by_attempt.get(attempt_id) for attempt_id in receipt.attempt_ids]
        else:
            candidate = self._works.get(receipt.response_id)
            works = [candidate if candidate is not None and candidate.attempt_id == receipt.attempt_id else None]
        for work in works:
            if work is None or work.phase is _Phase.WAITING:
                continue
            self._stop(work, "undelivered")
            self._wait(work, "takeover", now_ms + RETRY_MS)

    # Draining

    def drain(self) -> None:
        """Starts nothing more."""
        self._draining = True

    @property
    def unfinished_attempts(self) -> int:
        """Attempts that are begun and not yet acknowledged to their end."""
        return sum(work.phase in _ENGAGED or work.phase is _Phase.CLOSING for work in self._works.values())

    def hand_over(self, now_ms: int) -> None:
        """Stops every attempt without an ending; whoever reads the lanes next takes over. The last call."""
        self._publish_held()
        for work in list(self._works.values()):
            if work.phase in _ENGAGED:
                self._stop(work, "handed_over")
                self._drop_attempt(work)
            if work.claimed and work.phase is not _Phase.CLOSING:
                self._effects.append(ReleaseClaim(work.response_id))
                self._forget(work)

    # Heartbeat

    def state(
        self,
        state: Literal["starting", "ready", "draining", "failed"],
        stats: EngineStats,
        tokens_per_second: float,
        accepts_seed: bool,
        now_ms: int,
    ) -> WorkerState:
        lanes: dict[Lane, list[int]] = {lane: [] for lane in LANES}
        names = {self.config.topics.lane(self.config.pool, lane).name: lane for lane in LANES}
        for partition in sorted(self._trackers):
            lanes[names[partition.topic]].append(partition.partition)
        return WorkerState(
            worker_id=self.config.worker_id,
            pool=self.config.pool,
            model=self.config.model,
            engine=self.config.engine,
            state=state,
            beat_at_ms=now_ms,
            lease_ms=self.config.lease_ms,
            lane_partitions=lanes,
            home_partitions=list(self.config.home_partitions),
            running=stats.running,
            waiting=len(self._scheduler) + stats.waiting,
            queued_tokens=self._scheduler.queued_tokens,
            max_running=self.config.max_running,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_total=stats.kv_blocks_total,
            oldest_waiting_ms=max(self._scheduler.oldest_waiting_ms(now_ms).values()),
            tokens_per_second=tokens_per_second,
            accepts_seed=accepts_seed,
        )

    def waiting(self) -> dict[Lane, int]:
        return self._scheduler.waiting()

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        return self._scheduler.oldest_waiting_ms(now_ms)

    # Bookkeeping

    def _admit(self, request: AdmittedRequest, source: tuple[OffsetTracker, int], now_ms: int) -> None:
        response_id = request.response_id
        known = self._works.get(response_id)
        if known is not None:
            known.sources.append(source)
            return
        if response_id in self._recent or response_id in self._halts:
            source[0].finished(source[1])
            return
        # Waiting work is many: 4 bytes per prompt token instead of the 36 of a list of integers.
        prompt = array("I", request.prompt_token_ids)
        request.prompt_token_ids = []
        work = _Work(request, prompt, len(prompt), self._shared(request.scope), sources=[source])
        self._works[response_id] = work
        self._deadlines.add(response_id, request.deadline_ms)
        if self._cancels.pop(response_id, None) is not None:
            self._end(work, EndingCode.CANCELLED, now_ms)
        else:
            self._enqueue(work, now_ms)

    def _shared(self, scope: Scope) -> Scope:
        """One object per distinct scope, without the trace context, as frames carry it."""
        scope = scope.model_copy(update={"traceparent": ""})
        if len(self._scopes) >= MAX_RECENT:
            self._scopes.clear()
        return self._scopes.setdefault(scope, scope)

    def _enqueue(self, work: _Work, now_ms: int, *, front: bool = False) -> None:
        if work.cancelled:
            self._end(work, EndingCode.CANCELLED, now_ms)
            return
        request = work.request
        self._set_phase(work, _Phase.QUEUED)
        item = Queued(
            work.response_id,
            request.lane,
            request.scope.tenant_id,
            work.prompt_tokens + request.max_tokens,
            now_ms,
        )
        self._scheduler.add(item, front=front)
        if work.plan == "claim":
            self._unlooked.append(work.response_id)

    def _wait(self, work: _Work, plan: Literal["claim", "takeover"], retry_at_ms: int) -> None:
        self._scheduler.remove(work.response_id)
        self._drop_attempt(work)
        work.plan = plan
        work.retry_at_ms = retry_at_ms
        self._set_phase(work, _Phase.WAITING)
        heappush(self._waiting, (retry_at_ms, work.response_id))

    def _end(self, work: _Work, code: EndingCode, now_ms: int, *, param: str | None = None) -> None:
        """Publishes an ending. Of an attempt that may have published, it counts only while that is the current one;
        otherwise nothing here can lose, and it counts in any case.
        """
        if work.phase is _Phase.CLOSING:
            return
        self._publish_held()
        fenced = work.phase in (_Phase.RUNNING, _Phase.READING, _Phase.FENCING)
        self._stop(work, code.value)
        if not fenced:
            self._scheduler.remove(work.response_id)
            work.attempt_id = ""
        request = work.request
        self._set_phase(work, _Phase.CLOSING)
        ending = Ending(
            stage_ms={**request.stage_ms, "worker": now_ms},
            response_id=work.response_id,
            scope=request.scope,
            code=code,
            written_by="worker",
            attempt_id=work.attempt_id or None,
            message=ENDINGS[code].message,
            param=param,
            endpoint=request.endpoint,
            requested_model=request.requested_model,
            reply_to=request.reply_to,
            accepted_at_ms=request.accepted_at_ms,
            prompt_tokens=work.prompt_tokens,
        )
        self._generated(work, ending, EndingSent(work.response_id, work.attempt_id))

    def _stop(self, work: _Work, outcome: str) -> None:
        """Takes it out of the engine, if it is there; the caller decides what becomes of it."""
        if work.phase is _Phase.RUNNING:
            self._held.pop(work.attempt_id)
            self._effects.append(Abort(work.attempt_id))
            self._account(work, outcome, work.last_token_at_ms or work.submitted_at_ms)

    def _account(self, work: _Work, outcome: str, now_ms: int) -> None:
        """The unpriced record of what an attempt cost; once per attempt that was in the engine."""
        request = work.request
        tokens = work.next_sequence - 1
        self._observer.closed(outcome, tokens, work.first_token_at_ms, work.last_token_at_ms)
        record = ComputeRecord(
            response_id=work.response_id,
            scope=request.scope,
            attempt_id=work.attempt_id,
            worker_id=self.config.worker_id,
            pool=self.config.pool,
            model=request.model,
            prompt_tokens=work.prompt_tokens,
            cached_tokens=work.cached_tokens,
            generated_tokens=tokens,
            engine_ms=max(now_ms - work.submitted_at_ms, 0),
            outcome=outcome,
        )
        self._effects.append(
            Publish(self.config.topics.usage.name, None, work.response_id, record.encode(), None)
        )  # fmt: skip

    def _generated(self, work: _Work, record: Record, receipt: Receipt) -> None:
        self._effects.append(
            Publish(
                self.config.topics.generated.name,
                work.request.generated_partition,
                work.response_id,
                record.encode(),
                receipt,
            )
        )

    def _dead_letter(self, record: LogRecord, error: Undecodable, tracker: OffsetTracker, now_ms: int) -> None:
        letter = DeadLetter.of(
            record.topic, record.partition, record.offset, record.value,
            stage="worker", reason=error.reason, detail=error.detail, dead_at_ms=now_ms,
        )  # fmt: skip
        receipt = DeadLetterSent(tracker, record.offset)
        self._effects.append(Publish(self.config.topics.dead_letters.name, None, letter.key, letter.encode(), receipt))

    def _set_phase(self, work: _Work, phase: _Phase) -> None:
        self._slots_taken += (phase in _IN_SLOT) - (work.phase in _IN_SLOT)
        work.phase = phase

    def _drop_attempt(self, work: _Work) -> None:
        self._by_attempt.pop(work.attempt_id, None)

    def _done(self, work: _Work, now_ms: int) -> None:
        """Its terminal is in the log."""
        for tracker, offset in work.sources:
            tracker.finished(offset)
        self._effects.append(FinishClaim(work.response_id))
        self._forget(work)
        if len(self._recent) >= MAX_RECENT:
            self._recent.popitem(last=False)
        self._recent[work.response_id] = _Ended.of(work, now_ms + REMEMBERED_MS)

    def _forget(self, work: _Work) -> None:
        self._scheduler.remove(work.response_id)
        self._drop_attempt(work)
        self._set_phase(work, _Phase.CLOSING)
        del self._works[work.response_id]
        self._deadlines.remove(work.response_id)

    def _remember(self, memory: OrderedDict[str, int], response_id: str, now_ms: int) -> None:
        if len(memory) >= MAX_REMEMBERED:
            memory.popitem(last=False)
        memory[response_id] = now_ms + REMEMBERED_MS
        memory.move_to_end(response_id)
