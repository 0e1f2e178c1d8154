"""Answers that are told whole: with every number that is in them, where else all of them is told, and how much of a
gateway's memory those of one tenant may take.
"""

import asyncio
import base64
import json
from array import array
from random import Random
from typing import Any

import pytest

from schemas.request import Request
from streams.gateway.fan_out.spans import join, memory_bytes
from streams.gateway.http.whole import Gathered
from streams.gateway.tenant_shares import TenantShares
from streams.settings import TenantShareSettings
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    OTHER_KEY,
    Stack,
    gateway_settings,
    memory_log,
    serving,
    until,
)
from tests.unit.streams.gateway.http_clients import HELLO, client
from tests.unit.streams.gateway.raw_peers import buffered, narrow_peer
from tests.unit.streams.gateway.replays import span

HUGE = 10**30
VECTORS, NUMBERS = 128, 4_096
"""As many numbers as one answer may have: 2.8 MB as base64, and 10 MB when they are written out."""
_random = Random(7)
VECTOR = base64.b64encode(array("f", (_random.random() for _ in range(NUMBERS))).tobytes()).decode()
EMBED: dict[str, Any] = {"model": "small", "input": ["x"] * VECTORS}


async def echoed(stack: Stack) -> Request:
    """The next request is answered, and its start repeats of it what it is to."""
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request, echo=request.echo)
    stack.pipeline.release(request, 1, ["Hi"])
    stack.pipeline.end(request, 2)
    return request


async def test_a_response_repeats_integers_beyond_64_bits(stack: Stack) -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object", "maximum": HUGE}}
    body = {"model": "small", "input": "Hello", "tools": [tool]}
    async with client(stack) as http:
        answering = asyncio.ensure_future(echoed(stack))
        whole = await http.post("/v1/responses", json=body)
        again = await http.get(f"/v1/responses/{(await answering).response_id}")
        answering = asyncio.ensure_future(echoed(stack))
        queued = await http.post("/v1/responses", json={**body, "background": True})
        await answering
    for answer in (whole, again, queued):
        assert answer.status_code == 200, answer.text
        assert answer.json()["tools"][0]["parameters"]["maximum"] == HUGE


async def test_a_message_tells_integers_beyond_64_bits_that_a_model_has_written(stack: Stack) -> None:
    async def call() -> Request:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "tool_name", "add")
        stack.pipeline.say(request, 2, "tool_arguments", f'{{"count": {HUGE}}}')
        stack.pipeline.end(request, 3)
        return request

    tool = {"name": "add", "input_schema": {"type": "object"}}
    async with client(stack) as http:
        calling = asyncio.ensure_future(call())
        whole = await http.post("/v1/messages", json={**HELLO, "max_tokens": 16, "tools": [tool]})
        again = await http.get(f"/v1/messages/{(await calling).response_id}")
    for answer in (whole, again):
        assert answer.status_code == 200, answer.text
        assert answer.json()["content"][0]["input"] == {"count": HUGE}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**HELLO, "n": 2}),
        ("completions", {"model": "small", "prompt": "Once", "logprobs": 1}),
        ("messages", {**HELLO, "max_tokens": 16}),
        ("responses", {"model": "small", "input": "Hello"}),
        ("embeddings", EMBED),
    ],
    ids=str,
)
async def test_an_answer_that_is_lost_sight_of_is_had_where_all_of_it_is_told(
    stack: Stack, path: str, body: dict[str, Any]
) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post(f"/v1/{path}", json=body))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "its beginning is followed")
        stack.pipeline.release(request, 5, ["five "])  # what is between is missing
        answer = await asking
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert f" /v1/{path}/{request.response_id}." in answer.json()["error"]["message"]


async def embedded(stack: Stack) -> Request:
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request, endpoint="embeddings")
    for first in range(1, VECTORS + 1, 16):
        stack.pipeline.release(request, first, [VECTOR] * 16, [("embedding", 0)] * 16)
    stack.pipeline.end(request, VECTORS + 1)
    return request


