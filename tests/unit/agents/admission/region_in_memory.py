"""Admission as it runs: every agent of a placement on the log in memory, with the quota store on a real Redis.

Time goes faster than on the wall: `SPEED` seconds of the region pass in one.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from redis.asyncio import Redis

from agents.admission.app import Binding, bindings
from agents.admission.in_order import MAX_BYTES_IN_WORK
from agents.admission.pipeline import Pipeline, places_among
from agents.quota.store import RedisQuota
from schemas.generated import Ending, Opened
from schemas.request import AdmittedRequest, Lane
from streams.directory import Limits, ProducerKey, Tenant
from streams.ids import stable_partition
from streams.log.memory import MemoryLog
from streams.log.port import LogRecord, TopicPartition
from tests.unit.agents.admission.world import NOW, PRODUCER_KEY, PUBLIC_KEY, World

SPEED = 20
DEADLINE_S = 100.0
IN_WORK = 256


class Region:
    def __init__(
        self, client: Redis, placement: str, jobs_per_second: int, bytes_in_work: int, **tenants: Limits
    ) -> None:
        self.world = World()
        self.directory = self.world.directory
        self.directory.all |= {
            name: Tenant(
                tenant_id=name, tier="paid", limits=limits,
                producer_keys=[ProducerKey(key_id="p1", public_key=PUBLIC_KEY)],
            )
            for name, limits in tenants.items()
        }  # fmt: skip
        self._began_s = time.monotonic()
        self.topics = self.world.topics
        self.quota = RedisQuota(client, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW)
        self.log = MemoryLog(clock_ms=lambda: NOW)
        for topic in self.topics.all(self.directory.all):
            self.log.create_topic(topic.name, topic.partitions)
        services = replace(self.world.services, quota=self.quota, clock_ms=self.now_ms)
        self._bytes_in_work = bytes_in_work
        places = places_among(IN_WORK, bytes_in_work)
        self.pipeline = Pipeline(
            services, self, self._recover, 3, sleep=self._sleep, places=places, monotonic_ms=self.now_ms
        )
        self.errors: list[Exception] = []
        self.acknowledged = 0
        table = bindings(placement, self.topics, self.pipeline, jobs_per_second)
        self._agents = [asyncio.create_task(self._agent(binding)) for binding in table]

    def now_ms(self) -> int:
        self.quota.now_ms = NOW + round((time.monotonic() - self._began_s) * SPEED * 1_000)
        return self.quota.now_ms

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)

    async def _recover(self) -> None:
        await self.quota.begin_epoch(await self.quota.new_epoch(), NOW)

    async def publish(self, topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        await asyncio.sleep(0)
        if partition is None:
            partition = stable_partition(key, len(self.log.consumer(None, "any").partitions(topic)))
        return self.log.append(topic, value, key=key, partition=partition)

    async def note(self, topic: str, value: bytes, *, key: str) -> int:
        return await self.publish(topic, value, key=key)

    async def _agent(self, binding: Binding) -> None:
        consumer = self.log.consumer(f"admission.{binding.name}", binding.name)
        consumer.subscribe([binding.topic])
        window = binding.window(IN_WORK, self.errors.append, self._bytes_in_work)
        handle = binding.paced(lambda: self.now_ms() / 1_000, self._sleep)
        while True:
            records = consumer.poll(32, 0)
            for record in records:
                size_bytes = len(record.value or b"")
                await window.start(record.source, partial(handle, record), self._acknowledge, size_bytes)
            if not records:
                await asyncio.sleep(0.001)

    def _acknowledge(self) -> None:
        self.acknowledged += 1

    def submit(self, tenant_id: str, custom_ids: Sequence[str], key: Ed25519PrivateKey = PRODUCER_KEY) -> None:
        for number, custom_id in enumerate(custom_ids):
            record = self.world.job(custom_id=custom_id, tenant_id=tenant_id, expires_ms=NOW + 6 * 3_600_000, key=key)
            self.log.append(
                record.topic, record.value, key=custom_id, partition=number % self.topics.counts.intake,
                headers=record.headers,
            )  # fmt: skip

    def send(self, response_id: str, tenant_id: str, text: str = "hello there") -> None:
        """With a deadline that is later than any that a test sets itself, however slow its machine is."""
        deadline_ms = NOW + round(2 * DEADLINE_S * SPEED * 1_000)
        request = self.world.request(text, tenant=tenant_id, response_id=response_id, deadline_ms=deadline_ms)
        record = self.world.record(request)
        self.log.append(record.topic, record.value, key=response_id, headers=record.headers)

    def beat(self) -> None:
        self.world.beat(lease_ms=10**9, beat_at_ms=self.now_ms())

    def records(self, topic: str) -> list[LogRecord]:
        reader = self.log.consumer(None, "reader")
        reader.assign(dict.fromkeys(reader.partitions(topic), 0))
        return reader.poll(10**6, 0)

    def in_lane(self, lane: Lane = Lane.BATCH) -> list[AdmittedRequest]:
        topic = self.topics.lane("default", lane).name
        return [AdmittedRequest.model_validate_json(record.value or b"") for record in self.records(topic)]

    def endings(self) -> list[Ending]:
        records = self.records(self.topics.generated.name)
        return [Ending.model_validate_json(r.value or b"") for r in records if b'"type":"ending"' in (r.value or b"")]

    def opened(self) -> list[Opened]:
        records = self.records(self.topics.generated.name)
        return [Opened.model_validate_json(r.value or b"") for r in records if b'"type":"opened"' in (r.value or b"")]

    async def finish_all(self, count: int) -> None:
        """A worker ends whatever comes into the batch lane, and says that nothing waits, until so much has ended.

        It may take as long as it gets on: a busy machine is slow at thousands.
        """
        seen: dict[TopicPartition, int] = {}
        done = 0
        deadline_s = time.monotonic() + DEADLINE_S
        while done < count:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline_s, f"{done} of {count} have ended: {self._state()}"
            if ended := await self._finish(seen):
                done, deadline_s = done + ended, time.monotonic() + DEADLINE_S
            self.beat()
            await asyncio.sleep(0.02)

    async def _finish(self, seen: dict[TopicPartition, int]) -> int:
        reader = self.log.consumer(None, "worker")
        partitions = reader.partitions(self.topics.lane("default", Lane.BATCH).name)
        reader.assign({partition: seen.get(partition, 0) for partition in partitions})
        records = reader.poll(10**6, 0)
        work = [AdmittedRequest.model_validate_json(record.value or b"") for record in records]
        seen.update({record.source: record.offset + 1 for record in records})
        for each in work:
            tenant_id = each.scope.tenant_id
            limits = self.directory.all[tenant_id].limits
            await self.quota.settle(tenant_id, limits, each.response_id, 0, 5)
        return len(work)

    async def until(self, condition: object, what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():  # type: ignore[operator]
            assert not self.errors, self.errors
            assert time.monotonic() < deadline_s, f"{what}: {self._state()}"
            await asyncio.sleep(0.005)

    def _state(self) -> dict[str, int]:
        """How many records stand in each topic."""
        topics = [topic.name for topic in self.topics.all(self.directory.all)]
        return {topic: count for topic in topics if (count := len(self.records(topic)))}

    async def close(self) -> None:
        for agent in self._agents:
            if agent.done():
                agent.result()
            agent.cancel()
            with suppress(asyncio.CancelledError):
                await agent
        assert not self.errors, self.errors


@asynccontextmanager
async def region(
    redis_url: str,
    placement: str,
    *,
    jobs_per_second: int = 10**6,
    bytes_in_work: int = MAX_BYTES_IN_WORK,
    **tenants: Limits,
) -> AsyncIterator[Region]:
    async with Redis.from_url(redis_url, retry=None) as client:
        region = Region(client, placement, jobs_per_second, bytes_in_work, **tenants)
        try:
            yield region
        finally:
            await region.close()
