"""Who is told that a response failed is told how far it had come: whether it cost an engine anything."""

import asyncio
import json
from typing import Any

import pytest

from schemas.endings import EndingCode, Reached
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say

BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": HELLO,
    "completions": {"model": "small", "prompt": "Once"},
    "embeddings": {"model": "small", "input": "Once"},
    "messages": {**HELLO, "max_tokens": 9},
    "responses": {"model": "small", "input": "Hello"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_each_format_says_it_at_once_and_looked_up(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        asked = http.post(f"/v1/{path}", json=BODIES[path])
        ended = stack.pipeline.ends(EndingCode.OVERLOADED, reached=Reached.REJECTED, retry_after_ms=2_500)
        refused, request = await asyncio.gather(asked, ended)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "rejected-overloaded")
        assert (refused.headers["retry-after-ms"], refused.headers["retry-after"]) == ("2500", "3")
        shown = (await http.get(f"/v1/{path}/{request.response_id}")).json()
        assert shown["error"]["reason"] == "rejected-overloaded"


@pytest.mark.parametrize("path", [path for path in BODIES if path != "embeddings"])
async def test_a_stream_says_it_where_it_breaks_off(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        asked = http.post(f"/v1/{path}", json={**BODIES[path], "stream": True})
        ended = stack.pipeline.ends(EndingCode.DEADLINE_EXCEEDED, "Hi", reached=Reached.STOPPED)
        streamed, _ = await asyncio.gather(asked, ended)
    told = [json.loads(data) for _, data in events_of(streamed.text) if data != "[DONE]"][-1]
    error = told["response"]["error"] if path == "responses" else told["error"]
    assert error["reason"] == "stopped-deadline_exceeded"


async def test_a_socket_says_it(stack: Stack) -> None:
    async with dial(stack) as socket:
        for reached in Reached:
            await say(socket, type="request", request_id="r1", body=HELLO)
            await stack.pipeline.ends(EndingCode.CANCELLED, reached=reached)
            messages, _ = await hear_until_terminal(socket)
            assert messages[-1].error.reason == f"{reached.value}-cancelled"


async def test_where_nobody_has_said_it_nothing_is_told(stack: Stack) -> None:
    """Terminals of the release before, and refusals of the gateway's own: nothing was accepted."""
    async with client(stack) as http:
        asked = http.post("/v1/chat/completions", json=HELLO)
        before, _ = await asyncio.gather(asked, stack.pipeline.ends(EndingCode.OVERLOADED))
        own = await http.post("/v1/chat/completions", json={**HELLO, "messages": []})
    assert "reason" not in before.json()["error"]
    assert "reason" not in own.json()["error"]
