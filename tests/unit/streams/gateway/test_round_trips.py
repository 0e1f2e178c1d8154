"""What many ask of Redis at once goes there together, and each has its own answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ConnectionError as AwayError
from redis.exceptions import ResponseError

from streams.gateway.history.round_trips import RoundTrips
from streams.gateway.history.store import RedisHistory, connect_history
from streams.settings import RedisSettings, Settings
from tests.unit.streams.gateway.replays import entry, span


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Redis]:
    async with connect_history(settings.redis) as client:
        yield client


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commands each trip takes."""
    made: list[int] = []
    execute = Pipeline.execute

    async def counted(pipeline: Pipeline, raise_on_error: bool = True) -> list[Any]:
        made.append(len(pipeline))
        return await execute(pipeline, raise_on_error)

    monkeypatch.setattr(Pipeline, "execute", counted)
    return made


async def both(asking: RoundTrips, key: str) -> list[Any]:
    return await asking.ask(lambda pipeline: pipeline.get(key), lambda pipeline: pipeline.strlen(key))


async def test_who_asks_at_the_same_time_shares_a_trip_and_has_its_own_answers(
    client: Redis, settings: Settings, trips: list[int]
) -> None:
    keys = [f"{settings.region}:{number}" for number in range(20)]
    for number, key in enumerate(keys):
        await client.set(key, "x" * number)
    asking = RoundTrips(client)
    answers = await asyncio.gather(*(both(asking, key) for key in keys))
    assert answers == [[b"x" * number, number] for number in range(20)]
    assert trips == [40]
    assert await both(asking, keys[3]) == [b"xxx", 3]
    assert trips == [40, 2]


async def test_what_redis_refuses_is_told_to_nobody_else(client: Redis, settings: Settings) -> None:
    text, numbers = f"{settings.region}:text", f"{settings.region}:numbers"
    await client.set(text, "a")
    await client.rpush(numbers, "1")
    asking = RoundTrips(client)
    asks = (both(asking, text), both(asking, numbers), both(asking, text))
    told = await asyncio.gather(*asks, return_exceptions=True)
    assert [told[0], told[2]] == [[b"a", 1]] * 2
    assert isinstance(told[1], ResponseError)


async def test_while_redis_is_away_all_are_told_so() -> None:
    async with connect_history(RedisSettings(url="redis://127.0.0.1:1/0")) as nowhere:
        asking = RoundTrips(nowhere)
        told = await asyncio.gather(*(both(asking, "key") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in told] == [AwayError] * 3


async def test_who_leaves_takes_nobody_elses_answers(client: Redis, settings: Settings) -> None:
    key = f"{settings.region}:key"
    await client.set(key, "abc")
    asking = RoundTrips(client)
    asks = [asyncio.ensure_future(both(asking, key)) for _ in range(3)]
    await asyncio.sleep(0)
    asks[0].cancel()
    assert await asyncio.gather(*asks[1:]) == [[b"abc", 3]] * 2
    assert asks[0].cancelled()


async def test_a_question_that_is_none_leaves_nobody_waiting(client: Redis) -> None:
    asking = RoundTrips(client)
    nothing: Any = object()
    asks = (both(asking, "key"), asking.ask(lambda pipeline: pipeline.set("key", nothing)))
    told = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), 60)
    assert all(isinstance(error, Exception) for error in told)


async def test_a_crowd_that_comes_back_costs_a_few_trips(client: Redis, settings: Settings, trips: list[int]) -> None:
    near = RedisHistory(client, settings.region, retention_s=100, response_timeout_ms=50_000)
    ids = [settings.response_ids.mint(0) for _ in range(320)]
    for response_id in ids:
        await near.append([entry(response_id, span(1, "abc"), with_start=True, is_first=True)])
    trips.clear()
    replays = await asyncio.gather(*(near.read("acme", response_id, 1) for response_id in ids))
    assert ["".join(part.text for part in replay.spans) for replay in replays] == ["bc"] * 320
    assert len(trips) <= 20  # a tenant's turns are 32 at a time
