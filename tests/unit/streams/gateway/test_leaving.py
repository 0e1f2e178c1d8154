"""A gateway that is to stop is not ready any more, and serves on while those whom it serves find another one."""

import asyncio

import httpx
import pytest

from schemas.request import Request
from streams.gateway import dismissal
from streams.gateway.service import patience
from streams.gateway.service.patience import Patience
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import memory_log, serving, until
from tests.unit.streams.gateway.replays import HELLO, http

FOREVER_S = 10_000.0


async def test_it_serves_on_until_nobody_is_connected(settings: Settings) -> None:
    async with asyncio.timeout(60), serving(settings, memory_log(settings), leave_s=FOREVER_S) as stack:
        async with http(stack) as client:
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.server.stop_soon()
            await until(lambda: stack.runtime.gateway.why_not_ready() == "stopping", "it is to stop")
            assert (await client.get("/readyz")).status_code == 503
            late = asyncio.ensure_future(client.post("/v1/chat/completions", json=HELLO))
            await stack.pipeline.answer(["late"])
            assert (await late).json()["choices"][0]["message"]["content"] == "late"
            stack.pipeline.release(request, 1, ["one "])
            stack.pipeline.end(request, 2)
            text = (await asking).text
            assert ('"one "' in text, "[DONE]" in text, "going_away" in text) == (True, True, False)
            assert not stack.runtime.gateway.stopping
        await until(lambda: stack.runtime.gateway.stopping, "it stops once nobody is left")


async def test_who_does_not_leave_in_time_is_told_to(settings: Settings) -> None:
    async with serving(settings, memory_log(settings), leave_s=0.2) as stack, http(stack) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        await until(lambda: stack.runtime.hub.delivered_tokens == 1, "its client has the first token")
        stack.server.stop_soon()
        async with asyncio.timeout(60):
            assert "going_away" in (await asking).text


async def test_viewers_are_told_some_at_a_time_while_the_others_are_served_on(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes back elsewhere together waits there for all the others."""
    monkeypatch.setattr(dismissal, "AHEAD_S", 0)
    monkeypatch.setattr(dismissal, "DISMISSED_EVERY_S", FOREVER_S)
    monkeypatch.setattr(dismissal, "DISMISSAL_S", 3 * FOREVER_S)
    async with asyncio.timeout(60), serving(settings, memory_log(settings)) as stack, http(stack) as client:
        asking: list[asyncio.Task[httpx.Response]] = []
        asked: list[Request] = []
        for _ in range(5):
            body = {**HELLO, "stream": True}
            asking.append(asyncio.ensure_future(client.post("/v1/chat/completions", json=body)))
            asked.append(await stack.pipeline.next_request())
            stack.pipeline.start(asked[-1])
        await until(lambda: stack.runtime.hub.viewers == 5, "all are watched")
        telling = asyncio.ensure_future(stack.runtime.gateway.dismiss())
        for each in asking[:3]:  # One ahead, and two of the others.
            assert "going_away" in (await each).text
        refused = await client.post("/v1/chat/completions", json=HELLO)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        stack.pipeline.release(asked[3], 1, ["served on"])
        stack.pipeline.end(asked[3], 2)
        text = (await asking[3]).text
        assert ('"served on"' in text, "[DONE]" in text, "going_away" in text) == (True, True, False)
        assert not asking[4].done()
        telling.cancel()
        await stack.runtime.stop()
        assert "going_away" in (await asking[4]).text


async def test_of_a_gateway_that_fails_while_it_leaves_nobody_waits_for_the_rest(settings: Settings) -> None:
    async with (
        asyncio.timeout(60),
        serving(settings, memory_log(settings), leave_s=FOREVER_S) as stack,
        http(stack) as client,
    ):
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one "])
        stack.server.stop_soon()
        await until(lambda: stack.runtime.gateway.why_not_ready() == "stopping", "it leaves")
        assert not stack.runtime.gateway.stopping
        stack.server.stop_soon(at_once=True)
        assert "going_away" in (await asking).text


async def test_whoever_waits_for_what_has_just_come_need_not_wait_for_the_next_look() -> None:
    waiting, is_there = Patience(60_000), False
    looking = asyncio.ensure_future(waiting.until("acme", lambda: is_there, waiting.begin()))
    await asyncio.sleep(0)
    assert waiting._next_look is not None
    at_s = waiting._next_look.when()
    is_there = True
    waiting.look_soon()
    waiting.look_soon()
    assert waiting._next_look.when() <= at_s
    async with asyncio.timeout(60):
        assert await looking
    waiting.look_soon()
    assert patience.LOOK_SOON_S < patience.LOOK_EVERY_S
