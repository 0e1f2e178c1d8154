"""Workers in virtual time over the in-memory log: crashes, rebalances, dying engines and lost claims as data."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from gpu_consumers.core.claims import Claim
from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.effects import (
    Abort,
    AskClaim,
    AskReadBack,
    CopySent,
    Effect,
    FinishClaim,
    Publish,
    ReleaseClaim,
    Submit,
)
from gpu_consumers.core.finished_offsets import decode
from gpu_consumers.core.membership import BEAT_MS
from gpu_consumers.core.takeover import PartitionReadBack
from gpu_consumers.core.work import Phase
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineStats
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.endings import EndingCode
from schemas.request import LANES, AdmittedRequest
from schemas.worker import WorkerState
from streams.log.memory import MemoryConsumer
from streams.log.port import Committed, TopicPartition
from tests.unit.gpu_consumers.region import (
    COALESCE_MS,
    CONFIG,
    DIMENSIONS,
    ENGINE,
    LEASE_MS,
    NOW_MS,
    SCOPE,
    TOPICS,
    Region,
    delta,
)

__all__ = [
    "CONFIG",
    "ENGINE",
    "LEASE_MS",
    "NOW_MS",
    "SCOPE",
    "TOPICS",
    "CopyFault",
    "Died",
    "Fleet",
    "Region",
    "Worker",
    "check",
    "delta",
]

CopyFault = Literal["dies", "dies once told", "told as lost", "told late"]
"""Of a worker, once the copy of a request that it gives away is in the log."""


class Died(BaseException):
    """A scripted SIGKILL between two effects."""


class Worker:
    """One incarnation: the core, an engine, and the shell's duties done one effect at a time.

    `engine`: for which it takes the one that it has. `embeds`: makes one in the place of that which generates.
    """

    def __init__(
        self,
        region: Region,
        worker_id: str,
        *,
        max_running: int = 4,
        coalesce_ms: int = COALESCE_MS,
        embeds: Callable[[], Any] | None = None,
        config: CoreConfig = CONFIG,
    ) -> None:
        self.region = region
        self.engine_starts = True
        self.is_draining = False
        self.stopped_until_ms = 0
        self.incarnation = f"{worker_id}/{next(region.ids)}"
        config = replace(
            config,
            worker_id=worker_id,
            max_running=max_running,
            coalesce_ms=coalesce_ms,
            dimensions=0 if embeds is None else DIMENSIONS,
        )
        self.core = WorkerCore(config, lambda: f"att_{next(region.ids)}")
        settings = ENGINE.model_copy(update={"max_running": max_running})
        self._new_engine = embeds or partial(SimulatedCore, settings)
        self.engine: SimulatedCore | None = None
        self.dies_after: int | None = None
        self.kill_engine = False
        self.deaths = 0
        self.killed_with: list[int] = []
        """Of each death: how many answers that had said something were in the engine."""
        self.late_rounds = 0
        self.slower = 1.0
        """So many times slower than others its engine is."""
        self._lag_ms, self._stepped_at_ms = 0.0, region.now_ms
        self.copies: list[str] = []
        """What it gave to other workers, as far as that is in the log."""
        self.copy_fault: CopyFault | Literal[""] = ""
        self.late_copies: list[CopySent] = []
        self.producer = region.log.producer(f"{worker_id}-producer")
        self.lanes: MemoryConsumer = region.log.consumer("workers.pool", worker_id)
        self.control = region.log.consumer(None, f"{worker_id}-control", reset="earliest")
        self.control.assign({TopicPartition(TOPICS.control.name, 0): 0})
        self.beats = region.log.producer(f"{worker_id}-beats")
        self.others = region.log.consumer(None, f"{worker_id}-others")
        self.others.assign({TopicPartition(TOPICS.workers.name, 0): len(region.log.records(TOPICS.workers.name))})
        self.next_beat_ms = 0
        self.lanes.subscribe(
            [TOPICS.lane("pool", lane).name for lane in LANES],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        self.aborted: list[str] = []
        self.submitted: list[str] = []
        self.claims_asked = 0
        self.claims_are_late = False
        self.claims_on_their_way: list[tuple[str, str, Claim | None, int]] = []

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.core.assigned(self.lanes.committed(partitions))

    def _revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._commit(self.core.revoked(partitions))

    def _lost(self, partitions: Iterable[TopicPartition]) -> None:
        """They are another's already: what would be committed is too late."""
        self.core.revoked(partitions)

    def _commit(self, commits: dict[TopicPartition, Committed]) -> None:
        if not commits:
            return
        self.region.judge()
        if not self.region.claims_lost:
            for partition, commit in commits.items():
                assert commit.offset is not None
                above = [offset for ended in decode(commit.offset, commit.metadata) for offset in ended]
                records = self.region.log.records(partition.topic, partition.partition)
                for record in [*records[: commit.offset], *(records[offset] for offset in above)]:
                    request = AdmittedRequest.model_validate_json(record.value or b"")
                    is_halted = request.response_id in self.region.halted
                    has_ended = is_halted or self.region.terminal(request.response_id) is not None
                    # The record of its next place is admission's to write.
                    has_moved = request.move < self.region.prefixes[request.response_id].moves
                    assert has_ended or has_moved or self._is_elsewhere(request, commits), (
                        "a commit passed unfinished work"
                    )
                    self.region.commits_checked += 1
        offsets = {partition: commit.offset for partition, commit in commits.items() if commit.offset is not None}
        self.lanes.commit(offsets, metadata={partition: commits[partition].metadata for partition in offsets})
        self.core.committed(commits)

    def _is_elsewhere(self, request: AdmittedRequest, commits: dict[TopicPartition, Committed]) -> bool:
        """Whether a record of this move stands where no commit has passed it: it was given to another worker."""
        sources = [
            TopicPartition(topic.name, number)
            for topic in (TOPICS.lane("pool", lane) for lane in LANES)
            for number in range(topic.partitions)
        ]
        for source, commit in {**self.lanes.committed(sources), **commits}.items():
            begun = commit.offset or 0
            passed = {offset for ended in decode(begun, commit.metadata) for offset in ended}
            for record in self.region.log.records(source.topic, source.partition)[begun:]:
                if record.key != request.response_id.encode() or record.offset in passed:
                    continue
                if AdmittedRequest.model_validate_json(record.value or b"").move == request.move:
                    return True
        return False

    def _beat(self, now_ms: int) -> None:
        """Says how it stands, and hears how others do."""
        if now_ms >= self.next_beat_ms:
            self.next_beat_ms = now_ms + BEAT_MS
            stats = self.engine.stats() if self.engine is not None else EngineStats()
            life: Literal["ready", "starting"] = "ready" if self.engine is not None else "starting"
            state = self.core.state(life, stats, 0.0, True, now_ms)
            self.beats.produce(TOPICS.workers.name, state.encode(), key=state.worker_id)
            self.beats.poll()
        for record in self.others.poll(100, 0):
            self.core.heard(WorkerState.model_validate_json(record.value or b""))

    @property
    def _engine_s(self) -> float:
        return (self.region.now_ms - self._lag_ms) / 1_000

    def step(self) -> None:
        region, core = self.region, self.core
        now_ms = region.now_ms
        self._lag_ms += (now_ms - self._stepped_at_ms) * (1 - 1 / self.slower)
        self._stepped_at_ms = now_ms
        if self.engine is None and self.engine_starts:
            self.engine = self._new_engine()
            core.engine_tells(self.engine.stats(), now_ms)
            core.engine_started(now_ms)
        elif self.engine is not None:
            core.engine_tells(self.engine.stats(), now_ms)
        if region.claims_up:
            core.lease_renewed(region.claims.renew(self.incarnation, now_ms), now_ms)
        arrived, self.claims_on_their_way = self.claims_on_their_way, []
        for response_id, attempt_id, claim, move in arrived:
            core.claimed(response_id, attempt_id, claim, now_ms, move)
        if not self.is_draining:
            over = core.over_share()
            self.lanes.pause(over)
            self.lanes.resume(set(self.lanes.assignment()) - over)
            core.lane_records(self.lanes.poll(10, 0), now_ms)
        self._beat(now_ms)
        core.control_records(self.control.poll(100, 0), now_ms)
        self._run_effects()
        try:
            if self.kill_engine:
                self.kill_engine = False
                raise EngineDied("scripted")
            if self.late_rounds:
                self.late_rounds -= 1
            elif self.engine is not None:
                if region.poison:
                    self._take_poison(self.engine)
                core.deltas(self.engine.step(self._engine_s), now_ms * 1_000)
        except EngineDied:
            self.engine = None
            self.deaths += 1
            core.engine_died(now_ms)
        core.tick(now_ms)
        self._run_effects()
        self.producer.poll()
        core.tick(now_ms)
        self._run_effects()
        self.producer.poll()
        self._commit(core.to_commit())

    def _is_struck(self, receipt: CopySent) -> bool:
        """A copy stands in the log: what becomes of that."""
        self.copies.append(receipt.response_id)
        fault, self.copy_fault = self.copy_fault, ""
        if fault == "dies":
            raise Died
        if fault == "told as lost":
            self.core.undelivered(receipt, self.region.now_ms)
        elif fault == "dies once told":
            self.core.delivered(receipt, 0, self.region.now_ms)
            raise Died
        elif fault == "told late":
            self.copy_fault = fault
            self.late_copies.append(receipt)
        return bool(fault)

    def tell_copies(self) -> None:
        """What was told late."""
        self.copy_fault = ""
        while self.late_copies:
            self.core.delivered(self.late_copies.pop(0), 0, self.region.now_ms)

    def _take_poison(self, engine: SimulatedCore) -> None:
        live = [running for choices in engine._requests.values() for running in choices.values()]
        for running in live:
            kills_worker = self.region.poison.get(running.request.prompt_token_ids[0])
            if kills_worker is not None and running.answer.produced >= self.region.poison_after:
                self.killed_with.append(sum(other.answer.produced > 0 for other in live))
                if kills_worker:
                    raise Died
                raise EngineDied("poisoned")

    def _run_effects(self) -> None:
        while effects := self.core.effects():
            for effect in effects:
                if self.dies_after is not None:
                    self.dies_after -= 1
                    if self.dies_after < 0:
                        raise Died
                self._run(effect)

    def _run(self, effect: Effect) -> None:
        region, core, now_ms = self.region, self.core, self.region.now_ms
        match effect:
            case Publish(topic, partition, key, value, receipt):

                def on_delivery(offset: int | None, error: object) -> None:
                    if receipt is None:
                        return
                    if isinstance(receipt, CopySent) and self._is_struck(receipt):
                        return
                    if offset is None:
                        core.undelivered(receipt, region.now_ms)
                    else:
                        core.delivered(receipt, offset, region.now_ms)

                self.producer.produce(topic, value, key=key, partition=partition, on_delivery=on_delivery)
            case AskClaim(response_id, attempt_id):
                self.claims_asked += 1
                claim: Claim | None = None
                if region.claims_up:
                    claim = region.claims.claim(self.incarnation, effect, now_ms)
                if self.claims_are_late:
                    self.claims_on_their_way.append((response_id, attempt_id, claim, effect.move))
                else:
                    core.claimed(response_id, attempt_id, claim, now_ms, effect.move)
            case AskReadBack():
                fold = PartitionReadBack([effect])
                for record in region.log.records(TOPICS.generated.name, effect.partition)[fold.next_offset : fold.end]:
                    for answer in fold.fold(record.offset, record.value):
                        core.read_back(answer, now_ms)
            case Submit(request):
                self.submitted.append(request.request_id)
                if self.engine is not None:
                    self.engine.submit(request, self._engine_s)
            case Abort(attempt_id):
                self.aborted.append(attempt_id)
                if self.engine is not None:
                    self.engine.abort(attempt_id, self._engine_s)
            case FinishClaim():
                if region.claims_up:
                    region.claims.finish(self.incarnation, effect)
            case ReleaseClaim():
                if region.claims_up:
                    region.claims.release(self.incarnation, effect)

    def drain(self) -> None:
        """It reads no lanes any more, and finishes what it has begun."""
        self.is_draining = True
        self.core.drain()
        self.lanes.close()

    def crash(self) -> None:
        self.producer.crash()
        self.lanes.crash()


