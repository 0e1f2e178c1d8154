"""Ids that nobody was given: whoever guesses them finds nothing, and costs nothing but the answer."""

import asyncio
import os
import time
from typing import Any

import pytest

from schemas.websocket import Delta, ErrorMessage
from streams.gateway.history.log_history import LogHistory
from streams.gateway.history.store import History, RedisHistory
from streams.ids import uuid7
from tests.unit.streams.gateway.gateway_stack import Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, text_of
from tests.unit.streams.gateway.socket_clients import dial, hear, say

SOCKETS, IDS_PER_SOCKET = 100, 20


def invented(stack: Stack) -> str:
    """Well-formed, of now, and of a partition that exists."""
    unique = uuid7(time.time_ns() // 1_000_000, os.urandom(10))
    return f"resp_{stack.settings.region}-{unique.int % 2}_{unique.hex}"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids that history was asked for, wherever."""
    asked: list[str] = []
    for owner, name in ((History, "read"), (History, "outline"), (RedisHistory, "read"), (LogHistory, "read")):
        real = getattr(owner, name)

        async def count(self: Any, tenant_id: str, response_id: str, *rest: Any, _real: Any = real, **more: Any) -> Any:
            asked.append(response_id)
            return await _real(self, tenant_id, response_id, *rest, **more)

        monkeypatch.setattr(owner, name, count)
    return asked


async def guess_on_sockets(stack: Stack) -> None:
    for _ in range(SOCKETS):
        async with dial(stack) as socket:
            for number in range(IDS_PER_SOCKET - 1):
                kind: dict[str, Any] = {"type": "resume", "starting_after": 1} if number % 2 else {"type": "cancel"}
                await say(socket, **kind, response_id=invented(stack))
            for _ in range(IDS_PER_SOCKET - 1):
                answer = await hear(socket)
                assert isinstance(answer, ErrorMessage)
                assert (answer.error.code, answer.resumable) == ("response_not_found", False)


async def guess_over_http(stack: Stack) -> None:
    async with client(stack) as http:
        for _ in range(100):
            response_id = invented(stack)
            for method, path in (("GET", ""), ("GET", "?stream=true&starting_after=1"), ("POST", "/cancel")):
                answer = await http.request(method, f"/v1/responses/{response_id}{path}")
                assert (answer.status_code, answer.headers["x-should-retry"]) == (404, "false")


async def come_back(stack: Stack, response_id: str) -> None:
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=response_id, starting_after=1)
        back = await hear(socket)
        assert isinstance(back, Delta), back
        assert back.text == "two "


async def test_thousands_of_invented_ids_cost_no_history_and_a_genuine_resume_goes_on(
    stack: Stack, reads: list[str]
) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one ", "two "])
        await until(lambda: stack.runtime.hub.released_tokens == 2, "tokens arrive")
        async with asyncio.timeout(60):
            async with asyncio.TaskGroup() as guessing:
                guessing.create_task(guess_on_sockets(stack))
                guessing.create_task(guess_over_http(stack))
                guessing.create_task(come_back(stack, request.response_id))
        assert set(reads) <= {request.response_id}
        assert stack.runtime.gateway.hub.get(request.response_id) is not None
        stack.pipeline.end(request, 3)
        assert text_of(events_of((await asking).text)) == "one two "
    assert stack.pipeline.cancels() == []
