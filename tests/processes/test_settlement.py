"""The settlement process on a real broker and a real Redis."""

import asyncio
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from redis.asyncio import Redis

from agents.quota.beside import Beside, Hold
from agents.quota.port import Finished
from agents.quota.store import RedisQuota
from agents.settlement import core
from agents.settlement.core import REMEMBERED_MS, LaneQueues, Settlement
from agents.settlement.spending import Spending
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.month import Month
from schemas.spent import SpentTotal
from schemas.usage import UsageEvent
from streams.directory import Limits
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.reading import kept_offsets, read_offsets
from streams.price_list import PriceList, PriceReader, told_of
from streams.pricing import PriceRow
from streams.settings import KafkaSettings
from streams.toml_directory import TomlTenantDirectory
from tests.processes.region import Region, now_ms
from tests.servers import until
from tests.unit.agents.quota.quota_model import ModelQuota

PRICE = PriceRow("m", "USD", 0, 10_000, 1_000, 20_000, 20_000)
LINE_NANO = (5 * 10_000 + 5 * 20_000) // 1_000
"""Of one `usage`."""
LIMITS = Limits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000_000, concurrent_responses=100_000)


def usage(response_id: str) -> UsageEvent:
    at_ms = now_ms()
    return UsageEvent(
        response_id=response_id, scope=Scope(tenant_id="acme"), usage_id=f"{response_id}/0", choice=0,
        endpoint="chat.completions", model="m", requested_model="m", pool="default", lane="standard", worker_id="w",
        attempts=1, ending=EndingCode.COMPLETED, finish_reason="stop", billable=True, accepted_at_ms=at_ms,
        first_token_at_ms=at_ms, ended_at_ms=at_ms, uncached_input_tokens=5, cached_input_tokens=0, output_tokens=5,
        reasoning_tokens=0, released_tokens=5, reserved_tokens=100,
    )  # fmt: skip


def test_killed_and_started_again_it_settles_everything_once(
    kafka_settings: KafkaSettings, redis_url: str, tmp_path: Path
) -> None:
    region = Region(kafka_settings, redis_url, tmp_path)
    names = [f"r{i}" for i in range(200)]

    async def story() -> None:
        async with Redis.from_url(redis_url, retry=None) as client:
            quota = RedisQuota(client, region.name)
            await quota.begin_epoch(await quota.new_epoch(), now_ms())
            region.put(region.topics.prices.name, told_of(PRICE).encode(), key=PRICE.price_id)
            region.flush()
            began, hold = str(Month.at(now_ms())), Beside(hold=Hold(now_ms(), "USD", 1_000, 1, "default", "", {}))
            for name in names:
                deadline_ms = now_ms() + 600_000
                await quota.reserve("acme", LIMITS, name, tokens=100, deadline_ms=deadline_ms, beside=hold)

            async def until_active(at_most: int) -> None:
                deadline_s = time.monotonic() + 60
                while await quota.active_count("acme") > at_most:
                    assert time.monotonic() < deadline_s, region.logs()
                    await asyncio.sleep(0.01)

            with region.process("agents.settlement") as process:
                for name in names[:100]:
                    region.put(region.topics.usage.name, usage(name).encode(), key=name)
                region.flush()
                await until_active(150)
                process.kill()
            for name in names[100:]:
                region.put(region.topics.usage.name, usage(name).encode(), key=name)
            region.flush()
            with region.process("agents.settlement") as process:
                await until_active(0)
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) == 0, region.logs()
            for name in names:
                outcome = await quota.reserve("acme", LIMITS, name, tokens=100, deadline_ms=now_ms())
                assert outcome == Finished()
            months = [await quota.sums("acme", each, "USD") for each in {began, str(Month.at(now_ms()))}]
            assert sum(month.of("tenant").spent for month in months) == 200 * LINE_NANO
            assert sum(month.of("tenant").held for month in months) == 0
        told: dict[bytes | None, SpentTotal] = {}
        with closing(KafkaConsumer(kafka_settings, None, "told")) as reader:
            written = kept_offsets(reader, reader.partitions(region.topics.spent.name))
            for record in read_offsets(reader, written, time.monotonic() + 60):
                told[record.key] = SpentTotal.model_validate_json(record.value or b"")
        assert sum(total.nano["tenant"] for total in told.values()) == 200 * LINE_NANO, "as it was committed"

    asyncio.run(story())
    region.close()


def test_a_group_that_is_new_goes_on_where_the_stores_memory_begins(
    kafka_settings: KafkaSettings, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "FORGOTTEN_SLACK_MS", 0)  # the broker dates what is written: all of it is of today
    region = Region(kafka_settings, redis_url, tmp_path)
    usage_topic = region.topics.usage.name

    def used(names: list[str]) -> None:
        for name in names:
            region.put(usage_topic, usage(name).encode(), key=name)
        region.flush()

    used([f"forgotten{number}" for number in range(3_000)])
    memory_begins_ms = now_ms() + 1
    until(lambda: now_ms() > memory_begins_ms, "the clock went on")
    used([f"known{number}" for number in range(10)])
    with asyncio.Runner() as loop:
        consumer = KafkaConsumer(kafka_settings, f"{region.name}.settlement", "settlement")
        producer, quota, prices = KafkaProducer(kafka_settings, "settlement"), ModelQuota(), PriceList()
        directory = TomlTenantDirectory(region.tenants_file)

        def clock_ms() -> int:
            return memory_begins_ms + REMEMBERED_MS

        reader = PriceReader(
            lambda: KafkaConsumer(kafka_settings, None, "prices"), region.topics.prices.name, prices, lambda *_: None
        )
        settlement = Settlement(
            topics=region.topics, consumer=consumer, producer=producer, quota=quota, directory=directory,
            queued=LaneQueues(region.topics, lambda _pool: consumer),
            spending=Spending(
                topics=region.topics, producer=producer, quota=quota, directory=directory, region=region.name,
                prices=prices, reader=reader, clock_ms=clock_ms,
            ),
            clock_ms=clock_ms, wait=time.sleep, run=loop.run,
        )  # fmt: skip
        settlement.start()
        finished: list[int] = []

        def is_at_the_end() -> bool:
            finished.append(settlement.step())
            committed = consumer.committed(consumer.partitions(usage_topic))
            return all(position.offset == consumer.watermarks(place)[1] for place, position in committed.items())

        until(is_at_the_end, "all is settled or passed over")
        settlement.close()
        reader.close()
    assert sum(finished) == 10
    region.close()
