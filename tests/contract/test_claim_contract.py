"""Claims: the Redis script against the table in memory, and what happens to claims in time."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
import redis as sync_redis
from hypothesis import HealthCheck, given, settings
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gpu_consumers.claim import Claim, ClaimRequest, ClaimsUnavailable, ClaimTable, RedisClaims
from streams.redis_client import connect_redis
from streams.script_pipeline import MAX_BATCH, ScriptPipeline

LONG_MS = 600_000
_regions = count()

Step = tuple[Literal["claim", "take_over", "finish", "release", "resign"], str, str]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "take_over", "finish", "release", "resign"]),
        st.sampled_from(["a/1", "a/2", "b/1"]),
        st.sampled_from(["r1", "r2"]),
    ),
    max_size=25,
)


def claims(redis: Redis, region: str, incarnation: str = "a/1", lease_ms: int = LONG_MS) -> RedisClaims:
    return RedisClaims(redis, region=region, pool="p", incarnation=incarnation, lease_ms=lease_ms)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect_redis(redis_url, timeout_ms=5_000, max_connections=64, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
def region() -> str:
    return f"claims{next(_regions)}"


@given(script=STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_redis_decides_as_the_table_does(redis_url: str, script: list[Step]) -> None:
    async def play() -> None:
        client = connect_redis(redis_url, timeout_ms=5_000, decode_responses=True)
        region = f"claims{next(_regions)}"
        stores = {name: claims(client, region, name) for name in ("a/1", "a/2", "b/1")}
        table = ClaimTable(LONG_MS)
        for number, (what, incarnation, response_id) in enumerate(script):
            store = stores[incarnation]
            if what in ("claim", "take_over"):
                request = ClaimRequest(response_id, f"att_{number}", only_begun=what == "take_over")
                [found] = await store.claim([request])
                expected = table.claim(incarnation, request, 0)
                assert found is not None
                assert found.state == expected.state
                if found.state == "expired":
                    assert found.previous_attempt_id == expected.previous_attempt_id
                if found.state == "leased":
                    assert 0 < found.retry_in_ms <= LONG_MS
            elif what == "finish":
                await store.finish([response_id])
                table.finish(incarnation, response_id)
            elif what == "release":
                await store.release([response_id])
                table.release(incarnation, response_id)
            else:
                await store.resign()
                table.resign(incarnation)
        await client.aclose()

    asyncio.run(play())


async def test_of_many_that_claim_at_once_one_gets_it(redis: Redis, region: str) -> None:
    workers = [claims(redis, region, f"w{number}/1") for number in range(20)]
    answers = await asyncio.gather(*(worker.claim([ClaimRequest("r", "att")]) for worker in workers))
    assert sorted(answer.state for [answer] in answers if answer is not None) == ["fresh"] + ["leased"] * 19


async def test_one_renewal_keeps_everything_and_its_absence_loses_everything(redis: Redis, region: str) -> None:
    holder, other = claims(redis, region, "a/1", lease_ms=400), claims(redis, region, "b/1")
    requests = [ClaimRequest(f"r{number}", f"att{number}") for number in range(50)]
    assert {claim and claim.state for claim in await holder.claim(requests)} == {"fresh"}
    for _ in range(4):
        await asyncio.sleep(0.15)
        await holder.renew()
    leased = [claim for claim in await other.claim(requests) if claim is not None]
    assert [claim.state for claim in leased] == ["leased"] * 50
    assert all(0 < claim.retry_in_ms <= 400 for claim in leased)
    await asyncio.sleep(leased[0].retry_in_ms / 1_000 + 0.02)
    assert await other.claim(requests) == [Claim("expired", f"att{number}") for number in range(50)]


async def test_what_nobody_began_is_left_alone_by_who_asks_for_begun_work_only(redis: Redis, region: str) -> None:
    holder, heir = claims(redis, region, "a/1", lease_ms=100), claims(redis, region, "b/1")
    await holder.claim([ClaimRequest("begun", "att_old")])
    asked = [ClaimRequest(each, "att_new", only_begun=True) for each in ("begun", "unheard")]
    assert [claim and claim.state for claim in await heir.claim(asked)] == ["leased", "fresh"]
    await asyncio.sleep(0.15)
    assert await heir.claim(asked) == [Claim("expired", "att_old"), Claim("fresh")]
    assert await holder.claim([ClaimRequest("unheard", "att")]) == [Claim("fresh")]


async def test_a_worker_that_was_overtaken_cannot_call_the_work_finished(redis: Redis, region: str) -> None:
    zombie, heir, third = (claims(redis, region, name, lease_ms=100) for name in ("a/1", "b/1", "c/1"))
    await zombie.claim([ClaimRequest("r", "att_zombie")])
    await asyncio.sleep(0.15)
    assert await heir.claim([ClaimRequest("r", "att_heir")]) == [Claim("expired", "att_zombie")]
    await zombie.finish(["r"])
    await asyncio.sleep(0.15)
    assert await third.claim([ClaimRequest("r", "att_third")]) == [Claim("expired", "att_heir")]


async def test_every_key_ends_by_itself(redis: Redis, region: str) -> None:
    store = claims(redis, region)
    await store.claim([ClaimRequest("r1", "att1"), ClaimRequest("r2", "att2")])
    await store.finish(["r2", "r3"])
    keys = [key async for key in redis.scan_iter(f"sluice:{region}:*")]
    assert len(keys) == 3
    assert all([await redis.pttl(key) > 0 for key in keys])


async def test_a_store_that_does_not_answer_says_so() -> None:
    client = connect_redis("redis://127.0.0.1:1/0", timeout_ms=200, decode_responses=True)
    store = claims(client, "nowhere")
    assert await store.claim([ClaimRequest("r1", "a"), ClaimRequest("r2", "b")]) == [None, None]
    for call in (store.renew(), store.finish(["r"]), store.release(["r"])):
        with pytest.raises(ClaimsUnavailable):
            await call
    with pytest.raises(ClaimsUnavailable):
        await store.resign()
    await client.aclose()


async def test_all_calls_of_a_store_share_one_connection(redis: Redis, region: str) -> None:
    store = claims(redis, region)
    await store.claim([ClaimRequest("r", "att")])
    connections = len(await redis.client_list())
    await asyncio.gather(store.finish(["r"]), store.release(["r"]), store.claim([ClaimRequest("s", "att")]))
    assert len(await redis.client_list()) == connections
    assert await store.claim([ClaimRequest("r", "att"), ClaimRequest("s", "att")]) == [
        Claim("finished"),
        Claim("expired", "att"),
    ]


async def test_a_claim_that_failed_leaves_the_answers_of_the_others(
    redis: Redis, redis_url: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond `MAX_BATCH` a call is sent as several batches, of which one may fail alone."""
    holder, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    requests = [ClaimRequest(f"r{number}", f"att{number}") for number in range(MAX_BATCH + 20)]
    await holder.claim(requests)
    await other.claim([ClaimRequest("warm", "att")])
    exchange = ScriptPipeline._exchange
    batches = count()

    async def second_fails(self: ScriptPipeline, calls: Any, *first: Any) -> object:
        if next(batches) == 1:
            raise RedisConnectionError("scripted")
        return await exchange(self, calls, *first)

    monkeypatch.setattr(ScriptPipeline, "_exchange", second_fails)
    answers = await other.claim(requests)
    assert [claim and claim.state for claim in answers] == ["leased"] * MAX_BATCH + [None] * 20


async def test_the_script_survives_a_flushed_script_cache(redis: Redis, redis_url: str, region: str) -> None:
    store = claims(redis, region)
    await store.claim([ClaimRequest("r1", "att1")])
    with sync_redis.Redis.from_url(redis_url) as admin:
        admin.script_flush()
    assert await store.claim([ClaimRequest("r2", "att2")]) == [Claim("fresh")]
