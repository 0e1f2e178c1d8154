"""A key that is revoked, or over, ends what is open by it: sockets, streams, and whoever waits for a whole answer."""

import asyncio

import pytest
from websockets.exceptions import ConnectionClosed

from schemas.request import Request
from schemas.websocket import Pong
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client
from tests.unit.streams.gateway.socket_clients import dial, hear, say


async def begun(stack: Stack) -> Request:
    """The next request has said its first word, and says no more."""
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["Hi"])
    return request


def nobody_watches(stack: Stack, request: Request) -> bool:
    stream = stack.runtime.hub.get(request.response_id)
    return stream is None or not stream.viewers


async def test_an_idle_socket_closes_by_itself_and_another_tenants_stays(stack: Stack) -> None:
    async with dial(stack) as socket, dial(stack, additional_headers={"x-api-key": OTHER_KEY}) as others:
        for each in (socket, others):
            await say(each, type="ping", nonce="1")
            assert await hear(each) == Pong(nonce="1")
        stack.directory.revoked.add(KEY)
        closing = await hear(socket)
        assert (closing.code, closing.reason, closing.resumable) == (4401, "unauthenticated", False)
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        await say(others, type="ping", nonce="2")
        assert await hear(others) == Pong(nonce="2")


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
async def test_a_stream_ends_with_an_error_and_no_further_word(stack: Stack, path: str) -> None:
    asked = {"completions": {"prompt": "Hi"}, "responses": {"input": "Hi"}}.get(path, {"messages": HELLO["messages"]})
    body = {"model": "small", "stream": True, "max_tokens": 9, **asked}
    if path == "responses":
        del body["max_tokens"]
    beginning = asyncio.ensure_future(begun(stack))
    async with client(stack) as http, http.stream("POST", f"/v1/{path}", json=body) as answer:
        request, lines, told = await beginning, answer.aiter_lines(), ""
        while "Hi" not in told:
            told += await anext(lines)
        stack.directory.revoked.add(KEY)
        await until(lambda: nobody_watches(stack, request), "nobody watches")
        stack.pipeline.release(request, 2, [" SECRET"])
        rest = "".join([line async for line in lines])
    assert "unauthenticated" in rest
    assert "SECRET" not in rest


async def test_who_waits_for_a_whole_answer_is_told_so(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await begun(stack)
        await until(lambda: stack.has_released(request), "it is followed")
        stack.directory.revoked.add(KEY)
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"] == request.response_id


async def test_what_it_asked_for_goes_on_and_is_had_by_a_key_that_stands(stack: Stack) -> None:
    beginning = asyncio.ensure_future(begun(stack))
    async with client(stack) as http, http.stream("POST", "/v1/chat/completions", json={**HELLO, "stream": True}):
        request = await beginning
        await until(lambda: stack.has_released(request), "it is followed")
        stack.directory.revoked.add(KEY)
        await until(lambda: nobody_watches(stack, request), "nobody watches")
    assert stack.pipeline.cancels() == []
    stack.directory.revoked.clear()
    stack.pipeline.release(request, 2, [" there"])
    stack.pipeline.end(request, 3)
    async with client(stack) as http:
        answer = await http.get(f"/v1/responses/{request.response_id}")
    assert answer.status_code == 200
    assert "Hi there" in answer.text
