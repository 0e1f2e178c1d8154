"""What a gateway depends on and gets no answer from is asked by one at a time, and others hear so at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from streams.gateway.history.store import (
    CIRCUIT_FAILURES,
    CIRCUIT_OPEN_MS,
    PROBE_MS,
    RedisHistory,
    connect_history,
)
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.settings import RedisSettings, Settings
from tests.unit.streams.gateway.gateway_stack import gateway_settings, memory_log, serving
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.replays import entry, span
from tests.unit.streams.gateway.test_operations import make_admin


class Deaf:
    """Takes connections and says nothing on them."""

    def __init__(self) -> None:
        self.connections = 0

    async def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read()
        writer.close()


@asynccontextmanager
async def deaf_redis() -> AsyncIterator[tuple[Deaf, Redis]]:
    deaf = Deaf()
    async with await asyncio.start_server(deaf.listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        redis = connect_history(RedisSettings(url=f"redis://127.0.0.1:{port}/0", timeout_ms=20))
        yield deaf, redis
        await redis.aclose()


async def test_a_history_that_does_not_answer_is_left_alone_and_tried_by_one(settings: Settings) -> None:
    now_ms = 0
    response_id = settings.response_ids.mint(0)
    async with deaf_redis() as (deaf, redis):
        history = RedisHistory(
            redis, "deaf", retention_s=100, response_timeout_ms=50_000, clock_ms=lambda: now_ms
        )  # fmt: skip

        async def read() -> None:
            with pytest.raises(HistoryUnavailable):
                await history.read("acme", response_id, 0)

        for _ in range(CIRCUIT_FAILURES):
            assert not history.circuit_is_open
            await read()
        assert history.circuit_is_open
        asked = deaf.connections
        await asyncio.gather(*(read() for _ in range(200)))
        with pytest.raises(HistoryUnavailable):
            await history.append([entry(response_id, span(1, "a"), with_start=True)])
        assert deaf.connections == asked, "nobody waited for it"
        now_ms = CIRCUIT_OPEN_MS
        await asyncio.gather(*(read() for _ in range(200)))
        assert deaf.connections == asked + 1, "one tried"


async def test_a_history_that_is_back_is_read_at_once(settings: Settings) -> None:
    now_ms = 0
    response_id = settings.response_ids.mint(0)
    redis = connect_history(settings.redis)
    history = RedisHistory(
        redis, settings.region, retention_s=100, response_timeout_ms=50_000, clock_ms=lambda: now_ms
    )  # fmt: skip
    await history.append([entry(response_id, span(1, "abc"), with_start=True)])
    for _ in range(CIRCUIT_FAILURES):
        history._breaker.failed(now_ms, now_ms)
    with pytest.raises(HistoryUnavailable):
        await history.read("acme", response_id, 0)
    now_ms = CIRCUIT_OPEN_MS + PROBE_MS
    for _ in range(3):
        assert (await history.read("acme", response_id, 0)).last == 3
    assert not history.circuit_is_open
    await redis.aclose()


async def test_what_a_gateway_gets_no_answer_from_is_shown(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "circuits", circuit_failures=1, circuit_open_ms=300_000)
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        make_admin(stack)

        async def shown() -> tuple[list[str], dict[str, float]]:
            told = (await http.get("/api/operations")).json()["gateway"]["open_circuits"]
            [family] = stack.runtime._metrics._circuits.collect()
            return told, {sample.labels["dependency"]: sample.value for sample in family.samples}

        assert await shown() == ([], {"admission": 0, "database": 0, "history": 0})
        stack.runtime.gateway.circuit.enter(1).timed_out()
        assert await shown() == (["admission"], {"admission": 1, "database": 0, "history": 0})