class Fleet:
    """`workers`: what each is made with."""

    def __init__(self, *names: str, **workers: Any) -> None:
        self.region = Region()
        self.each = workers
        self.workers: dict[str, Worker] = {}
        self.all: list[Worker] = []
        for name in names:
            self.start(name)

    def start(self, name: str) -> Worker:
        worker = self.workers[name] = Worker(self.region, name, **self.each)
        self.all.append(worker)
        return worker

    def poison(self, response_id: str, *, kills_worker: bool = False) -> str:
        """From now on it kills every engine that it enters, or the whole worker."""
        first_token = self.region.requests[response_id].prompt_token_ids[0]
        self.region.poison[first_token] = kills_worker
        return response_id

    def told_here(self, **request: Any) -> tuple[str, str]:
        """A new response, and its attempt in the engine of `a`, of which the test says alone what it gives: `says`."""
        worker = self.workers["a"]
        worker.late_rounds = 1_000
        response_id = self.region.request(**request)
        self.run(40)
        return response_id, worker.core._works.by_response[response_id].attempt_id

    def refuse(self, worker: Worker) -> None:
        """Its engine refuses the first of those of which nothing has come."""
        for work in [*worker.core._works.by_attempt.values()]:
            if work.phase is Phase.RUNNING and work.has_said_nothing and worker.engine is not None:
                worker.engine.abort(work.attempt_id, worker._engine_s)
                failure = EngineDelta.failure(work.attempt_id, "refused")
                worker.core.deltas([failure], self.region.now_ms * 1_000)
                return

    def says(self, *deltas: EngineDelta) -> None:
        self.workers["a"].core.deltas([*deltas], self.region.now_ms * 1_000)

    def crash(self, name: str) -> None:
        if name in self.workers:
            self.workers.pop(name).crash()

    def hand_over(self, name: str) -> None:
        """It is stopped in order, and has no time to finish what it has begun."""
        leaving = self.workers.pop(name)
        leaving.lanes.close()
        leaving.core.drain()
        leaving.core.hand_over(self.region.now_ms)
        leaving._run_effects()
        leaving.producer.flush(1)

    def run(self, duration_ms: int, step_ms: int = 20) -> None:
        until_ms = self.region.now_ms + duration_ms
        while self.region.now_ms < until_ms:
            self.region.now_ms += step_ms
            for name, worker in list(self.workers.items()):
                if worker.stopped_until_ms > self.region.now_ms:
                    continue
                try:
                    worker.step()
                except Died:
                    self.crash(name)
            self.region.judge()

    def run_until_told(self, response_id: str, tokens: int) -> None:
        while len(self.region.tokens.get(response_id, ())) < tokens:
            assert self.region.terminal(response_id) is None
            self.run(20)
            self.region.judge()

    def settle(self, names: str = "", limit_ms: int = 120_000) -> None:
        """Runs until every response has ended, starting `names` again when they die."""
        spent = 0
        while self.region.open_responses() and spent < limit_ms:
            for name in names:
                if name not in self.workers:
                    self.start(name)
            self.run(500)
            spent += 500
        self.run(1_000)


def check(region: Region) -> None:
    """Every request has one terminal, and no accepted token that an undisturbed engine would not have said there."""
    assert region.open_responses() == []
    for response_id in region.requests:
        for choice, answer in enumerate(region.answers_to(response_id)):
            tokens = region.of_choice[response_id, choice]
            assert tokens == answer[: len(tokens)]
            if region.terminal(response_id) is EndingCode.COMPLETED:
                assert tokens == answer
