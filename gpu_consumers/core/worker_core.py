"""What a worker decides: which work to start, how to fence it, when it is done. Pure.

`WorkerCore` is told what happened (records, claims, deliveries, engine steps, the time) and answers with effects, which
its shell carries out in order. It only passes on: each idea has a file of its own beside this one, and `work.py` tells
the life of one piece of work.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from gpu_consumers.core.attempts import Attempts
from gpu_consumers.core.capacity import Capacity
from gpu_consumers.core.claims import Claim
from gpu_consumers.core.config import CoreConfig, NoObserver, Observer
from gpu_consumers.core.effects import CopySent, Effect, Receipt
from gpu_consumers.core.emission import Emission
from gpu_consumers.core.engine_circuit import EngineCircuit
from gpu_consumers.core.giving_away import GivingAway
from gpu_consumers.core.lanes import Lanes
from gpu_consumers.core.pool_shares import PoolShares
from gpu_consumers.core.remembered import MAX_RECENT, Remembered
from gpu_consumers.core.slots import Slots
from gpu_consumers.core.takeover import ReadBack
from gpu_consumers.core.work import Work, Works
from gpu_consumers.engines.port import EngineDelta, EngineStats
from schemas.base import Scope
from schemas.codec import Undecodable, decode
from schemas.control import CONTROL, AttemptVoid, Cancel
from schemas.endings import EndingCode
from schemas.request import AdmittedRequest, Lane
from schemas.worker import EngineFailing, LaneQueue, WorkerState
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import Committed, LogRecord, TopicPartition


class WorkerCore:
    """Not thread-safe. `mint_attempt_id` gives unique ids. Call `effects` after every event and carry them out."""

    def __init__(
        self, config: CoreConfig, mint_attempt_id: Callable[[], str], observer: Observer = NoObserver()
    ) -> None:
        self.config = config
        self._observer = observer
        self._effects: list[Effect] = []
        self._works = Works()
        self._lanes = Lanes(config)
        self._memory = Capacity(config.memory_policy)
        self._slots = Slots(
            config.sizes, config.lanes, self._works, self._memory, config.dimensions, config.max_pauses
        )  # fmt: skip
        self._remembered = Remembered()
        self._circuit = EngineCircuit(config.circuit, config.worker_id)
        self._emission = Emission(config, self._works, observer, self._effects, self._circuit.answered)
        self._attempts = Attempts(
            self._works, self._slots, self._remembered, self._emission, self._effects, mint_attempt_id
        )
        self._giving_away = GivingAway(
            config, self._works, self._slots, self._lanes, self._emission.prefixes, observer, self._effects,
            self._queue_again, self._attempts.forget,
        )  # fmt: skip
        self._scopes: dict[Scope, Scope] = {}
        self._counts_since_ms = 0
        """Tells this worker's counts from those of an earlier one of its name."""
        self._shares = PoolShares(config.worker_id, config.pool)

    def effects(self) -> list[Effect]:
        """What is to be done, in this order; each is given once."""
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    # Lanes

    def assigned(self, commits: Mapping[TopicPartition, Committed]) -> None:
        """These partitions are its own from now on; with what the last commit of each said."""
        self._lanes.assign(commits)

    def revoked(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What to commit before they go. Unstarted work of theirs is forgotten, started work goes on."""
        trackers, commits = self._lanes.revoke(partitions)
        for work in list(self._works.by_response.values()):
            work.sources = [source for source in work.sources if id(source[0]) not in trackers]
            if not work.is_own:
                self._attempts.leave(work)
        return commits

    def lane_records(self, records: Sequence[LogRecord], now_ms: int) -> None:
        """Records of partitions that are not assigned (any more) are ignored, and so are repeated ones."""
        for record in records:
            tracker = self._lanes.read(record)
            if tracker is None:
                continue
            try:
                self._admit(decode(AdmittedRequest, record.value), (tracker, record.offset), now_ms)
            except Undecodable as error:
                self._emission.dead_letter(record, error, tracker, now_ms)

    def _admit(self, request: AdmittedRequest, source: tuple[OffsetTracker, int], now_ms: int) -> None:
        """Raises Undecodable for what would end this worker, and every one after it."""
        known = self._works.by_response.get(request.response_id)
        if known is not None and known.move == request.move:
            known.sources.append(source)
            return
        if known is not None and known.move < request.move:
            # It failed where that record had put it: whatever was begun of it there is void, here too.
            self._slots.drop_look(known.response_id)
            self._attempts.halt(known, now_ms, "void")
        elif known is not None:
            source[0].finished(source[1])
            return
        if self._remembered.pass_over(request.response_id, request.move):
            source[0].finished(source[1])
            return
        if request.generated_partition >= self.config.topics.generated.partitions:
            raise Undecodable("invalid", "generated_partition: no such partition")
        prompt = _prompt_of(request)
        request.prompt_token_ids = []
        request.stage_ms["taken"] = now_ms
        work = Work(
            request, prompt, len(prompt), self._shared(request.scope), sources=[source],
            cancelled=None if known is None else known.cancelled,
        )  # fmt: skip
        self._attempts.admit(work, now_ms)

    def _shared(self, scope: Scope) -> Scope:
        """One object per distinct scope, without the trace context, as frames carry it."""
        scope = scope.model_copy(update={"traceparent": ""})
        if len(self._scopes) >= MAX_RECENT:
            self._scopes.clear()
        return self._scopes.setdefault(scope, scope)

    def to_commit(self) -> dict[TopicPartition, Committed]:
        """Offsets below which everything ended, and as metadata what has ended above them."""
        return self._lanes.to_commit()

    def committed(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self._lanes.committed(commits)

    def over_share(self) -> set[TopicPartition]:
        """The assigned partitions of which no further records are to be read for now."""
        return self._lanes.over_share()

    # Control

    def control_records(self, records: Sequence[LogRecord], now_ms: int) -> None:
        for record in records:
            try:
                control = decode(CONTROL, record.value)
            except Undecodable:
                continue  # post-safety reads it too, and writes the dead letter
            if isinstance(control, AttemptVoid):
                if control.worker_id == self.config.worker_id:
                    self._attempts.void(control, now_ms)
                continue
            work = self._works.by_response.get(control.response_id)
            if isinstance(control, Cancel):
                if work is None:
                    self._remembered.cancel(control.response_id, control.scope.tenant_id, now_ms, control.code)
                else:
                    self._attempts.cancel(work, now_ms, control.code)
            elif work is None:
                self._remembered.halt(control.response_id, control.scope.tenant_id, now_ms)
            else:
                self._attempts.halt(work, now_ms)

    # Other workers

    def heard(self, state: WorkerState) -> None:
        """A heartbeat of any worker, also its own; in order per worker."""
        self._giving_away.heard(state)
        if ahead := self._shares.heard(state, self._counts_since_ms):
            self._slots.restore(ahead)

    def buried(self, worker_id: str, now_ms: int) -> None:
        """It has left, or was lost."""
        self._giving_away.buried(worker_id)
        if self._shares.buried(worker_id):
            self._attempts.waits.worker_left(now_ms)

    def _queue_again(self, work: Work, now_ms: int) -> None:
        self._attempts.queue(work, now_ms, front=True)

    # Time

    def tick(self, now_ms: int) -> None:
        """Deadlines, retries and new starts. Call it after every other event, and at least every 100 ms."""
        self._emission.tick(now_ms)
        self._attempts.tick(now_ms)
        self._remembered.tick(now_ms)
        while self._may_give(now_ms) and (given := self._slots.take(now_ms)) is not None:
            self._circuit.entered(now_ms)
            self._observer.started(given.item.lane, given.why, now_ms - given.item.queued_at_ms)
            self._attempts.start(given, now_ms)
        self._attempts.look_up(now_ms)
        if not self._attempts.is_draining:
            self._giving_away.tick(now_ms)

    def _may_give(self, now_ms: int) -> bool:
        return self._attempts.may_start and self._circuit.lets_in(now_ms, self._works.held.silent_requests)

    # Answers to effects

    def claimed(self, response_id: str, attempt_id: str, claim: Claim | None, now_ms: int, move: int = 0) -> None:
        """The answer to `AskClaim`; None when the store did not answer."""
        self._attempts.claimed(response_id, attempt_id, claim, now_ms, move)

    def read_back(self, answer: ReadBack, now_ms: int) -> None:
        """The answer to `AskReadBack`: what the log says."""
        self._attempts.read_back(answer, now_ms)

    def is_read_back(self, response_id: str, attempt_id: str) -> bool:
        """Whether the answer to this `AskReadBack` is still waited for."""
        return self._works.is_read_back(response_id, attempt_id)

    def lease_renewed(self, stood: bool, now_ms: int) -> None:
        """The claim store answers; `stood` as `ClaimStore.renew` says."""
        self._attempts.keeping.lease_renewed(stood, now_ms)

    def generated_ends(self, ends: Mapping[int, int]) -> None:
        """So far these partitions of `generated` reach, at least. Told before anything is read."""
        self._attempts.asking.generated_ends(ends)

    def delivered(self, receipt: Receipt, offset: int, now_ms: int) -> None:
        """Kafka acknowledged a record."""
        if isinstance(receipt, CopySent):
            self._giving_away.delivered(receipt, now_ms)
        else:
            self._attempts.delivered(receipt, offset, now_ms)

    def undelivered(self, receipt: Receipt, now_ms: int, *, is_too_large: bool = False) -> None:
        """Delivery failed for good. Raises RuntimeError for a dead letter: nothing else can be done with it."""
        if isinstance(receipt, CopySent):
            self._giving_away.undelivered(receipt, now_ms)
        else:
            self._attempts.undelivered(receipt, now_ms, is_too_large=is_too_large)

    # The engine

    def engine_tells(self, stats: EngineStats, now_ms: int) -> None:
        """How it stands. Before it counts as started, and then at least every 100 ms."""
        self._slots.engine_tells(stats, now_ms)

    def engine_started(self, now_ms: int) -> None:
        self._attempts.engine_ready = True
        self.tick(now_ms)

    def engine_died(self, now_ms: int) -> None:
        """Every attempt in it is lost."""
        if (entered_at_ms := self._works.silent_since_ms) is not None:
            self._circuit.failed(entered_at_ms, now_ms)
        self._attempts.engine_died(now_ms)

    def deltas(self, deltas: Sequence[EngineDelta], now_us: int) -> None:
        """One engine step."""
        for work, delta in self._emission.step(deltas, now_us):
            if delta.error is not None:
                if delta.parser_error:
                    self._observer.parser_failed(delta.parser_error)
                code = self._attempts.failed(work, delta, now_us // 1_000)
                # What a parser fails on the model has said: so the engine answers.
                if code is EndingCode.ENGINE_FAILED and not work.first_token_at_ms and not delta.parser_error:
                    self._circuit.failed(work.submitted_at_ms, now_us // 1_000)
            else:
                self._circuit.answered(now_us // 1_000)
                self._attempts.cleared(work, now_us // 1_000)

    @property
    def is_generating(self) -> bool:
        """Whether an attempt is in the engine."""
        return self._works.is_generating

    # Draining

    def drain(self) -> None:
        """Starts nothing more."""
        self._attempts.drain()

    def lanes_read(self) -> dict[Lane, set[int]]:
        """The partitions that are assigned to it."""
        return self._lanes.owned()

    @property
    def unfinished_attempts(self) -> int:
        """What is begun and not yet acknowledged to its end, or owed."""
        return self._works.unfinished_attempts

    def hand_over(self, now_ms: int) -> None:
        """Stops every attempt without an ending; whoever reads the lanes next takes over. The last call."""
        self._attempts.hand_over(now_ms)

    # Its own heartbeat

    def state(
        self,
        state: Literal["starting", "ready", "draining", "failed"],
        stats: EngineStats,
        tokens_per_second: float,
        accepts_seed: bool,
        now_ms: int,
    ) -> WorkerState:
        self._counts_since_ms = self._counts_since_ms or now_ms
        self._slots.given_elsewhere(self._shares.take_given())
        prompts, queues = self._emission.prompt_hits.lately(now_ms), self._queues(now_ms)
        return WorkerState(
            worker_id=self.config.worker_id,
            pool=self.config.pool,
            model=self.config.model,
            engine=self.config.engine,
            state=state,
            beat_at_ms=now_ms,
            lease_ms=self.config.lease_ms,
            lane_partitions=self._lanes.partitions(),
            held_up=self._lanes.held_up_partitions(),
            home_partitions=list(self.config.home_partitions),
            running=stats.running,
            waiting=self._slots.queued_slots + stats.waiting,
            queued_tokens=self._slots.queued_tokens + stats.waiting * self._works.tokens_per_slot,
            queued_of=self._slots.tokens_of,
            waiting_of=self._slots.slots_of,
            queues=queues,
            moved=self._giving_away.moved(now_ms),
            counts_since_ms=self._counts_since_ms,
            given_of=self._slots.given_of(),
            ahead_of=self._slots.ahead_of(),
            max_running=self.config.max_running,
            kv_blocks_used=stats.kv_blocks_used,
            kv_blocks_total=stats.kv_blocks_total,
            prompt_tokens=prompts.all,
            cached_tokens=prompts.cached,
            oldest_waiting_ms=max(queue.oldest_ms for queue in queues.values()),
            tokens_per_second=tokens_per_second,
            failing=self.failing,
            accepts_seed=accepts_seed,
        )

    @property
    def failing(self) -> EngineFailing | None:
        """What routers are told of an engine that fails request after request."""
        return self._circuit.failing()

    def _queues(self, now_ms: int) -> dict[Lane, LaneQueue]:
        told = self._emission
        return {
            lane: queue.model_copy(
                update={
                    "first_tokens": told.first_tokens[lane],
                    "late_first_tokens": told.late_first_tokens[lane],
                }
            )
            for lane, queue in self._slots.queues(now_ms).items()
        }

    @property
    def kv_blocks_reserved(self) -> int:
        """The most blocks that what is in the engine is taken to hold, now or later."""
        return self._memory.reserved

    @property
    def generated_tokens(self) -> int:
        return self._emission.generated_tokens

    def waiting(self) -> dict[Lane, int]:
        return self._slots.waiting()

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        return self._slots.oldest_waiting_ms(now_ms)


def _prompt_of(request: AdmittedRequest) -> "array[int]":
    """Waiting work is many: 4 bytes per prompt token instead of the 36 of a list of integers."""
    try:
        return array("I", request.prompt_token_ids)
    except OverflowError:
        raise Undecodable("invalid", "prompt_token_ids: there is no such token") from None
