"""Where a response was put when it was moved stands once for each move, for as long as it is held: in every store."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from agents.quota.port import Placed, QuotaStore
from schemas.admission import Decision
from tests.unit.agents.quota.quota_model import ModelQuota
from tests.unit.agents.quota.test_quota import LIMITS, NOW, ROUTE, new_quota

SPARE = ROUTE.model_copy(update={"pool": "spare"})
SMALL = ROUTE.model_copy(update={"pool": "small"})


@pytest.fixture(params=["model", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QuotaStore]:
    if request.param == "model":
        yield ModelQuota(NOW)
        return
    async with Redis.from_url(request.getfixturevalue("redis_url"), retry=None) as client:
        yield await new_quota(client)


async def decided(store: QuotaStore) -> None:
    await store.decide("acme", LIMITS, "r1", ROUTE, tokens=100, deadline_ms=NOW + 60_000)


async def place(store: QuotaStore, move: int, to: Decision | None) -> Placed | None:
    return await store.place("acme", LIMITS, "r1", move, to)


async def test_the_first_place_of_a_move_stands_and_so_does_that_there_is_none(store: QuotaStore) -> None:
    await decided(store)
    assert await place(store, 1, SPARE) == Placed(SPARE)
    for again in (SMALL, None, SPARE):
        assert await place(store, 1, again) == Placed(SPARE)
    assert await place(store, 2, None) == Placed(None)
    assert await place(store, 2, SMALL) == Placed(None)
    stands = await store.look("acme", LIMITS, "r1", deadline_ms=NOW + 60_000)
    assert getattr(stands, "decision", None) == ROUTE, "its route is what it was"


@pytest.mark.parametrize("why", ["unknown", "reserved alone", "settled", "refunded"])
async def test_what_is_not_held_or_not_routed_has_no_place(store: QuotaStore, why: str) -> None:
    if why == "reserved alone":
        await store.reserve("acme", LIMITS, "r1", tokens=100, deadline_ms=NOW + 60_000)
    elif why != "unknown":
        await decided(store)
        await place(store, 1, SPARE)
    if why == "settled":
        await store.settle("acme", LIMITS, "r1", 0, 5)
    elif why == "refunded":
        await store.refund("acme", LIMITS, "r1")
    assert await place(store, 1, SMALL) is None
