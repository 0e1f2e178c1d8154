"""Workers in virtual time over the in-memory log: crashes, rebalances, dying engines and lost claims as data.

A judge stands where post-safety stands: it folds `generated` with the accepted-prefix rule and answers void fences.
"""

import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from gpu_consumers.claim import Claim, ClaimRequest, ClaimTable
from gpu_consumers.core import (
    LANE_SHARES,
    MAX_LOOKS,
    Abort,
    AskClaim,
    AskReadBack,
    CoreConfig,
    Effect,
    FinishClaim,
    Publish,
    ReleaseClaim,
    Submit,
    WorkerCore,
)
from gpu_consumers.engines.port import EngineDied, EngineRequest, EngineStats
from gpu_consumers.engines.simulated import SimulatedCore, SimulatedEngineSettings
from gpu_consumers.takeover import ReadBack
from schemas.base import Scope
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.dead_letter import DeadLetter
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from schemas.request import LANES, AdmittedRequest, Lane, ReplyTo, Sampling
from schemas.usage import USAGE, ComputeRecord
from streams.accepted_prefix import AcceptedPrefix
from streams.log.memory import Fault, FaultKind, MemoryConsumer, MemoryLog
from streams.log.port import LogRecord, TopicPartition
from streams.topics import Partitions, Topics

TOPICS = Topics("test", ["pool"], Partitions(lane=2, generated=2, control=1))
LEASE_MS = 4_000
ENGINE = SimulatedEngineSettings(ttft_ms=20, prompt_token_us=0, inter_token_ms=20, step_ms=20, kv_blocks=1_000)
SCOPE = Scope(tenant_id="acme", traceparent="00-trace")
NOW_MS = 1_000_000
COALESCE_MS = 50
"""Every story is told with rows that wait: up to three steps of this engine, also of a single stream."""


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
    commits_checked: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in TOPICS.all([]):
            self.log.create_topic(topic.name, topic.partitions)
        self.ids = count(1)
        self._judged = [0] * TOPICS.generated.partitions
        self.prefixes: dict[str, AcceptedPrefix] = {}
        self.text: dict[str, list[str]] = {}
        self.tokens: dict[str, list[int]] = {}

    def request(
        self, lane: Lane = Lane.STANDARD, *, max_tokens: int = 12, deadline_ms: int = 10**9, partition: int = 0
    ) -> str:
        number = len(self.requests)
        response_id = f"resp_test-0_{number:032x}"
        generated_partition = number % 2
        reply_to = ReplyTo(partition=0)
        prompt = [1_000 + number, 7, 8, 9]
        opened = Opened(
            response_id=response_id, scope=SCOPE, model="m", requested_model="m", pool="pool", lane=lane,
            lane_partition=partition, prompt_tokens=len(prompt), max_tokens=max_tokens, reserved_tokens=0,
            reply_to=reply_to, accepted_at_ms=self.now_ms, admitted_at_ms=self.now_ms, deadline_ms=deadline_ms,
        )  # fmt: skip
        offset = self.log.append(TOPICS.generated.name, opened.encode(), partition=generated_partition)
        admitted = AdmittedRequest(
            response_id=response_id, scope=SCOPE, model="m", requested_model="m", pool="pool", lane=lane,
            prompt_token_ids=prompt, sampling=Sampling(ignore_eos=True), max_tokens=max_tokens, reply_to=reply_to,
            accepted_at_ms=self.now_ms, admitted_at_ms=self.now_ms, deadline_ms=deadline_ms,
            generated_partition=generated_partition, opened_offset=offset,
        )  # fmt: skip
        self.requests[response_id] = admitted
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
                self._fold(GENERATED.validate_json(record.value or b""))

    def _fold(self, record: Opened | Fence | Frame | Ending) -> None:
        if isinstance(record, Opened):
            self.prefixes[record.response_id] = AcceptedPrefix(record.choices)
            self.text[record.response_id] = []
            self.tokens[record.response_id] = []
        elif isinstance(record, Fence):
            verdict = self.prefixes[record.response_id].fence(record)
            if verdict != "current":
                self.control(
                    AttemptVoid(
                        response_id=record.response_id, scope=SCOPE, attempt_id=record.attempt_id,
                        worker_id=record.worker_id, why=verdict,
                    )
                )  # fmt: skip
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

    def terminal(self, response_id: str) -> EndingCode | None:
        self.judge()
        return self.prefixes[response_id].terminal

    def open_responses(self) -> list[str]:
        return [response_id for response_id in self.requests if self.terminal(response_id) is None]

    def records(self, topic: str, kind: type[Any], adapter: Any) -> list[Any]:
        found = (adapter.validate_json(record.value or b"") for record in self.log.records(topic))
        return [record for record in found if isinstance(record, kind)]

    def answer_of(self, response_id: str) -> list[int]:
        """What the engine says, undisturbed."""
        engine = SimulatedCore(ENGINE)
        request = self.requests[response_id]
        engine.submit(EngineRequest("r", list(request.prompt_token_ids), request.sampling, request.max_tokens), 0.0)
        tokens = []
        while (due_s := engine.next_due_s) is not None:
            tokens += [token for delta in engine.step(due_s) for token in delta.token_ids]
        return tokens


