"""A region on the real broker, written and read as admission and post-safety do, and workers of it in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

from prometheus_client import CollectorRegistry

from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.membership import LISTEN_MS
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.simulated_group import simulated_engine
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.shell.redis_claims import RedisClaims
from gpu_consumers.worker import Ports, Worker
from schemas.base import Scope
from schemas.control import AttemptVoid, Cancel
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from schemas.request import LANES, AdmittedRequest, Lane, ReplyTo, Sampling
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.engine_args import SimulatedEngineSettings
from streams.ids import mint_attempt_id
from streams.log.consumer_thread import ConsumerThread
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import TopicPartition
from streams.log.producer_thread import ProducerThread
from streams.provisioning import provision
from streams.redis_client import connect_redis
from streams.settings import KafkaSettings, WorkerSettings
from streams.topics import Partitions, Topics

ENGINE = SimulatedEngineSettings(ttft_ms=5, prompt_token_us=0, inter_token_ms=10, step_ms=5)
FAST = ENGINE.model_copy(update={"inter_token_ms": 2, "step_ms": 2})
"""Says the same, for who goes on with what is to be long where it begins."""
SCOPE = Scope(tenant_id="acme")
LEASE_MS = 1_000
"""Short, since heirs wait for its end. Who is held up for so long is taken for dead."""


@dataclass
class Region:
    """Topics of its own on the shared broker, written and read as admission and post-safety do."""

    kafka: KafkaSettings
    redis_url: str
    name: str
    lane_partitions: int = 2

    def __post_init__(self) -> None:
        self.topics = Topics(self.name, ["pool"], Partitions(lane=self.lane_partitions, generated=2, responses=2))
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
        partition = number % self.lane_partitions
        await self.producer.send(lane_topic, admitted.encode(), key=response_id, partition=partition)
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

    async def until(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, "not in time"
            await self.fold()

    async def ended(self, *response_ids: str, timeout_s: float = 60) -> None:
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
        partitions = [
            TopicPartition(self.topics.lane("pool", lane).name, number)
            for lane in LANES
            for number in range(self.lane_partitions)
        ]
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
        lease_ms = self.settings.lease_ms
        self.stop = asyncio.Event()
        self.redis = connect_redis(region.redis_url, timeout_ms=500, decode_responses=True)
        kafka = region.kafka
        config = CoreConfig(
            worker_id=worker_id, pool="pool", model="m", engine="simulated", topics=region.topics,
            home_partitions=(0,), lease_ms=lease_ms, max_running=64, healthy_buffer=0, max_uncommitted_records=1_000,
            max_uncommitted_bytes=10**7, coalesce_ms=0, coalesce_rows_per_s=1,
        )  # fmt: skip
        self.metrics = WorkerMetrics(CollectorRegistry())
        self.core = WorkerCore(config, mint_attempt_id, self.metrics)
        self.engine = simulated_engine(engine)
        self.ports = Ports(
            self.engine,
            lambda lane: ConsumerThread(
                KafkaConsumer(kafka, f"{region.name}.workers.pool", f"{worker_id}-{lane.value}", fetch_wait_ms=20)
            ),
            ConsumerThread(KafkaConsumer(kafka, None, f"{worker_id}-control", fetch_wait_ms=20)),
            ProducerThread(KafkaProducer(kafka, worker_id)),
            RedisClaims(
                self.redis, region=region.name, pool="pool", incarnation=mint_attempt_id(), lease_ms=lease_ms
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
