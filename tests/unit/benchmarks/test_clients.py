"""What the measuring client counts as an answer, against a server that does what each story says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.clients import Answer, ask_over_sse
from benchmarks.spoken import chat_body

Story = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


def event(text: str = "", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return b"data: " + orjson.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


@asynccontextmanager
async def server(story: Story) -> AsyncIterator[str]:
    async def complete(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await story(request, response)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/")


async def asked(story: Story, timeout_s: float = 30) -> Answer:
    async with server(story) as url, aiohttp.ClientSession() as session:
        return await ask_over_sse(session, url, {}, chat_body("m", "Hello!", 8), timeout_s)


def writes(*events: bytes) -> Story:
    async def story(_request: web.Request, response: web.StreamResponse) -> None:
        for each in events:
            await response.write(each)

    return story


async def test_an_answer_with_text_and_a_finish_is_good() -> None:
    answer = await asked(writes(event("one "), event("two"), event(finish="stop"), b"data: [DONE]\n\n"))
    assert answer.is_good
    assert ("".join(answer.text), answer.messages, answer.status) == ("one two", 2, 200)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((event("one "), event("two")), "broke off"),
        ((event("one "), b'data: {"error": {"code": "engine_failed"}}\n\n'), "engine_failed"),
        ((), "broke off"),
    ],
)
async def test_an_answer_that_breaks_off_or_ends_in_an_error_is_not(events: tuple[bytes, ...], why: str) -> None:
    answer = await asked(writes(*events))
    assert why in answer.error
    assert not answer.is_good


async def test_nor_is_one_without_a_token() -> None:
    answer = await asked(writes(event(finish="stop")))
    assert (answer.error, answer.is_good) == ("", False)


async def test_a_lost_connection_and_a_silent_server_are_said_and_not_raised() -> None:
    async def cut(request: web.Request, response: web.StreamResponse) -> None:
        await response.write(event("one "))
        assert request.transport is not None
        request.transport.close()

    assert "Error" in (await asked(cut)).error

    async def silent(_request: web.Request, _response: web.StreamResponse) -> None:
        await asyncio.sleep(3600)

    assert "no end within" in (await asked(silent, timeout_s=0.05)).error