class Worker:
    """One incarnation: the core, an engine, and the shell's duties done one effect at a time."""

    def __init__(self, region: Region, worker_id: str, *, max_running: int = 4, coalesce_ms: int = COALESCE_MS) -> None:
        self.region = region
        self.engine_starts = True
        self.incarnation = f"{worker_id}/{next(region.ids)}"
        self.core = WorkerCore(
            CoreConfig(
                worker_id=worker_id, pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,),
                lease_ms=LEASE_MS, max_running=max_running, healthy_buffer=0, max_uncommitted_records=100,
                max_uncommitted_bytes=10**6, coalesce_ms=coalesce_ms, coalesce_rows=1,
            ),
            lambda: f"att_{next(region.ids)}",
        )  # fmt: skip
        self.engine: SimulatedCore | None = None
        self.dies_after: int | None = None
        self.kill_engine = False
        self.late_rounds = 0
        self.producer = region.log.producer(f"{worker_id}-producer")
        self.lanes: MemoryConsumer = region.log.consumer("workers.pool", worker_id)
        self.control = region.log.consumer(None, f"{worker_id}-control", reset="earliest")
        self.control.assign({TopicPartition(TOPICS.control.name, 0): 0})
        self.lanes.subscribe(
            [TOPICS.lane("pool", lane).name for lane in LANES],
            on_assign=self.core.assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        self.aborted: list[str] = []
        self.submitted: list[str] = []
        self.claims_asked = 0
        self.claims_are_late = False
        self.claims_on_their_way: list[tuple[str, str, Claim | None]] = []

    def _revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self._commit(self.core.revoked(partitions))

    def _lost(self, partitions: Iterable[TopicPartition]) -> None:
        """They are another's already: what would be committed is too late."""
        self.core.revoked(partitions)

    def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        self.region.judge()
        if not self.region.claims_lost:
            for partition, offset in offsets.items():
                for record in self.region.log.records(partition.topic, partition.partition)[:offset]:
                    response_id = AdmittedRequest.model_validate_json(record.value or b"").response_id
                    assert self.region.terminal(response_id) is not None, "a commit passed unfinished work"
                    self.region.commits_checked += 1
        self.lanes.commit(offsets)
        self.core.committed(offsets)

    def step(self) -> None:
        region, core = self.region, self.core
        now_ms = region.now_ms
        if self.engine is None and self.engine_starts:
            self.engine = SimulatedCore(ENGINE)
            core.engine_started(now_ms)
        region.claims.renew(self.incarnation, now_ms)
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
                core.deltas(self.engine.step(now_ms / 1_000), now_ms * 1_000)
        except EngineDied:
            self.engine = None
            core.engine_died(now_ms)
        core.tick(now_ms)
        self._run_effects()
        self.producer.poll()
        core.tick(now_ms)
        self._run_effects()
        self.producer.poll()
        self._commit(core.to_commit())

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
            case AskClaim(response_id, attempt_id, only_begun):
                self.claims_asked += 1
                claim: Claim | None = None
                if region.claims_up:
                    request = ClaimRequest(response_id, attempt_id, only_begun)
                    claim = region.claims.claim(self.incarnation, request, now_ms)
                if self.claims_are_late:
                    self.claims_on_their_way.append((response_id, attempt_id, claim))
                else:
                    core.claimed(response_id, attempt_id, claim, now_ms)
            case AskReadBack(response_id, attempt_id, partition, first_offset, fence_offset):
                fold = ReadBack(response_id, attempt_id)
                for record in region.log.records(TOPICS.generated.name, partition)[first_offset : fence_offset + 1]:
                    fold.fold(GENERATED.validate_json(record.value or b""))
                core.read_back(response_id, attempt_id, fold.decision(), now_ms)
            case Submit(request):
                self.submitted.append(request.request_id)
                if self.engine is not None:
                    self.engine.submit(request, now_ms / 1_000)
            case Abort(attempt_id):
                self.aborted.append(attempt_id)
                if self.engine is not None:
                    self.engine.abort(attempt_id, now_ms / 1_000)
            case FinishClaim(response_id):
                if region.claims_up:
                    region.claims.finish(self.incarnation, response_id)
            case ReleaseClaim(response_id):
                region.claims.release(self.incarnation, response_id)

    def crash(self) -> None:
        self.producer.crash()
        self.lanes.crash()


class Fleet:
    def __init__(self, *names: str, max_running: int = 4, coalesce_ms: int = COALESCE_MS) -> None:
        self.region = Region()
        self.max_running = max_running
        self.coalesce_ms = coalesce_ms
        self.workers: dict[str, Worker] = {}
        self.all: list[Worker] = []
        for name in names:
            self.start(name)

    def start(self, name: str) -> Worker:
        worker = self.workers[name] = Worker(
            self.region, name, max_running=self.max_running, coalesce_ms=self.coalesce_ms
        )
        self.all.append(worker)
        return worker

    def crash(self, name: str) -> None:
        if name in self.workers:
            self.workers.pop(name).crash()

    def run(self, duration_ms: int, step_ms: int = 20) -> None:
        until_ms = self.region.now_ms + duration_ms
        while self.region.now_ms < until_ms:
            self.region.now_ms += step_ms
            for name, worker in list(self.workers.items()):
                try:
                    worker.step()
                except Died:
                    self.crash(name)
            self.region.judge()

    def run_until_told(self, response_id: str, tokens: int) -> None:
        while len(self.region.tokens.get(response_id, ())) < tokens:
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
        answer = region.answer_of(response_id)
        tokens = region.tokens[response_id]
        assert tokens == answer[: len(tokens)]
        if region.terminal(response_id) is EndingCode.COMPLETED:
            assert tokens == answer


def test_a_request_is_answered_in_full_and_its_offset_committed() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert fleet.region.log.committed("workers.pool", source).offset == 1
    [compute] = fleet.region.records(TOPICS.usage.name, ComputeRecord, USAGE)
    assert (compute.outcome, compute.generated_tokens, compute.prompt_tokens) == ("completed", 12, 4)


def test_under_load_steps_leave_together_but_a_first_and_a_last_token_at_once() -> None:
    fleet = Fleet("a")
    fleet.region.request(max_tokens=12)
    fleet.settle()
    frames = fleet.region.records(TOPICS.generated.name, Frame, GENERATED)
    assert [[len(tokens) for tokens in frame.token_ids] for frame in frames] == [[1], [3], [3], [3], [2]]
    assert [frame.first_sequence for frame in frames] == [[1], [2], [5], [8], [11]]
    assert [frame.finish for frame in frames] == [[""], [""], [""], [""], ["length"]]
    # A frame is as old as its oldest token: waiting counts as latency.
    ages_us = [later.emitted_at_us - frames[0].emitted_at_us for later in frames]
    assert ages_us == [0, 20_000, 80_000, 140_000, 200_000]


def test_what_ends_an_answer_comes_behind_the_tokens_that_waited() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=100)
    fleet.run_until_told(response_id, tokens=4)
    fleet.run(20)
    fleet.region.cancel(response_id)
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert len(fleet.region.tokens[response_id]) > 4


