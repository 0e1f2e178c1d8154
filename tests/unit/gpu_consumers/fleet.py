"""Workers in virtual time over the in-memory log: crashes, rebalances, dying engines and lost claims as data.

A judge stands where post-safety stands: it folds `generated` with the accepted-prefix rule and answers void fences.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, count
from typing import Any, Literal

from gpu_consumers.core.claims import Claim, ClaimTable
from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.effects import (
    Abort,
    AskClaim,
    AskReadBack,
    Effect,
    FinishClaim,
    Publish,
    ReleaseClaim,
    Submit,
)
from gpu_consumers.core.finished_offsets import decode
from gpu_consumers.core.takeover import PartitionReadBack
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore, SimulatedEngineSettings
from schemas.base import Scope
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, FinishReason, Frame, Opened
from schemas.request import LANES, AdmittedRequest, Lane, ReplyTo, Sampling
from streams.accepted_prefix import AcceptedPrefix
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import Committed, TopicPartition
from streams.topics import Partitions, Topics
from tests.unit.gpu_consumers.engines.simulated_runs import run

TOPICS = Topics("test", ["pool"], Partitions(lane=2, generated=2, control=1))
SCOPE = Scope(tenant_id="acme", traceparent="00-trace")
ENGINE = SimulatedEngineSettings(ttft_ms=20, prompt_token_us=0, inter_token_ms=20, step_ms=20, kv_blocks=1_000)
LEASE_MS = 4_000
NOW_MS = 1_000_000
COALESCE_MS = 50
"""Every story is told with rows that wait: up to three steps of this engine, also of a single stream."""
DIMENSIONS = 128
CONFIG = CoreConfig(
    worker_id="w", pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,), lease_ms=LEASE_MS,
    max_running=4, healthy_buffer=0, max_uncommitted_records=100, max_uncommitted_bytes=10**6, coalesce_ms=COALESCE_MS,
    coalesce_rows_per_s=1,
)  # fmt: skip


def delta(attempt_id: str, *texts: str, choice: int = 0, finish: FinishReason = "", **more: Any) -> EngineDelta:
    """What an engine adds to a choice: a token for each text."""
    ends = [*accumulate(map(len, texts))]
    return EngineDelta(attempt_id, choice, [7] * len(texts), "".join(texts), ends, finish, **more)


class Died(BaseException):
    """A scripted SIGKILL between two effects."""


@dataclass
class Region:
    """The log, the claims and the clock that all workers share."""

    now_ms: int = NOW_MS
    claims: ClaimTable = field(default_factory=lambda: ClaimTable(LEASE_MS))
    claims_up: bool = True
    claims_lost: bool = False
    requests: dict[str, AdmittedRequest] = field(default_factory=dict)
    poison: dict[int, bool] = field(default_factory=dict)
    poison_after: int = 0
    """So many tokens of an answer are harmless."""
    """First tokens of prompts that kill the engine, before they get a token; True: and its worker."""
    voids_are_late: bool = False
    """Until `say_voids`, as when post-safety is away."""
    commits_checked: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in TOPICS.all([]):
            self.log.create_topic(topic.name, topic.partitions)
        self.ids = count(1)
        self._judged = [0] * TOPICS.generated.partitions
        self._workers: dict[str, str] = {}
        self._late_voids: list[AttemptVoid] = []
        self.prefixes: dict[str, AcceptedPrefix] = {}
        self.text: dict[str, list[str]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.of_choice: dict[tuple[str, int], list[int]] = {}

    def request(
        self,
        lane: Lane = Lane.STANDARD,
        *,
        max_tokens: int = 12,
        deadline_ms: int = 10**9,
        partition: int = 0,
        choices: int = 1,
        inputs: int = 0,
        prompt: int = 4,
        tenant_id: str = SCOPE.tenant_id,
        weight: int = 1,
        begins: int | None = None,
        moved: bool = False,
        **sampling: Any,
    ) -> str:
        """`moved`: it failed in another pool.

        With `inputs` so many texts of three tokens, to be embedded, else with a prompt of so many, of which the
        first is `begins`; none begins as another one does where that is left out.
        """
        number = len(self.requests)
        response_id, generated_partition = f"resp_test-0_{number:032x}", number % 2
        token_ids = [*range(10, 10 + 3 * inputs)] if inputs else [begins or 1_000 + number, *range(7, 6 + prompt)]
        common: dict[str, Any] = {
            "response_id": response_id, "scope": SCOPE.model_copy(update={"tenant_id": tenant_id}),
            "endpoint": "embeddings" if inputs else "chat.completions",
            "model": "m", "requested_model": "m", "pool": "pool", "lane": lane, "reply_to": ReplyTo(partition=0),
            "max_tokens": 0 if inputs else max_tokens, "choices": choices, "accepted_at_ms": self.now_ms,
            "admitted_at_ms": self.now_ms, "deadline_ms": deadline_ms,
        }  # fmt: skip
        opened = Opened(
            **common, lane_partition=partition, prompt_tokens=len(token_ids), reserved_tokens=0,
            further=["pool"] if moved else [],
        )  # fmt: skip
        offset = self.log.append(TOPICS.generated.name, opened.encode(), partition=generated_partition)
        if moved:
            ending = Ending(
                response_id=response_id, scope=SCOPE, code=EndingCode.ENGINE_FAILED, written_by="worker",
                elsewhere=True, reply_to=ReplyTo(partition=0), accepted_at_ms=self.now_ms,
            )  # fmt: skip
            offset = 1 + self.log.append(TOPICS.generated.name, ending.encode(), partition=generated_partition)
        admitted = self.requests[response_id] = AdmittedRequest(
            **common, prompt_token_ids=token_ids, input_ends=[*range(3, 3 * inputs + 1, 3)],
            sampling=Sampling.model_validate({"ignore_eos": True, **sampling}),
            generated_partition=generated_partition, opened_offset=offset, weight=weight, move=int(moved),
        )  # fmt: skip
        self.log.append(TOPICS.lane("pool", lane).name, admitted.encode(), partition=partition)
        return response_id

    def control(self, record: Cancel | Halt | AttemptVoid) -> None:
        self.log.append(TOPICS.control.name, record.encode())

    def cancel(self, response_id: str) -> None:
        self.control(Cancel(response_id=response_id, scope=SCOPE, reason="client", requested_at_ms=self.now_ms))

    def judge(self) -> None:
        """Folds what is new on `generated`, and answers fences that do not count."""
        for partition in range(TOPICS.generated.partitions):
            records = self.log.records(TOPICS.generated.name, partition)[self._judged[partition] :]
            self._judged[partition] += len(records)
            for record in records:
                self._fold(GENERATED.validate_json(record.value or b""), record.offset)

    def _fold(self, record: Opened | Fence | Frame | Ending, offset: int) -> None:
        if isinstance(record, Opened):
            self.prefixes[record.response_id] = AcceptedPrefix(record.choices, most_moves=len(record.further))
            self.text[record.response_id] = []
            self.tokens[record.response_id] = []
            for choice in range(record.choices):
                self.of_choice[record.response_id, choice] = []
        elif isinstance(record, Fence):
            prefix = self.prefixes[record.response_id]
            self._workers[record.attempt_id] = record.worker_id
            displaced = prefix.attempt_id
            verdict = prefix.fence(record, offset)
            if verdict != "current":
                self._say_void(record.response_id, record.attempt_id, verdict)
            elif displaced not in (None, record.attempt_id):
                self._say_void(record.response_id, displaced, "superseded")
        elif isinstance(record, Ending):
            self.prefixes[record.response_id].ending(record)
        else:
            for row, response_id in enumerate(record.response_id):
                tokens = record.token_ids[row]
                prefix = self.prefixes[response_id]
                before = prefix.accepted_tokens
                _, known = prefix.row(
                    record.attempt_id[row], record.choice[row], record.first_sequence[row], len(tokens),
                    record.finish[row],
                )  # fmt: skip
                if prefix.accepted_tokens > before:
                    cut = record.text_ends[row][known - 1] if known else 0
                    self.text[response_id].append(record.text[row][cut:])
                    self.tokens[response_id].extend(tokens[known:])
                    self.of_choice[response_id, record.choice[row]].extend(tokens[known:])

    def _say_void(
        self, response_id: str, attempt_id: str, why: Literal["tokens_precede", "superseded", "ended"]
    ) -> None:
        void = AttemptVoid(
            response_id=response_id, scope=SCOPE, attempt_id=attempt_id, worker_id=self._workers[attempt_id], why=why,
            begun_offset=self.prefixes[response_id].begun_offset,
        )  # fmt: skip
        if self.voids_are_late:
            self._late_voids.append(void)
        else:
            self.control(void)

    def say_voids(self) -> None:
        """From now on at once."""
        self.voids_are_late = False
        while self._late_voids:
            self.control(self._late_voids.pop(0))

    def terminal(self, response_id: str) -> EndingCode | None:
        self.judge()
        return self.prefixes[response_id].terminal

    def open_responses(self) -> list[str]:
        return [response_id for response_id in self.requests if self.terminal(response_id) is None]

    def records(self, topic: str, kind: type[Any], adapter: Any) -> list[Any]:
        found = (adapter.validate_json(record.value or b"") for record in self.log.records(topic))
        return [record for record in found if isinstance(record, kind)]

    def answers_to(self, response_id: str) -> list[list[int]]:
        """What the engine says, undisturbed: of each choice."""
        engine = SimulatedCore(ENGINE)
        request = self.requests[response_id]
        asked = EngineRequest("r", list(request.prompt_token_ids), request.sampling, request.max_tokens)
        engine.submit(replace(asked, choices=request.choices), 0.0)
        answers: list[list[int]] = [[] for _ in range(request.choices)]
        for delta in run(engine):
            answers[delta.choice] += delta.token_ids
        return answers


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
        self.producer = region.log.producer(f"{worker_id}-producer")
        self.lanes: MemoryConsumer = region.log.consumer("workers.pool", worker_id)
        self.control = region.log.consumer(None, f"{worker_id}-control", reset="earliest")
        self.control.assign({TopicPartition(TOPICS.control.name, 0): 0})
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
        self.claims_on_their_way: list[tuple[str, str, Claim | None]] = []

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
                    response_id = AdmittedRequest.model_validate_json(record.value or b"").response_id
                    assert self.region.terminal(response_id) is not None, "a commit passed unfinished work"
                    self.region.commits_checked += 1
        offsets = {partition: commit.offset for partition, commit in commits.items() if commit.offset is not None}
        self.lanes.commit(offsets, metadata={partition: commits[partition].metadata for partition in offsets})
        self.core.committed(commits)

    def step(self) -> None:
        region, core = self.region, self.core
        now_ms = region.now_ms
        if self.engine is None and self.engine_starts:
            self.engine = self._new_engine()
            core.engine_tells(self.engine.stats(), now_ms)
            core.engine_started(now_ms)
        elif self.engine is not None:
            core.engine_tells(self.engine.stats(), now_ms)
        if region.claims_up:
            core.lease_renewed(region.claims.renew(self.incarnation, now_ms), now_ms)
        arrived, self.claims_on_their_way = self.claims_on_their_way, []
        for answer in arrived:
            core.claimed(*answer, now_ms)
        over = core.over_share()
        self.lanes.pause(over)
        self.lanes.resume(set(self.lanes.assignment()) - over)
        core.lane_records(self.lanes.poll(10, 0), now_ms)
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
                core.deltas(self.engine.step(now_ms / 1_000), now_ms * 1_000)
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
                    self.claims_on_their_way.append((response_id, attempt_id, claim))
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
                    self.engine.submit(request, now_ms / 1_000)
            case Abort(attempt_id):
                self.aborted.append(attempt_id)
                if self.engine is not None:
                    self.engine.abort(attempt_id, now_ms / 1_000)
            case FinishClaim():
                if region.claims_up:
                    region.claims.finish(self.incarnation, effect)
            case ReleaseClaim():
                if region.claims_up:
                    region.claims.release(self.incarnation, effect)

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

    def says(self, *deltas: EngineDelta) -> None:
        self.workers["a"].core.deltas([*deltas], self.region.now_ms * 1_000)

    def crash(self, name: str) -> None:
        if name in self.workers:
            self.workers.pop(name).crash()

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
