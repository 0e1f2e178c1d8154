"""What is reserved and routed in one call: both, or neither."""

from redis.asyncio import Redis

from agents.quota.port import Decided, Refusal, Reserved
from agents.quota.store import RedisQuota
from schemas.admission import Decision
from schemas.endings import EndingCode
from tests.unit.agents.quota.test_quota import LIMITS, NOW, OTHER_ROUTE, ROUTE, decide, new_quota, refuse


async def reserve(quota: RedisQuota, response_id: str, route: Decision | None, tokens: int = 100) -> object:
    return await quota.reserve(
        "acme", LIMITS, response_id, tokens=tokens, deadline_ms=NOW + 60_000, decision=route
    )  # fmt: skip


async def test_the_route_is_set_with_the_reservation_and_stands(client: Redis) -> None:
    quota = await new_quota(client)
    assert await reserve(quota, "r1", ROUTE) == Decided(ROUTE, 100, is_new=True)
    for again in (ROUTE, OTHER_ROUTE, None):
        assert await reserve(quota, "r1", again) == Decided(ROUTE, 100)
    assert await decide(quota, "r1", OTHER_ROUTE) == Decided(ROUTE, 100)
    assert await refuse(quota, "r1") == Decided(ROUTE, 100)
    assert await quota.active_count("acme") == 1
    assert await reserve(quota, "the rest", None, 900) == Reserved(900), "it was taken once"


async def test_what_was_reserved_without_a_route_gets_one_by_a_later_call(client: Redis) -> None:
    quota = await new_quota(client)
    assert await reserve(quota, "r1", None) == Reserved(100)
    assert await reserve(quota, "r1", ROUTE, 500) == Decided(ROUTE, 100, is_new=True)
    assert await reserve(quota, "the rest", None, 900) == Reserved(900)


async def test_beyond_a_limit_nothing_is_routed_then_or_later(client: Redis) -> None:
    quota = await new_quota(client)
    refusal = await reserve(quota, "r1", ROUTE, 1_001)
    assert isinstance(refusal, Refusal)
    assert refusal.code is EndingCode.RATE_LIMITED_TOKENS
    assert await quota.active_count("acme") == 0
    again = await reserve(quota, "r1", ROUTE, 1)
    assert isinstance(again, Refusal)
    assert again.code is refusal.code


async def test_who_takes_is_told_what_is_left_and_nobody_is_told_twice(client: Redis) -> None:
    quota = await new_quota(client)
    first, second = await reserve(quota, "r1", None, 100), await reserve(quota, "r2", ROUTE, 300)
    assert isinstance(first, Reserved)
    assert isinstance(second, Decided)
    assert (first.limits["requests_remaining"], first.limits["tokens_remaining"]) == (59, 900)
    assert second.limits == {
        "requests_limit": 60, "requests_remaining": 58, "requests_reset_ms": 2_000,
        "tokens_limit": 1_000, "tokens_remaining": 600, "tokens_reset_ms": 24_000,
    }  # fmt: skip
    for again in (await reserve(quota, "r1", None), await reserve(quota, "r1", ROUTE), await decide(quota, "r2")):
        assert isinstance(again, Reserved | Decided)
        assert again.limits == {}, "of then, and nobody has kept them"