def test_a_late_engine_gives_several_steps_at_once_and_their_order_stays() -> None:
    fleet = Fleet("a")
    early = fleet.region.request(max_tokens=30)
    fleet.run_until_told(early, tokens=4)
    fleet.run(20)  # rows wait now
    late = [fleet.region.request(max_tokens=30) for _ in range(3)]
    fleet.workers["a"].late_rounds = 2
    fleet.settle()
    check(fleet.region)
    assert all(fleet.region.terminal(each) is EndingCode.COMPLETED for each in (early, *late))


def test_one_step_makes_one_record_per_partition_and_scopes_are_shared_without_trace() -> None:
    fleet = Fleet("a", max_running=8, coalesce_ms=0)
    for _ in range(8):
        fleet.region.request(max_tokens=10)
    fleet.settle()
    frames = fleet.region.records(TOPICS.generated.name, Frame, GENERATED)
    assert len(frames) == 20
    assert all(len(frame) == 4 and frame.scopes == [Scope(tenant_id="acme")] for frame in frames)


def test_higher_lanes_enter_the_engine_first() -> None:
    fleet = Fleet("a", max_running=1)
    batch = [fleet.region.request(Lane.BATCH) for _ in range(2)]
    urgent = fleet.region.request(Lane.INTERACTIVE)
    fleet.settle()
    fences = [fence.response_id for fence in fleet.region.records(TOPICS.generated.name, Fence, GENERATED)]
    order = [record.value for record in fleet.region.log.records(TOPICS.usage.name)]
    assert set(fences) == {*batch, urgent}
    ended = sorted(
        fleet.region.records(TOPICS.usage.name, ComputeRecord, USAGE), key=lambda record: int(record.attempt_id[4:])
    )
    assert [record.response_id for record in ended] == [urgent, *batch]
    assert len(order) == 3


