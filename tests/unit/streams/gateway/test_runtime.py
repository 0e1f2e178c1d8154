"""What a gateway does with a part of itself that has failed."""

import asyncio
import threading

import pytest
from redis.asyncio import Redis

from streams.gateway.history.store import LogHistory
from streams.log.port import LogError
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import PatientProducer, memory_log, serving


async def test_a_gateway_whose_producer_has_ended_ends_and_leaves_nothing_open(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look ready and refuse everything."""
    is_fenced = threading.Event()
    closed: list[str] = []
    poll, close_history, close_redis = PatientProducer.poll, LogHistory.close, Redis.aclose

    def fenced(producer: PatientProducer, timeout_s: float = 0.0) -> int:
        if is_fenced.is_set():
            raise LogError("fenced", retriable=False)
        return poll(producer, timeout_s)

    def closing_history(history: LogHistory) -> None:
        closed.append("history")
        close_history(history)

    async def closing_redis(client: Redis) -> None:
        closed.append("redis")
        await close_redis(client)

    monkeypatch.setattr(PatientProducer, "poll", fenced)
    monkeypatch.setattr(LogHistory, "close", closing_history)
    monkeypatch.setattr(Redis, "aclose", closing_redis)

    async def serve() -> None:
        async with serving(settings, memory_log(settings)) as stack:
            is_fenced.set()
            async with asyncio.timeout(20):
                await asyncio.wait((stack.running,))

    with pytest.raises(LogError, match="fenced"):
        await serve()
    assert sorted(closed) == ["history", "redis"]
