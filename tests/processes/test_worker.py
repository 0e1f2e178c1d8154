"""The worker's shell on a real broker and a real Redis, with the simulated engine; and as a process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpu_consumers.core.claims import AskClaim, Claim, ClaimsUnavailable, FinishClaim
from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.membership import LISTEN_MS
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.simulated import SimulatedEngine, SimulatedEngineSettings
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.shell.redis_claims import RedisClaims
from gpu_consumers.worker import Ports, Worker
from schemas.base import Scope
from schemas.control import AttemptVoid, Cancel
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from schemas.request import LANES, AdmittedRequest, Lane, ReplyTo, Sampling
from schemas.worker import WorkerState
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.ids import mint_attempt_id
from streams.log.consumer_thread import ConsumerThread
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import LogRecord, TopicPartition
from streams.log.producer_thread import ProducerThread
from streams.provisioning import provision
from streams.redis_client import connect_redis
from streams.settings import KafkaSettings, WorkerSettings
from streams.topics import Partitions, Topics

ENGINE = SimulatedEngineSettings(ttft_ms=5, prompt_token_us=0, inter_token_ms=10, step_ms=5)
SCOPE = Scope(tenant_id="acme")
LOADS_FOR_EVER = ENGINE.model_copy(update={"start_ms": 3_600_000})
LEASE_MS = 1_000
_regions = count()


@dataclass
class Region:
    """Topics of its own on the shared broker, written and read as admission and post-safety do."""

    kafka: KafkaSettings
    redis_url: str
    name: str

    def __post_init__(self) -> None:
        self.topics = Topics(self.name, ["pool"], Partitions(lane=2, generated=2, responses=2, control=1))
        provision(self.kafka, self.topics.all([]))
        self.producer = ProducerThread(KafkaProducer(self.kafka, "test"))
        self.reader = KafkaConsumer(self.kafka, None, "test-reader")
        generated = self.topics.generated
        self.reader.assign({TopicPartition(generated.name, number): 0 for number in range(generated.partitions)})
        self.prefixes: dict[str, AcceptedPrefix] = {}
        self.records: list[Opened | Fence | Frame | Ending] = []
        self.numbers = count()

    async def request(self, *, max_tokens: int = 20, lane: Lane = Lane.STANDARD, stream_ms: int = 60_000) -> str:
        number = next(self.numbers)
        response_id = f"resp_{self.name}-0_{number:032x}"
        now_ms = time.time_ns() // 1_000_000
        common = {
            "response_id": response_id, "scope": SCOPE, "model": "m", "requested_model": "m", "pool": "pool",
            "lane": lane, "max_tokens": max_tokens, "reply_to": ReplyTo(partition=0), "accepted_at_ms": now_ms,
            "admitted_at_ms": now_ms, "deadline_ms": now_ms + stream_ms,
        }  # fmt: skip
        opened = Opened.model_validate({**common, "lane_partition": 0, "prompt_tokens": 4, "reserved_tokens": 0})
        generated = self.topics.generated.name
        offset = await self.producer.send(generated, opened.encode(), key=response_id, partition=number % 2)
        admitted = AdmittedRequest.model_validate(
            {
                **common,
                "prompt_token_ids": [number + 1, 2, 3, 4],
                "sampling": Sampling(ignore_eos=True),
                "generated_partition": number % 2,
                "opened_offset": offset,
            }
        )
        lane_topic = self.topics.lane("pool", lane).name
        await self.producer.send(lane_topic, admitted.encode(), key=response_id, partition=number % 2)
        return response_id

    async def cancel(self, response_id: str) -> None:
        record = Cancel(response_id=response_id, scope=SCOPE, reason="client", requested_at_ms=0)
        await self.producer.send(self.topics.control.name, record.encode(), key=response_id)

    async def fold(self) -> None:
        for record in await asyncio.to_thread(self.reader.poll, 1_000, 0.01):
            parsed = GENERATED.validate_json(record.value or b"")
            self.records.append(parsed)
            if isinstance(parsed, Opened):
                self.prefixes[parsed.response_id] = AcceptedPrefix(parsed.choices)
            elif isinstance(parsed, Fence):
                verdict = self.prefixes[parsed.response_id].fence(parsed, record.offset)
                if verdict != "current":
                    void = AttemptVoid(
                        response_id=parsed.response_id, scope=SCOPE, attempt_id=parsed.attempt_id,
                        worker_id=parsed.worker_id, why=verdict,
                    )  # fmt: skip
                    await self.producer.send(self.topics.control.name, void.encode(), key=parsed.response_id)
            elif isinstance(parsed, Ending):
                self.prefixes[parsed.response_id].ending(parsed)
            else:
                fold_frame(self.prefixes, parsed)

    async def until(self, condition: Callable[[], object], timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, "not in time"
            await self.fold()

    async def ended(self, *response_ids: str, timeout_s: float = 30) -> None:
        await self.until(lambda: all(self.terminal(response_id) for response_id in response_ids), timeout_s)

    def terminal(self, response_id: str) -> EndingCode | None:
        prefix = self.prefixes.get(response_id)
        return None if prefix is None else prefix.terminal

    def accepted(self, response_id: str) -> int:
        prefix = self.prefixes.get(response_id)
        return 0 if prefix is None else prefix.accepted_tokens

    def fences(self, response_id: str) -> list[Fence]:
        return [r for r in self.records if isinstance(r, Fence) and r.response_id == response_id]

    def committed(self) -> int:
        group = KafkaConsumer(self.kafka, f"{self.name}.workers.pool", "test-offsets")
        partitions = [TopicPartition(self.topics.lane("pool", lane).name, n) for lane in LANES for n in range(2)]
        total = sum(position.offset or 0 for position in group.committed(partitions).values())
        group.close()
        return total

    async def close(self) -> None:
        await self.producer.close(5)
        self.reader.close()


class Running:
    """A worker in this process."""

    def __init__(
        self, region: Region, worker_id: str, engine: SimulatedEngineSettings = ENGINE, **settings: object
    ) -> None:
        self.region = region
        self.settings = WorkerSettings.model_validate(
            {"worker_id": worker_id, "pool": "pool", "lease_ms": LEASE_MS, "drain_timeout_s": 5, **settings}
        )
        self.stop = asyncio.Event()
        self.redis = connect_redis(region.redis_url, timeout_ms=500, decode_responses=True)
        kafka = region.kafka
        config = CoreConfig(
            worker_id=worker_id, pool="pool", model="m", engine="simulated", topics=region.topics,
            home_partitions=(0,), lease_ms=LEASE_MS, max_running=64, healthy_buffer=0, max_uncommitted_records=1_000,
            max_uncommitted_bytes=10**7, coalesce_ms=0, coalesce_rows_per_s=1,
        )  # fmt: skip
        self.metrics = WorkerMetrics(CollectorRegistry())
        self.core = WorkerCore(config, mint_attempt_id, self.metrics)
        self.engine = SimulatedEngine(engine)
        self.ports = Ports(
            self.engine,
            lambda: ConsumerThread(
                KafkaConsumer(kafka, f"{region.name}.workers.pool", worker_id, fetch_wait_ms=20)
            ),
            ConsumerThread(KafkaConsumer(kafka, None, f"{worker_id}-control", fetch_wait_ms=20)),
            ProducerThread(KafkaProducer(kafka, worker_id)),
            RedisClaims(
                self.redis, region=region.name, pool="pool", incarnation=mint_attempt_id(), lease_ms=LEASE_MS
            ),
            lambda: KafkaConsumer(kafka, None, f"{worker_id}-read-back"),
        )  # fmt: skip
        self.worker = Worker(self.core, self.ports, self.settings, self.metrics)
        self.task = asyncio.create_task(self.worker.run(self.stop))

    def has_listened(self) -> bool:
        """Whether it has decided upon what it knows of the other workers, and had the time to join them."""
        since_ms = self.worker._membership._listening_since_ms
        return since_ms is not None and time.time() * 1_000 > since_ms + LISTEN_MS + 1_000

    def partitions(self) -> int:
        """How many it reads."""
        state = self.core.state("ready", self.engine.stats(), 0, True, 0)
        return sum(map(len, state.lane_partitions.values()))

    async def close(self) -> None:
        self.stop.set()
        try:
            await self.task
        finally:
            await self.ports.control.close()
            await self.ports.producer.close(5)
            await self.redis.aclose()


@asynccontextmanager
async def worker(
    region: Region, worker_id: str, engine: SimulatedEngineSettings = ENGINE, **settings: object
) -> AsyncIterator[Running]:
    running = Running(region, worker_id, engine, **settings)
    try:
        yield running
    finally:
        await running.close()


@pytest.fixture
async def region(kafka_settings: KafkaSettings, redis_url: str) -> AsyncIterator[Region]:
    region = Region(kafka_settings, redis_url, f"worker{next(_regions)}")
    yield region
    await region.close()


async def test_requests_of_all_lanes_are_answered_and_committed(region: Region) -> None:
    async with worker(region, "a") as running:
        ids = [await region.request(lane=lane) for lane in LANES for _ in range(4)]
        await region.ended(*ids)
        assert running.worker.not_ready is None
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    assert {region.accepted(response_id) for response_id in ids} == {20}
    assert region.committed() == 12


async def test_a_cancel_frees_the_engine_and_ends_the_response(region: Region) -> None:
    async with worker(region, "a") as running:
        response_id = await region.request(max_tokens=5_000)
        await region.until(lambda: region.accepted(response_id) > 3)
        assert running.engine.stats().running == 1
        await region.cancel(response_id)
        await region.ended(response_id, timeout_s=5)
        assert running.engine.stats().kv_blocks_used == 0
    assert region.terminal(response_id) is EndingCode.CANCELLED


async def test_a_drained_worker_finishes_what_runs_and_leaves_the_rest(region: Region) -> None:
    async with worker(region, "a"):
        running_id = await region.request(max_tokens=100)
        await region.until(lambda: region.accepted(running_id) > 3)
    later_id = await region.request()
    await region.ended(running_id)
    async with worker(region, "b"):
        await region.ended(later_id)
        assert {region.terminal(running_id), region.terminal(later_id)} == {EndingCode.COMPLETED}
    assert region.committed() == 2


async def test_what_a_drain_cannot_finish_is_taken_over(region: Region) -> None:
    async with worker(region, "a", drain_timeout_s=0.2):
        response_id = await region.request(max_tokens=50_000)
        await region.until(lambda: region.accepted(response_id) > 3)
    assert region.terminal(response_id) is None
    async with worker(region, "b"):
        await region.ended(response_id)
    assert region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    assert [fence.kind for fence in region.fences(response_id)] == ["fresh", "takeover"]


class HangsOnPartition0(KafkaConsumer):
    """As if the leader of that partition were away."""

    hangs = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.hangs |= any(source.partition == 0 for source in positions)
        super().assign(positions)

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        records = super().poll(max_records, timeout_s)
        return [] if self.hangs else records

    def end_reached(self, partition: TopicPartition) -> int:
        return 0 if self.hangs else super().end_reached(partition)


async def test_a_partition_that_cannot_be_read_holds_up_neither_other_takeovers_nor_the_end(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_consumers.shell.reading_back.PATIENCE_S", 3_600)
    async with worker(region, "a", drain_timeout_s=0.2):
        ids = [await region.request(max_tokens=50_000) for _ in range(4)]
        await region.until(lambda: all(region.accepted(response_id) > 3 for response_id in ids))
    async with worker(region, "b", drain_timeout_s=0.2) as heir:
        heir.worker._reading_back.reader = lambda: HangsOnPartition0(region.kafka, None, "b-read-back")
        await region.ended(ids[1], ids[3], timeout_s=60)
        assert [region.terminal(response_id) for response_id in (ids[0], ids[2])] == [None, None]
    deadline_s = time.monotonic() + 30
    while any(thread.name.startswith("read-back") for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "the process would wait for this thread"
        await asyncio.sleep(0.05)


async def test_without_redis_requests_are_answered_all_the_same(kafka_settings: KafkaSettings) -> None:
    region = Region(kafka_settings, "redis://127.0.0.1:1/0", f"worker{next(_regions)}")
    async with worker(region, "a"):
        ids = [await region.request() for _ in range(5)]
        await region.ended(*ids)
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    await region.close()


async def test_what_ended_while_redis_was_away_is_marked_when_it_is_back(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(region, "a") as running:
        claims = running.ports.claims
        finish, refused, told = claims.finish, asyncio.Event(), asyncio.Event()
        marked: list[str] = []

        async def away(_marks: Sequence[FinishClaim]) -> None:
            refused.set()
            raise ClaimsUnavailable("scripted")

        async def back(marks: Sequence[FinishClaim]) -> None:
            await finish(marks)
            marked.extend(mark.response_id for mark in marks)
            told.set()

        monkeypatch.setattr(claims, "finish", away)
        response_id = await region.request()
        await region.ended(response_id)
        async with asyncio.timeout(30):
            await refused.wait()
            monkeypatch.setattr(claims, "finish", back)
            await told.wait()
        assert marked == [response_id]
        [claim] = await claims.claim([AskClaim(response_id, "att_other")])
        assert claim is not None
        assert claim.state == "finished"


async def test_an_engine_that_hangs_is_started_again_and_its_answers_end(region: Region) -> None:
    hangs = ENGINE.model_copy(update={"hang_after_tokens": 400})  # seconds: both are to have begun by then
    async with worker(region, "a", hangs, engine_answers_s=0.5) as running:
        cut_off = [await region.request(max_tokens=5_000) for _ in range(2)]
        await region.ended(*cut_off)
        assert {region.terminal(each) for each in cut_off} == {EndingCode.GENERATION_INTERRUPTED}
        later = await region.request()
        await region.ended(later)
        assert running.metrics.engine_deaths._value.get() == 1
    assert region.terminal(later) is EndingCode.COMPLETED


@pytest.mark.long
async def test_an_answer_begun_while_redis_was_away_survives_a_rebalance_after_it(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with worker(region, "a") as running:
        claims = running.ports.claims
        claim, renew = claims.claim, claims.renew

        async def unanswered(asks: Sequence[AskClaim]) -> list[Claim | None]:
            return [None] * len(asks)

        async def refused() -> bool:
            raise ClaimsUnavailable("scripted")

        monkeypatch.setattr(claims, "claim", unanswered)
        monkeypatch.setattr(claims, "renew", refused)
        ids = [await region.request(max_tokens=800) for _ in range(4)]
        await region.until(lambda: all(region.accepted(each) > 3 for each in ids))
        monkeypatch.setattr(claims, "claim", claim)
        monkeypatch.setattr(claims, "renew", renew)
        await region.until(lambda: all(work.claimed_as for work in running.core._works.by_response.values()))
        async with worker(region, "b"):
            await region.ended(*ids, timeout_s=60)
    assert {region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


@pytest.mark.long
async def test_a_flood_of_batch_work_leaves_room_for_interactive_work(region: Region) -> None:
    flood = [await region.request(lane=Lane.BATCH, max_tokens=400) for _ in range(600)]
    async with worker(region, "a") as running:
        await region.until(lambda: sum(region.accepted(response_id) > 0 for response_id in flood) >= 64)
        await region.until(running.core.over_share)
        urgent = await region.request(lane=Lane.INTERACTIVE, max_tokens=5)
        await region.ended(urgent)
        assert region.terminal(urgent) is EndingCode.COMPLETED
        # Resumed when there is room again.
        for response_id in flood:
            await region.cancel(response_id)
        await region.ended(*flood)
        late = await region.request(lane=Lane.BATCH)
        await region.ended(late)


CONFIG = """
region = "{region}"
[kafka]
bootstrap = "{bootstrap}"
session_timeout_ms = 1000
partitions = {{ lane = 2, generated = 2, control = 1 }}
[redis]
url = "{redis}"
[worker]
worker_id = "{worker_id}"
pool = "pool"
lease_ms = 1000
[[models]]
name = "m"
path = "nowhere"
pool = "pool"
context_window = 4096
[[pools]]
name = "pool"
engine = "simulated"
[pools.engine_args]
inter_token_ms = 10
{more}
"""


def start_process(region: Region, folder: Path, worker_id: str, more: str = "") -> subprocess.Popen[bytes]:
    config = folder / f"{worker_id}.toml"
    config.write_text(
        CONFIG.format(
            region=region.name, bootstrap=region.kafka.bootstrap, redis=region.redis_url, worker_id=worker_id, more=more
        )
    )
    with (folder / f"{worker_id}.log").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gpu_consumers"],
            env={**os.environ, "SLUICE_CONFIG": str(config)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


async def test_a_killed_process_loses_nothing_and_a_stopped_one_leaves_cleanly(region: Region, tmp_path: Path) -> None:
    victim = start_process(region, tmp_path, "victim")
    heir = None
    try:
        begun = await region.request(max_tokens=3_000)
        await region.until(lambda: region.accepted(begun) > 10)
        victim.kill()
        waiting = await region.request()
        heir = start_process(region, tmp_path, "heir")
        await region.ended(begun, waiting)
        heir.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(heir.wait, 20) == 0, (tmp_path / "heir.log").read_text()
    finally:
        for process in (victim, heir):
            if process is not None:
                process.kill()
                process.wait(timeout=10)
    assert region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED
    assert region.terminal(waiting) is EndingCode.COMPLETED
    assert region.committed() == 2
    states = KafkaConsumer(region.kafka, None, "test-states")
    states.assign({TopicPartition(region.topics.workers.name, 0): 0})
    records = states.poll(1_000, 5)
    states.close()
    assert records[-1].value is None, "the last word of one that leaves"
    beats = [WorkerState.model_validate_json(record.value) for record in records if record.value is not None]
    assert {"ready", "draining"} <= {beat.state for beat in beats if beat.worker_id == "heir"}
    assert any(beat.lane_partitions[Lane.BATCH] == [0, 1] for beat in beats)


async def test_a_killed_workers_answer_ends_while_its_heir_loads_its_engine(region: Region, tmp_path: Path) -> None:
    victim = start_process(region, tmp_path, "victim")
    try:
        begun = await region.request(max_tokens=5_000)
        await region.until(lambda: region.accepted(begun) > 10)
        victim.kill()
        victim.wait(timeout=10)
        async with worker(region, "heir", LOADS_FOR_EVER) as heir:
            await region.ended(begun)
            assert heir.worker.not_ready == "starting"
    finally:
        victim.kill()
        victim.wait(timeout=10)
    assert region.terminal(begun) is EndingCode.GENERATION_INTERRUPTED


async def test_a_worker_that_loads_its_engine_takes_no_work_from_a_ready_one(region: Region) -> None:
    async with worker(region, "ready"):
        await region.ended(await region.request())
        async with worker(region, "loading", LOADS_FOR_EVER) as loading:
            await region.until(loading.has_listened)
            ids = [await region.request() for _ in range(8)]
            await region.ended(*ids)
            assert loading.partitions() == 0
    assert {region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}


@pytest.mark.long
async def test_a_worker_whose_engine_stays_away_leaves_its_work_to_a_ready_one(region: Region) -> None:
    async with worker(region, "ready") as ready:
        dies_once = ENGINE.model_copy(update={"die_after_tokens": 30})
        async with worker(region, "dying", dies_once) as dying:
            await region.until(lambda: ready.partitions() and dying.partitions(), timeout_s=60)
            dying.engine._settings = LOADS_FOR_EVER  # from its next start on
            # Two into each partition of each lane: whichever of them it got, the engine is asked for enough to die.
            ids = [await region.request(max_tokens=30, lane=LANES[number // 2 % len(LANES)]) for number in range(12)]
            await region.ended(*ids)
            await region.until(lambda: dying.worker.not_ready and not dying.partitions())
            late = [await region.request() for _ in range(4)]
            await region.ended(*late)
            assert dying.worker.not_ready == "starting"
    assert {region.terminal(each) for each in ids} <= {EndingCode.COMPLETED, EndingCode.GENERATION_INTERRUPTED}
    assert {region.terminal(each) for each in late} == {EndingCode.COMPLETED}


async def test_wrong_engine_settings_are_named(region: Region, tmp_path: Path) -> None:
    process = start_process(region, tmp_path, "wrong", more='colour = "red"')
    assert await asyncio.to_thread(process.wait, 30) == 2
    assert "engine_args.colour" in (tmp_path / "wrong.log").read_text()