def test_a_running_request_is_cancelled_after_what_it_said() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=500)
    fleet.run(400)
    fleet.region.cancel(response_id)
    fleet.run(100)
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert 5 < len(fleet.region.tokens[response_id]) < 30
    [worker] = fleet.all
    assert worker.engine is not None
    assert worker.engine.stats() == EngineStats(kv_blocks_total=1_000)


def test_a_waiting_request_is_cancelled_without_entering_the_engine() -> None:
    fleet = Fleet("a", max_running=1)
    first, second = fleet.region.request(max_tokens=100), fleet.region.request()
    fleet.run(200)
    fleet.region.cancel(second)
    fleet.run(100)
    assert fleet.region.terminal(second) is EndingCode.CANCELLED
    assert len(fleet.all[0].submitted) == 1
    fleet.settle()
    assert fleet.region.terminal(first) is EndingCode.COMPLETED


def test_a_cancel_that_comes_before_its_request_is_remembered() -> None:
    fleet = Fleet("a")
    fleet.region.cancel("resp_test-0_" + f"{0:032x}")
    fleet.run(100)
    response_id = fleet.region.request()
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert not fleet.all[0].submitted


def test_a_halt_stops_the_generation_silently() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=500)
    fleet.run(300)
    ending = Ending(
        response_id=response_id, scope=SCOPE, code=EndingCode.SAFETY_HALTED, written_by="post-safety",
        reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip
    fleet.region.log.append(TOPICS.generated.name, ending.encode(), partition=0)
    fleet.region.control(Halt(response_id=response_id, scope=SCOPE, reason="safety"))
    fleet.run(100)
    assert len(fleet.all[0].aborted) == 1
    assert len(fleet.region.records(TOPICS.generated.name, Ending, GENERATED)) == 1


@pytest.mark.parametrize("max_running", [1, 4])
def test_a_deadline_ends_running_and_waiting_work(max_running: int) -> None:
    fleet = Fleet("a", max_running=max_running)
    ids = [fleet.region.request(max_tokens=500, deadline_ms=NOW_MS + 1_000) for _ in range(2)]
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in ids} == {EndingCode.DEADLINE_EXCEEDED}
    assert len(fleet.all[0].submitted) == min(max_running, 2)


def test_the_deadlines_of_what_ended_early_are_forgotten() -> None:
    fleet = Fleet("a", max_running=64)
    for _ in range(10):
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.settle()
    last = fleet.region.request(max_tokens=5_000, deadline_ms=fleet.region.now_ms + 2_000)
    fleet.run(1_000)
    assert fleet.all[0].core._deadlines.entries < 100
    fleet.settle()
    assert fleet.region.terminal(last) is EndingCode.DEADLINE_EXCEEDED


def test_a_dead_workers_answer_ends_as_interrupted_by_the_next_worker() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=200)
    fleet.run(1_000)
    fleet.crash("a")
    fleet.start("b")
    fleet.run(LEASE_MS // 2)
    assert fleet.region.terminal(begun) is None
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED


def test_a_dead_workers_answer_ends_while_the_next_workers_engine_is_still_loading() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=200)
    fleet.run(1_000)
    fleet.crash("a")
    unheard = [fleet.region.request() for _ in range(3)]
    heir = fleet.start("b")
    heir.engine_starts = False
    fleet.run(LEASE_MS + 200)
    assert fleet.region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED
    assert not heir.submitted
    heir.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in unheard} == {EndingCode.COMPLETED}


