"""Workers of one pool on a real broker: balances, restarts and one that is slow, while requests come."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count

import pytest

from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from streams.log.kafka import KafkaConsumer
from streams.settings import KafkaSettings
from tests.processes.worker_region import ENGINE, Region, Running, worker

pytestmark = pytest.mark.long

TOKENS = 150
"""Of each answer: a second and a half."""
PARTITIONS = 4
HALF = dict.fromkeys(LANES, PARTITIONS // 2)
_regions = count()


@pytest.fixture
async def region(kafka_settings: KafkaSettings, redis_url: str) -> AsyncIterator[Region]:
    region = Region(kafka_settings, redis_url, f"together{next(_regions)}", lane_partitions=PARTITIONS)
    yield region
    await region.close()


async def asked_for(region: Region, seconds: int) -> list[str]:
    """Eighteen a second, of all lanes."""
    ids: list[str] = []
    for _ in range(seconds):
        ids += [await region.request(max_tokens=TOKENS, lane=lane) for lane in LANES for _ in range(6)]
        until_s = time.monotonic() + 1
        await region.until(lambda until_s=until_s: time.monotonic() > until_s)  # type: ignore[misc]
    return ids


async def all_are_whole(region: Region, ids: list[str], tokens: int = TOKENS) -> None:
    await region.ended(*ids, timeout_s=120)
    assert {region.terminal(each) for each in ids} == {EndingCode.COMPLETED}
    assert {region.accepted(each) for each in ids} == {tokens}


def comes_and_goes(region: Region, over: threading.Event) -> int:
    """A foreign member that is there for half of the time, reads nothing, and keeps the partitions that it is given
    until it leaves. Returns how often some came to it.
    """
    came = 0
    while not over.is_set():
        foreign = KafkaConsumer(region.kafka, f"{region.name}.workers.pool", "foreign")
        foreign.subscribe([region.topics.lane("pool", lane).name for lane in LANES])
        since_s = time.monotonic()
        while time.monotonic() < since_s + (1.5 if foreign.assignment() else 3):
            foreign.poll(100, 0.1)
        came += bool(foreign.assignment())
        foreign.close()
        over.wait(1.5)
    return came


async def test_a_rebalance_every_three_seconds_holds_up_nothing(region: Region) -> None:
    over = threading.Event()
    async with worker(region, "a"), worker(region, "b"):
        storm = asyncio.create_task(asyncio.to_thread(comes_and_goes, region, over))
        try:
            ids = await asked_for(region, 18)
            ended = sum(region.terminal(each) is not None for each in ids)
        finally:
            over.set()
            came = await storm
        await all_are_whole(region, ids)
        await region.until(lambda: region.committed() >= len(ids))
    assert came >= 3
    assert ended > len(ids) / 2, "while it went on"


async def test_a_rolling_restart_of_all_workers_fails_nothing(region: Region) -> None:
    async with AsyncExitStack() as others:
        running = {name: await others.enter_async_context(AsyncExitStack()) for name in "abc"}
        for name, stack in running.items():
            await stack.enter_async_context(worker(region, name))
        asking = asyncio.create_task(asked_for(region, 12))
        for name, stack in running.items():
            await asyncio.sleep(2)
            await stack.aclose()  # as SIGTERM: it finishes what runs, for five seconds at most
            await stack.enter_async_context(worker(region, name))
        await all_are_whole(region, await asking)


def owned(worker: Running) -> dict[Lane, int]:
    """How many partitions of each lane are its."""
    return {lane: len(numbers) for lane, numbers in worker.core._lanes.owned().items()}


async def test_a_worker_that_is_added_has_its_part_of_every_lane(region: Region) -> None:
    async with worker(region, "a") as a:
        await region.until(lambda: a.partitions() == PARTITIONS * len(LANES))
        async with worker(region, "b") as b:
            await region.until(lambda: owned(a) == owned(b) == HALF)


async def test_what_waits_at_a_slow_worker_is_answered_by_another(region: Region) -> None:
    slow_engine = ENGINE.model_copy(update={"inter_token_ms": 200, "step_ms": 50})
    async with worker(region, "slow", slow_engine) as slow, worker(region, "swift") as swift:
        await region.until(lambda: owned(slow) == owned(swift) == HALF)
        ids = [await region.request() for _ in range(500)]
        await all_are_whole(region, ids, 20)
        spilled = slow.metrics._spilled.labels(Lane.STANDARD.value)._value.get()
    assert spilled > 20
    assert len({fence.attempt_id for each in ids for fence in region.fences(each)}) == len(ids), "each was begun once"
    assert region.committed() == len(ids) + spilled
