"""What a tenant's refusals cost in Redis, and what is still known of them."""

import asyncio
import uuid

import pytest
from redis.asyncio import Redis

from agents.quota.port import Refusal, Reserved
from agents.quota.store import RedisQuota
from schemas.endings import EndingCode
from streams import redis_keys
from streams.directory import Limits
from streams.ids import ResponseIds

IDS = ResponseIds("local", [b"a secret"])
NOW = 1_790_000_000_000
NARROW = Limits(requests_per_minute=1)
WIDE = Limits()


@pytest.fixture
async def quota(client: Redis) -> RedisQuota:
    quota = RedisQuota(client, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW)
    await quota.begin_epoch(await quota.new_epoch(), NOW)
    return quota


async def reserve(quota: RedisQuota, tenant_id: str, limits: Limits, response_id: str) -> object:
    return await quota.reserve(tenant_id, limits, response_id, tokens=1, deadline_ms=NOW + 600_000)


async def used_bytes(client: Redis) -> int:
    return int((await client.info("memory"))["used_memory"])


async def test_what_was_cancelled_is_never_admitted_however_much_is_refused_and_however_long_it_waits(
    client: Redis,
) -> None:
    quota = RedisQuota(client, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW, refusals_kept=10)
    await quota.begin_epoch(await quota.new_epoch(), NOW)
    deadline_ms = NOW + 86_400_000
    lines = [IDS.derive(64, "loud", "batch", str(number), at_ms=NOW) for number in range(100)]
    for line in lines:
        cancelled = Refusal(code=EndingCode.CANCELLED)
        assert await quota.refuse("loud", WIDE, line, cancelled, deadline_ms=deadline_ms) == cancelled
    for number in range(50):
        await reserve(quota, "loud", NARROW, IDS.mint(number))
    for name in ("cancelled:1", "cancelled:2"):
        left_ms = await client.pttl(redis_keys.quota(quota._region, "loud", name))
        assert left_ms < 0 or left_ms > 86_400_000, "Redis' own clock would let go of it sooner"
    for line in lines[::9]:
        outcome = await quota.reserve("loud", WIDE, line, tokens=1, deadline_ms=deadline_ms, may_wait=True)
        assert isinstance(outcome, Refusal)
        assert outcome.code is EndingCode.CANCELLED


@pytest.mark.long
async def test_a_flood_of_one_tenant_s_refusals_fills_no_store_and_others_are_admitted(
    client: Redis, quota: RedisQuota
) -> None:
    assert await reserve(quota, "loud", NARROW, IDS.mint(3)) == Reserved(1)
    ids = [IDS.mint(number % 64) for number in range(100_000)]
    before_bytes, most_bytes = await used_bytes(client), 0
    for start in range(0, len(ids), 1_000):
        outcomes = await asyncio.gather(*(reserve(quota, "loud", NARROW, id_) for id_ in ids[start : start + 1_000]))
        assert all(isinstance(outcome, Refusal) for outcome in outcomes)
        if start % 10_000 == 0:
            most_bytes = max(most_bytes, await used_bytes(client) - before_bytes)
    assert most_bytes < 4 * 1024 * 1024
    assert await reserve(quota, "other", WIDE, IDS.mint(3)) == Reserved(1)
    # What a crash can leave unacknowledged is among the last; those are refused alike, though there is room now.
    assert quota.now_ms is not None
    quota.now_ms += 120_000
    again = [await reserve(quota, "loud", NARROW, id_) for id_ in ids[-5_000::500]]
    assert {outcome.code if isinstance(outcome, Refusal) else outcome for outcome in again} == {
        EndingCode.RATE_LIMITED_REQUESTS
    }