def test_a_dead_workers_answer_ends_while_the_next_worker_is_full_and_has_a_backlog() -> None:
    fleet = Fleet("a", "b", max_running=1)
    begun = [fleet.region.request(max_tokens=5_000, partition=partition) for partition in (0, 1)]
    fleet.run(1_000)
    for _ in range(30):
        fleet.region.request(partition=0)
        fleet.region.request(partition=1)
    fleet.run(200)
    fleet.crash("a")
    fleet.run(LEASE_MS + 200)
    assert {fleet.region.terminal(response_id) for response_id in begun} == {
        EndingCode.GENERATION_INTERRUPTED,
        None,  # of the worker that lives
    }
    assert len(fleet.region.open_responses()) == 61


def test_a_dead_workers_answer_that_said_nothing_waits_for_the_engine_alone() -> None:
    fleet = Fleet("a", max_running=1)
    silent = fleet.region.request()
    fleet.run(20)
    fleet.crash("a")
    heir = fleet.start("b")
    heir.engine_starts = False
    fleet.run(LEASE_MS + 200)
    assert fleet.region.terminal(silent) is None
    heir.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED


def test_work_that_finds_a_slot_at_once_costs_one_round_trip_to_the_claims() -> None:
    fleet = Fleet("a", max_running=4)
    for _ in range(4):
        fleet.region.request()
    fleet.settle()
    assert fleet.all[0].claims_asked == 4


def test_looking_for_what_others_began_takes_nothing_and_is_bounded() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    worker.engine_starts = False
    region = fleet.region
    ids = [region.request() for _ in range(MAX_LOOKS + 20)]
    core = WorkerCore(dataclasses.replace(worker.core.config, max_uncommitted_records=1_000), lambda: "att_look")
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    core.assigned([source])
    core.lane_records(region.log.records(source.topic), NOW_MS)
    core.tick(NOW_MS)
    looks = [effect for effect in core.effects() if isinstance(effect, AskClaim)]
    assert [look.response_id for look in looks] == ids[:MAX_LOOKS]
    core.tick(NOW_MS)
    assert core.effects() == []
    for look in looks:
        claim = region.claims.claim("w", ClaimRequest(look.response_id, look.attempt_id, look.only_begun), NOW_MS)
        core.claimed(look.response_id, look.attempt_id, claim, NOW_MS)
    core.tick(NOW_MS)
    assert [look.response_id for look in core.effects() if isinstance(look, AskClaim)] == ids[MAX_LOOKS:]
    assert all(region.claims.claim("other", ClaimRequest(each, "att"), NOW_MS).state == "fresh" for each in ids)


def test_work_that_said_nothing_yet_is_generated_by_the_next_worker() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.run(20)
    assert fleet.all[0].submitted
    fleet.crash("a")
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_after_a_revoke_the_worker_goes_on_and_the_next_owner_waits() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(max_tokens=300, partition=partition) for partition in (0, 1)]
    fleet.run(500)
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    assert [len(worker.submitted) for worker in fleet.all] == [2, 0]
    assert fleet.region.commits_checked > 0


def test_a_dead_engines_requests_begin_again_or_end() -> None:
    fleet = Fleet("a", max_running=2)
    begun = fleet.region.request(max_tokens=100)
    fleet.run(300)
    fresh = fleet.region.request()
    fleet.all[0].kill_engine = True
    fleet.run(20)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED
    assert fleet.region.terminal(fresh) is EndingCode.COMPLETED


