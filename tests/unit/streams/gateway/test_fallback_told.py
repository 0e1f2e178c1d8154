"""Whom a smaller model answers is told so in every format, and who forbids it is passed on as such."""

import asyncio
import json
from typing import Any

import pytest

from schemas.endings import EndingCode
from schemas.fallback import Fallback
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say

ANSWERED = Fallback(asked="large", reason="overloaded")
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": HELLO,
    "completions": {"model": "small", "prompt": "Once"},
    "messages": {**HELLO, "max_tokens": 9},
    "responses": {"model": "small", "input": "Hello"},
}


async def answer(stack: Stack) -> None:
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request, fallback=ANSWERED)
    stack.pipeline.release(request, 1, ["Hi"])
    stack.pipeline.end(request, 2, EndingCode.COMPLETED, fallback=ANSWERED)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", BODIES)
async def test_each_format_names_the_model_that_answers_and_the_headers_the_one_that_was_asked(
    stack: Stack, path: str, stream: bool
) -> None:
    async with client(stack) as http:
        asked = http.post(f"/v1/{path}", json={**BODIES[path], "stream": stream})
        told, _ = await asyncio.gather(asked, answer(stack))
    assert told.headers["x-sluice-fallback-from"] == "large"
    assert told.headers["x-sluice-fallback-reason"] == "overloaded"
    assert '"model":"tiny"' in told.text.replace(" ", "")
    assert '"model":"small"' not in told.text.replace(" ", "")


async def test_who_has_what_was_asked_for_hears_nothing_of_it(stack: Stack) -> None:
    async with client(stack) as http:
        told, _ = await asyncio.gather(http.post("/v1/chat/completions", json=HELLO), stack.pipeline.answer(["Hi"]))
    assert not [header for header in told.headers if header.startswith("x-sluice-fallback")]


async def test_a_socket_says_it_where_it_begins_and_where_it_ends(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        await answer(stack)
        messages, _ = await hear_until_terminal(socket)
        [started] = [message for message in messages if message.type == "started"]
        assert (started.model, started.fallback) == ("tiny", ANSWERED)
        assert (messages[-1].model, messages[-1].fallback) == ("tiny", ANSWERED)
        await say(socket, type="request", request_id="r2", body=HELLO)
        await stack.pipeline.answer(["Hi"])
        async with asyncio.timeout(20):
            while (message := json.loads(await socket.recv()))["type"] != "terminal":
                assert "fallback" not in message
        assert "fallback" not in message


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_may_forbid_it(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        for field, allowed in (({}, True), ({"fallback": True}, True), ({"fallback": False}, False)):
            asked = http.post(f"/v1/{path}", json={**BODIES[path], **field})
            _, request = await asyncio.gather(asked, stack.pipeline.answer(["Hi"]))
            assert request.fallback is allowed
        refused = await http.post(f"/v1/{path}", json={**BODIES[path], "fallback": "never"})
    assert refused.status_code == 400
    assert "fallback" in refused.json()["error"]["message"]


MOVED: dict[str, Any] = {"model": "nano", "fallback": Fallback(asked="tiny", reason="failed")}
"""Failed before its first token, and answered by a smaller model: told again how it began."""


async def moved(stack: Stack) -> None:
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    await asyncio.sleep(0.05)  # whoever streams has begun to tell it
    stack.pipeline.start(request, **MOVED, moves=1)
    stack.pipeline.start(request)  # a rebuilt post-safety tells all of it again
    stack.pipeline.start(request, **MOVED, moves=1)
    stack.pipeline.release(request, 1, ["Hi"])
    stack.pipeline.end(request, 2, EndingCode.COMPLETED, **MOVED)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
async def test_who_is_moved_to_a_smaller_model_hears_one_answer_of_that(stack: Stack, path: str, stream: bool) -> None:
    async with client(stack) as http:
        asked = http.post(f"/v1/{path}", json={**BODIES[path], "stream": stream})
        told, _ = await asyncio.gather(asked, moved(stack))
        again = await http.get(f"/v1/responses/{told.headers['x-request-id']}")
    text = told.text.replace(" ", "")
    assert text.count("event:response.created") == (path == "responses" and stream), "it begins once"
    named = [line for line in text.splitlines() if '"model":' in line]
    assert '"model":"nano"' in named[-1], "at the latest where it ends"
    if not stream:
        assert told.headers["x-sluice-fallback-from"] == "tiny"
    assert again.json()["model"] == "nano"


async def test_a_stream_of_messages_begins_once_although_it_is_moved(stack: Stack) -> None:
    async with client(stack) as http:
        asked = http.post("/v1/messages", json={**BODIES["messages"], "stream": True})
        told, _ = await asyncio.gather(asked, moved(stack))
    assert told.text.count("event: message_start") == told.text.count("event: message_stop") == 1


async def test_a_socket_hears_again_how_it_began_before_the_first_token(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        await moved(stack)
        messages, _ = await hear_until_terminal(socket)
    told = [message for message in messages if message.type == "started"]
    assert (told[-1].model, told[-1].fallback) == (MOVED["model"], MOVED["fallback"])
    assert len(told) <= 2
    assert [message.type for message in messages].count("terminal") == 1
