"""What a gateway does with a part of itself that has failed."""

import asyncio
import json
import threading

import pytest
from redis.asyncio import Redis
from websockets.asyncio.client import connect

from streams.gateway.history.log_history import LogHistory
from streams.log.port import LogError, TopicPartition
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import KEY, PatientProducer, memory_log, serving, until

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}


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
            async with asyncio.timeout(60):
                await asyncio.wait((stack.running,))

    with pytest.raises(LogError, match="fenced"):
        await serve()
    assert sorted(closed) == ["history", "redis"]


async def test_a_coordinator_that_is_away_holds_up_no_viewer_and_the_commit_is_made_up_for(settings: Settings) -> None:
    log = memory_log(settings)
    async with (
        serving(settings, log) as stack,
        connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None) as socket,
        asyncio.timeout(60),
    ):
        await socket.send(json.dumps({"type": "request", "request_id": "1", "body": HELLO}))
        request = await stack.pipeline.next_request()
        place = TopicPartition(settings.topics.responses.name, request.reply_to.partition or 0)
        stack.pipeline.start(request)
        log.coordinator_leaves()
        for number in range(1, 4):
            stack.pipeline.release(request, number, [f"{number} "])
            while json.loads(await socket.recv()).get("text") != f"{number} ":
                pass
        assert log.committed("gateways", place).offset is None
        log.coordinator_returns()
        await until(lambda: log.committed("gateways", place).offset == 4, "what was read is committed")