def test_a_worker_that_leaves_without_an_engine_gives_back_what_said_nothing() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=100)
    fleet.run(300)
    silent = fleet.region.request()
    fleet.run(20)
    leaving = fleet.workers["a"]
    leaving.kill_engine = True
    leaving.engine_starts = False
    fleet.run(100)
    assert len(leaving.submitted) == 2
    fleet.workers.pop("a").lanes.close()
    leaving._run_effects()
    fleet.start("b")
    fleet.run(LEASE_MS // 4)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED
    assert fleet.region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED
    check(fleet.region)


def test_an_engine_that_keeps_dying_fails_the_request_in_the_end() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    for _ in range(12):
        fleet.all[0].kill_engine = True
        fleet.run(20)
    assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED


def test_an_undelivered_frame_stops_its_attempts_and_a_takeover_ends_them() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.log.inject(Fault(FaultKind.FAIL, "a-producer", 10))
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    assert not fleet.region.log.pending_faults()


def test_a_record_that_cannot_be_read_goes_to_dead_letters_and_the_next_is_served() -> None:
    fleet = Fleet("a")
    fleet.region.log.append(TOPICS.lane("pool", Lane.STANDARD).name, b'{"schema_version": 9}')
    fleet.region.claims_lost = True  # the harness cannot read it either
    response_id = fleet.region.request()
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    [letter] = fleet.region.log.records(TOPICS.dead_letters.name)
    assert DeadLetter.model_validate_json(letter.value or b"").reason == "unknown_version"
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert fleet.region.log.committed("workers.pool", source).offset == 2


def test_reading_stops_at_the_bound_of_uncommitted_records_and_goes_on() -> None:
    fleet = Fleet("a", max_running=10)
    for _ in range(130):
        fleet.region.request(Lane.BATCH, max_tokens=5)
    fleet.run(240)
    [worker] = fleet.all
    assert {source.topic for source in worker.core.over_share()} == {TOPICS.lane("pool", Lane.BATCH).name}
    assert sum(worker.core.waiting().values()) <= 60
    fleet.settle()
    check(fleet.region)


def test_reading_stops_far_behind_one_that_does_not_end_and_goes_on_when_it_has() -> None:
    """What ended behind it is not committed: after a crash it would all be read again."""
    fleet = Fleet("a", max_running=50)
    stuck = fleet.region.request(max_tokens=5_000)
    for _ in range(6):
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.run(1_000)
    [worker] = fleet.all
    held_up = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert worker.core.over_share() == {held_up}
    assert len(fleet.region.requests) - len(fleet.region.open_responses()) < 100 + 10  # the last batch may go beyond
    elsewhere = fleet.region.request(partition=1, max_tokens=1)
    fleet.run(1_000)
    assert fleet.region.terminal(elsewhere) is EndingCode.COMPLETED
    fleet.region.cancel(stuck)
    fleet.settle()
    check(fleet.region)
    assert worker.core.over_share() == set()


def test_a_flood_of_batch_work_does_not_keep_interactive_work_from_being_read() -> None:
    fleet = Fleet("a", max_running=2)
    for _ in range(130):
        fleet.region.request(Lane.BATCH, max_tokens=50)
    fleet.run(500)
    urgent = fleet.region.request(Lane.INTERACTIVE, max_tokens=5)
    fleet.run(3_000)
    assert fleet.region.terminal(urgent) is EndingCode.COMPLETED
    assert len(fleet.region.open_responses()) > 60
    fleet.settle()
    check(fleet.region)


@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 40)), max_size=80), st.integers(1, 30))
@example([(Lane.STANDARD, 0)] * 20 + [(Lane.BATCH, 0)] * 20, 20)
@example([(Lane.BATCH, 0)] * 20 + [(Lane.STANDARD, 0)] * 20 + [(Lane.INTERACTIVE, 0)] * 20, 20)
def test_no_lane_takes_the_room_of_a_higher_one_and_each_is_read_while_it_has_room(
    arrivals: list[tuple[Lane, int]], max_records: int
) -> None:
    """The records cannot be decoded: they stay open until their dead letters are delivered, which never happens."""
    max_bytes = 20 * max_records
    core = WorkerCore(
        CoreConfig(
            worker_id="w", pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,),
            lease_ms=LEASE_MS, max_running=1, healthy_buffer=0, max_uncommitted_records=max_records,
            max_uncommitted_bytes=max_bytes, coalesce_ms=0, coalesce_rows=1,
        ),
        lambda: "att_1",
    )  # fmt: skip
    sources = {lane: TopicPartition(TOPICS.lane("pool", lane).name, 0) for lane in LANES}
    core.assigned(sources.values())
    read: dict[Lane, list[int]] = {lane: [] for lane in LANES}

    def up_to(lane: Lane) -> list[int]:
        return [size_bytes for lower in LANES[LANES.index(lane) :] for size_bytes in read[lower]]

    for lane, size_bytes in arrivals:
        if sources[lane] in core.over_share():
            assert any(
                len(up_to(blamed)) >= LANE_SHARES[blamed] * max_records
                or sum(up_to(blamed)) >= LANE_SHARES[blamed] * max_bytes
                for blamed in LANES[: LANES.index(lane) + 1]
            )
            continue
        record = LogRecord(sources[lane].topic, 0, len(read[lane]), None, b"x" * size_bytes, (), NOW_MS)
        core.lane_records([record], NOW_MS)
        read[lane].append(size_bytes)
        for checked in LANES:
            # The record that fills a share may reach beyond it.
            assert len(up_to(checked)) < LANE_SHARES[checked] * max_records + 1
            assert sum(up_to(checked)) < LANE_SHARES[checked] * max_bytes + 40