async def test_long_answers_that_nobody_reads_are_their_tenants_own_loss(redis_url: str) -> None:
    """One is sent as it is read, and what of it waits counts: another does not fit beside it, by whatever path."""
    settings = gateway_settings(redis_url, "whole", viewer_stall_ms=600_000, tenant_share={"answer_bytes": 16_000_000})
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        shares = stack.runtime.gateway.shares
        answering = asyncio.ensure_future(embedded(stack))
        assert (await http.post("/v1/embeddings", json={**EMBED, "encoding_format": "base64"})).status_code == 200
        path = f"/v1/embeddings/{(await answering).response_id}"
        await until(lambda: not shares.answer_bytes("acme"), "it was read")
        async with narrow_peer(stack) as deaf:
            await deaf.say(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
            await until(lambda: shares.answer_bytes("acme") > 9_000_000, "it is written out, and is not read")
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited_bytes")
            assert refused.headers["x-should-retry"] == "true"

            answering = asyncio.ensure_future(embedded(stack))
            paid = await http.post("/v1/embeddings", json=EMBED)
            own = f"/v1/embeddings/{(await answering).response_id}"
            assert (paid.status_code, paid.json()["error"]["code"]) == (503, "rate_limited_bytes")
            assert paid.headers["x-should-retry"] == "false", "it is billed: who asks again pays twice"
            assert f" {own}." in paid.json()["error"]["message"]

            answering = asyncio.ensure_future(embedded(stack))
            theirs = await http.post("/v1/embeddings", json=EMBED, headers={"authorization": f"Bearer {OTHER_KEY}"})
            await answering
            assert theirs.status_code == 200
            assert shares.answer_bytes("acme") > 9_000_000
            assert buffered(stack) < 1_000_000, "no more of it waits in the connection than a piece"
        await until(lambda: not shares.answer_bytes("acme"), "nothing is held any more")
        assert len((await http.get(own)).json()["data"]) == VECTORS


async def test_tokens_that_nobody_reads_are_their_tenants_own_loss(redis_url: str) -> None:
    """A character may be told as four tokens: a small body makes an answer of megabytes."""
    settings = gateway_settings(redis_url, "tokens", viewer_stall_ms=600_000, tenant_share={"answer_bytes": 16_000_000})
    asked = {"prompt": "𒀀" * 250_000, "return_token_strs": True}
    body = json.dumps(asked).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        shares = stack.runtime.gateway.shares
        async with narrow_peer(stack) as deaf:
            await deaf.say(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: shares.answer_bytes("acme") > 8_000_000, "it is written out, and is not read")
            assert not shares.body_bytes("acme"), "what was asked is held no longer"
            refused = await http.post("/tokenize", json=asked)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited_bytes")
            assert refused.headers["x-should-retry"] == "true"
            theirs = await http.post("/tokenize", json=asked, headers={"authorization": f"Bearer {OTHER_KEY}"})
            assert theirs.json()["count"] == len(theirs.json()["token_strs"]) > 900_000
            assert (await http.post("/tokenize", json={"prompt": "Hello"})).status_code == 200, "short ones pass"
            assert buffered(stack) < 1_000_000, "no more of it waits in the connection than a piece"
        await until(lambda: not shares.answer_bytes("acme"), "nothing is held any more")
        assert (await http.post("/tokenize", json=asked)).json() == theirs.json()


async def test_what_is_waited_for_counts_while_it_is_generated(redis_url: str) -> None:
    """Of two that grow together one is told that it does not fit, before there is more of both than may be."""
    settings = gateway_settings(redis_url, "growing", tenant_share={"answer_bytes": 1_000_000})
    likely = {**HELLO, "logprobs": True, "top_logprobs": 20}
    async with serving(settings, memory_log(settings)) as stack, client(stack) as http:
        shares, pipeline = stack.runtime.gateway.shares, stack.pipeline
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=likely))
        first = await pipeline.next_request()
        pipeline.start(first)
        pipeline.release(first, 1, ["word"] * 200, likeliest=20)
        await until(lambda: shares.answer_bytes("acme") > 600_000, "what there is of the first is counted")
        beside = asyncio.ensure_future(http.post("/v1/chat/completions", json=likely))
        second = await pipeline.next_request()
        pipeline.start(second)
        pipeline.release(second, 1, ["word"] * 200, likeliest=20)
        refused = await beside
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "rate_limited_bytes")
        assert refused.headers["x-should-retry"] == "false", "it is generated: who asks again pays twice"
        assert f" /v1/chat/completions/{second.response_id}." in refused.json()["error"]["message"]
        pipeline.end(first, 201)
        assert len((await asking).json()["choices"][0]["logprobs"]["content"]) == 200
        await until(lambda: not shares.answer_bytes("acme"), "nothing is held any more")
        pipeline.end(second, 201)
        path = f"/v1/chat/completions/{second.response_id}"
        assert len((await http.get(path)).json()["choices"][0]["logprobs"]["content"]) == 200


def test_a_long_answer_that_comes_token_by_token_is_held_as_few_spans() -> None:
    """Thousands at once may be waited for: a token by itself takes seven times what is in it."""
    shares, text = TenantShares(TenantShareSettings()), "abcdefgh" * 256
    with shares.answer("acme") as held:
        gathered = Gathered(held)
        for number, token in enumerate(text, 1):
            gathered.add(span(number, token))
        assert join(gathered.spans) == span(1, text)
        assert shares.answer_bytes("acme") == memory_bytes(gathered.spans) < 50 * len(text)