def test_what_ended_is_remembered_in_a_few_hundred_bytes() -> None:
    fleet = Fleet("a", max_running=64)
    ids = [fleet.region.request(max_tokens=2) for _ in range(64)]
    fleet.settle()
    [worker] = fleet.all
    remembered = worker.core._recent
    assert remembered.keys() == set(ids)
    known = {id(part) for part in (SCOPE, TOPICS)}
    sizes = [size_bytes(ended, known) for ended in remembered.values()]
    assert sum(sizes) / len(sizes) < 1_000


def size_bytes(value: object, known: set[int]) -> int:
    """What `value` holds in memory beyond what is `known`, which grows: shared objects count once."""
    if id(value) in known or isinstance(value, type):
        return 0
    known.add(id(value))
    parts: list[object] = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if isinstance(value, dict):
        parts += [*value.keys(), *value.values()]
    parts += [getattr(value, name) for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())
              if not name.startswith("__weak") and hasattr(value, name)]  # fmt: skip
    if hasattr(value, "__dict__"):
        parts.append(value.__dict__)
    return sys.getsizeof(value) + sum(size_bytes(part, known) for part in parts)


def test_a_void_that_names_another_attempt_forgets_nothing_that_ended() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.settle()
    [fence] = fleet.region.records(TOPICS.generated.name, Fence, GENERATED)

    def void(attempt_id: str) -> None:
        fleet.region.control(
            AttemptVoid(
                response_id=response_id, scope=SCOPE, attempt_id=attempt_id, worker_id="a", why="tokens_precede"
            )
        )
        fleet.run(100)

    void("att_of_long_ago")
    assert fleet.region.records(TOPICS.generated.name, Fence, GENERATED) == [fence]
    # Still known: the attempt that wrote its end is taken over when it is the void one.
    void(fence.attempt_id)
    assert [fence.kind for fence in fleet.region.records(TOPICS.generated.name, Fence, GENERATED)][1:] == ["takeover"]


def test_a_fresh_fence_after_lost_claims_is_void_and_the_worker_ends_what_it_cut_off() -> None:
    """`a` is a zombie: it lost its partitions and its claim, and was stopped while `b` began anew."""
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    fleet.region.claims = ClaimTable(LEASE_MS)
    fleet.region.claims_lost = True
    fleet.start("b")
    fleet.run(500)
    fleet.workers["a"] = zombie
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED


def test_handed_over_work_is_taken_without_waiting_for_the_lease() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    leaving = fleet.workers.pop("a")
    leaving.lanes.close()
    leaving.core.drain()
    assert leaving.core.unfinished_attempts == 1
    leaving.core.hand_over(fleet.region.now_ms)
    leaving._run_effects()
    leaving.producer.flush(1)
    assert leaving.core.unfinished_attempts == 0
    fleet.start("b")
    fleet.run(500)
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED


def test_the_heartbeat_says_what_waits_and_what_is_consumed() -> None:
    fleet = Fleet("a", max_running=1)
    for _ in range(3):
        fleet.region.request(max_tokens=100)
    fleet.run(200)
    [worker] = fleet.all
    assert worker.engine is not None
    state = worker.core.state("ready", worker.engine.stats(), 50.0, True, fleet.region.now_ms)
    assert (state.running, state.waiting, state.queued_tokens) == (1, 2, 208)
    assert state.oldest_waiting_ms == 180
    assert state.lane_partitions == {lane: [0, 1] for lane in LANES}


ACTIONS = st.one_of(
    st.tuples(st.just("request"), st.sampled_from(LANES), st.integers(2, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("run"), st.sampled_from([20, 100, 400, 3_000]), st.just(0)),
    st.tuples(st.just("crash"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("crash_at_effect"), st.sampled_from("ab"), st.integers(0, 12)),
    st.tuples(st.just("rebalance"), st.just(0), st.just(0)),
    st.tuples(st.just("lost"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("engine_dies"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("engine_is_late"), st.sampled_from("ab"), st.integers(1, 4)),
    st.tuples(st.just("engine_stays_away"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("engine_may_start"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("claims_are_late"), st.sampled_from("ab"), st.integers(0, 1)),
    st.tuples(st.just("undelivered"), st.sampled_from("ab"), st.integers(1, 6)),
    st.tuples(st.just("duplicate"), st.sampled_from("ab"), st.integers(1, 6)),
    st.tuples(st.just("claims_down"), st.just(0), st.just(0)),
    st.tuples(st.just("claims_up"), st.just(0), st.just(0)),
    st.tuples(st.just("claims_flushed"), st.just(0), st.just(0)),
)


def play(script: list[tuple[Any, ...]], fleet: Fleet) -> None:
    """Carries out a script of faults; whoever died comes back before the next `run`."""
    region = fleet.region
    for what, which, size in script:
        worker = fleet.workers.get(str(which))
        if what == "request":
            region.request(which, max_tokens=size, partition=size % 2)
        elif what == "cancel" and which < len(region.requests):
            region.cancel(list(region.requests)[which])
        elif what == "run":
            fleet.run(which)
            for name in "ab":
                if name not in fleet.workers:
                    fleet.start(name)
        elif what == "crash":
            fleet.crash(which)
        elif what == "rebalance":
            bystander = region.log.consumer("workers.pool", "bystander")
            bystander.subscribe([TOPICS.lane("pool", lane).name for lane in LANES])
            fleet.run(20)
            bystander.close()
        elif what == "claims_down":
            region.claims_up, region.claims_lost = False, True
        elif what == "claims_up":
            region.claims_up = True
        elif what == "claims_flushed":
            region.claims, region.claims_lost = ClaimTable(LEASE_MS), True
        elif worker is None:
            continue
        elif what == "crash_at_effect":
            worker.dies_after = size
        elif what == "lost":
            worker.lanes.drop()
        elif what == "engine_dies":
            worker.kill_engine = True
        elif what == "engine_is_late":
            worker.late_rounds = size
        elif what == "engine_stays_away":
            worker.kill_engine, worker.engine_starts = worker.engine is not None, False
        elif what == "engine_may_start":
            worker.engine_starts = True
        elif what == "claims_are_late":
            worker.claims_are_late = bool(size)
        else:
            client_id = f"{which}-producer"
            at = region.log.script.records_passed(client_id) + size
            if all((fault.client_id, fault.at) != (client_id, at) for fault in region.log.pending_faults()):
                kind = FaultKind.FAIL if what == "undelivered" else FaultKind.DUPLICATE
                region.log.inject(Fault(kind, client_id, at))


@given(st.lists(ACTIONS, max_size=25), st.sampled_from([1, 4]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(
    [("request", Lane.STANDARD, 20), ("run", 400, 0), ("crash", "a", 0), ("request", Lane.BATCH, 3), ("run", 20, 0)], 4
)
@example([("request", Lane.STANDARD, 20), ("crash_at_effect", "a", 1), ("rebalance", 0, 0), ("run", 100, 0)], 4)
@example(
    [
        ("request", Lane.STANDARD, 30), ("request", Lane.STANDARD, 30), ("request", Lane.STANDARD, 30),
        ("run", 100, 0), ("engine_stays_away", "b", 0), ("claims_are_late", "b", 1), ("crash", "a", 0),
        ("run", 3_000, 0), ("rebalance", 0, 0), ("run", 3_000, 0), ("rebalance", 0, 0), ("run", 20, 0),
    ],
    1,
)  # fmt: skip
def test_whatever_fails_nothing_is_lost_and_nothing_is_said_twice(
    script: list[tuple[Any, ...]], max_running: int
) -> None:
    fleet = Fleet("a", "b", max_running=max_running)
    play(script, fleet)
    fleet.region.claims_up = True
    for worker in fleet.workers.values():
        worker.engine_starts = True
    fleet.settle("ab")
    check(fleet.region)
