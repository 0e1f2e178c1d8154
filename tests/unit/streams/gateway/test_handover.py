"""A partition moves from one gateway to another, with running responses in it, and perhaps comes back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from schemas.request import Request
from streams.gateway.fan_out import pump
from streams.gateway.fan_out.pump import Pump
from streams.gateway.fan_out.stream import Stream
from streams.gateway.runtime import SWEEP_S
from streams.gateway.service import acceptance
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.service.refusals import unavailable
from streams.log.producer_thread import ProducerThread
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, memory_log, serving, until

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
LONG_MS = 60_000


def http(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={"authorization": f"Bearer {KEY}"}, timeout=30)


class Client:
    """Follows one response over SSE until the stream ends."""

    def __init__(self, stack: Stack, response_id: str | None = None, after: int = 0) -> None:
        self._stack = stack
        self._path = f"/v1/chat/completions/{response_id}?stream=true&starting_after={after}" if response_id else None
        self.text = ""
        self.ended = asyncio.ensure_future(self._follow())

    async def _follow(self) -> str:
        async with http(self._stack) as client:
            if self._path is None:
                following = client.stream("POST", "/v1/chat/completions", json=HELLO)
            else:
                following = client.stream("GET", self._path)
            async with following as answer:
                async for part in answer.aiter_text():
                    self.text += part
        return self.text

    async def leave(self) -> None:
        self.ended.cancel()
        await asyncio.wait((self.ended,))


class Region:
    """Two gateways, of which the second one joins and leaves; the first response is in the partition that moves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = memory_log(settings)
        self._first = AsyncExitStack()
        self._second = AsyncExitStack()

    async def start(self, admission_timeout_ms: int) -> Stack:
        edge = {"reply_partitions": 2, "admission_timeout_ms": admission_timeout_ms}
        gateway = self._settings.gateway.model_copy(update=edge)
        self._settings = self._settings.model_copy(update={"gateway": gateway})
        self.old = await self._first.enter_async_context(serving(self._settings, self._log))
        return self.old

    async def add_gateway(self) -> Stack:
        gateway = self._settings.gateway.model_copy(update={"gateway_id": "gateway-2"})
        settings = self._settings.model_copy(update={"gateway": gateway})
        served = serving(settings, self._log, disconnect_grace_ms=LONG_MS, elsewhere_grace_ms=LONG_MS)
        new = await self._second.enter_async_context(served)
        assert (self.old.runtime.pump.owned, new.runtime.pump.owned) == ([0], [1])
        return new

    async def remove_gateway(self) -> None:
        await self._second.aclose()
        await until(lambda: self.old.runtime.pump.owned == [0, 1], "the partition is back")

    async def close(self) -> None:
        await self._second.aclose()
        await self._first.aclose()


@pytest.fixture
async def region(settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[Region]:
    region = Region(settings)
    await region.start(getattr(request, "param", 200))
    yield region
    await region.close()


async def begin(stack: Stack) -> tuple[Client, Request]:
    """A client that has seen the first token of a response in the partition that moves."""
    client = Client(stack)
    request = await stack.pipeline.next_request()
    assert request.reply_to.partition == 1
    assert request.on_disconnect == "cancel"
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["one "])
    await until(lambda: '"one "' in client.text, "the first token is there")
    return client, request


async def test_who_was_told_that_its_response_moved_goes_on_at_the_new_gateway(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "MOVED_AFTER_MS", 100)
    client, request = await begin(region.old)
    new = await region.add_gateway()
    async with asyncio.timeout(20):
        assert "partition_moved" in await client.ended
    await until(lambda: region.old.runtime.hub.viewers == 0, "the old gateway has nobody left")
    back = Client(new, request.response_id, after=1)
    await until(lambda: new.runtime.hub.viewers == 1, "the client is back")
    await asyncio.sleep(3 * SWEEP_S)
    assert new.pipeline.cancels() == [], "the old gateway's grace is over, and it is no longer its response"
    new.pipeline.release(request, 2, ["two "])
    new.pipeline.end(request, 3)
    async with asyncio.timeout(20):
        assert '"two "' in await back.ended
    assert "[DONE]" in back.text


async def test_who_leaves_the_old_gateway_unasked_has_not_left_the_response(region: Region) -> None:
    client, request = await begin(region.old)
    new = await region.add_gateway()
    back = Client(new, request.response_id, after=1)
    await until(lambda: new.runtime.hub.viewers == 1, "the client is at the new gateway")
    await client.leave()
    await until(lambda: region.old.runtime.hub.viewers == 0, "and has left the old one")
    await asyncio.sleep(3 * SWEEP_S)
    assert new.pipeline.cancels() == []
    await back.leave()


async def test_the_old_gateway_does_not_pretend_to_follow_what_has_moved(region: Region) -> None:
    client, request = await begin(region.old)
    new = await region.add_gateway()
    new.pipeline.release(request, 2, ["two "])
    async with http(region.old) as asking:
        for path in ("", "?stream=true&starting_after=1"):
            answer = await asking.get(f"/v1/responses/{request.response_id}{path}")
            assert answer.status_code == 409, answer.text
            assert answer.json()["error"]["code"] == "replay_unavailable"
    new.pipeline.end(request, 3)
    await until(lambda: new.runtime.hub.get(request.response_id) is None, "it has ended and stands in history")
    async with http(region.old) as asking:
        answer = await asking.get(f"/v1/chat/completions/{request.response_id}?stream=true&starting_after=1")
        assert '"two "' in answer.text, "what has ended is replayed everywhere"
    await client.leave()


async def test_a_partition_that_comes_back_read_by_another_is_followed_from_history(region: Region) -> None:
    client, request = await begin(region.old)
    new = await region.add_gateway()
    new.pipeline.release(request, 2, ["two "])
    await until(lambda: new.runtime.hub.released_tokens == 1, "the new gateway has read it")
    await region.remove_gateway()
    async with asyncio.timeout(20):
        assert "partition_moved" in await client.ended, "who still waits here would never learn what it missed"
    back = Client(region.old, request.response_id, after=1)
    await until(lambda: region.old.runtime.hub.viewers == 1, "the client is back")
    region.old.pipeline.release(request, 3, ["three "])
    region.old.pipeline.end(request, 4)
    async with asyncio.timeout(20):
        text = await back.ended
    assert [word in text for word in ('"one "', '"two "', '"three "', "[DONE]")] == [False, True, True, True]
    assert region.old.runtime.hub.gaps == 0


async def test_a_partition_that_comes_back_unread_is_followed_as_if_nothing_had_been(region: Region) -> None:
    client, request = await begin(region.old)
    await region.add_gateway()
    await region.remove_gateway()
    region.old.pipeline.release(request, 2, ["two "])
    region.old.pipeline.end(request, 3)
    async with asyncio.timeout(20):
        text = await client.ended
    assert [word in text for word in ('"one "', '"two "', "[DONE]", "partition_moved")] == [True, True, True, False]


async def test_a_gateway_that_stops_cancels_nothing_that_it_told_its_clients_to_resume(region: Region) -> None:
    client, request = await begin(region.old)
    await region.old.runtime.stop()
    async with asyncio.timeout(20):
        assert "going_away" in await client.ended
    await until(lambda: region.old.runtime.hub.viewers == 0, "nobody is left")
    await asyncio.sleep(3 * SWEEP_S)
    assert region.old.pipeline.cancels() == [], "the next gateway gives its viewers their time"
    region.old.pipeline.end(request, 2)


async def ask(stack: Stack) -> httpx.Response:
    """Not streamed, and to go on without its client: who is told to ask again must not be paid for twice."""
    async with http(stack) as client:
        return await client.post("/v1/chat/completions", json={**HELLO, "stream": False, "on_disconnect": "continue"})


def assert_withdrawn(answer: httpx.Response, stack: Stack, request: Request) -> None:
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true"), answer.text
    assert [cancel.response_id for cancel in stack.pipeline.cancels()] == [request.response_id], "it says so"


@pytest.mark.parametrize("region", [3_000], indirect=True)
async def test_what_is_not_admitted_before_its_partition_moves_is_cancelled_before_its_client_hears_so(
    region: Region,
) -> None:
    asking = asyncio.ensure_future(ask(region.old))
    request = await region.old.pipeline.next_request()
    assert request.reply_to.partition == 1
    await region.add_gateway()
    assert not asking.done()
    assert_withdrawn(await asking, region.old, request)


@pytest.mark.parametrize("region", [60_000], indirect=True)
async def test_what_is_not_admitted_before_its_gateway_stops_is_cancelled_before_its_client_hears_so(
    region: Region,
) -> None:
    asking = asyncio.ensure_future(ask(region.old))
    request = await region.old.pipeline.next_request()
    await region.old.runtime.stop()
    async with asyncio.timeout(20):
        assert_withdrawn(await asking, region.old, request)


async def test_what_can_not_be_cancelled_either_is_said_to_go_on(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise unavailable("The cancellation could not be stored.")

    monkeypatch.setattr(CancelWriter, "write", refuse)
    asking = asyncio.ensure_future(ask(region.old))
    request = await region.old.pipeline.next_request()
    answer = await asking
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")
    assert answer.headers["x-request-id"] == request.response_id
    assert f"/v1/chat/completions/{request.response_id}" in answer.json()["error"]["message"]


async def test_a_request_that_is_acknowledged_too_late_is_cancelled_whoever_owns_its_partition(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reached the log all the same, and nobody was told its id."""
    monkeypatch.setattr(acceptance, "ACKNOWLEDGE_TIMEOUT_S", 0.05)
    send = ProducerThread.send

    async def acknowledge_late(producer: ProducerThread, topic: str, *rest: Any, **more: Any) -> int:
        offset = await send(producer, topic, *rest, **more)
        if topic == region.old.settings.topics.requests.name:
            monkeypatch.setattr(Pump, "owned", [])
            await asyncio.sleep(60)
        return offset

    monkeypatch.setattr(ProducerThread, "send", acknowledge_late)
    answer = await ask(region.old)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    [request] = region.old.pipeline.requests()
    await until(region.old.pipeline.cancels, "it is cancelled")
    assert [cancel.response_id for cancel in region.old.pipeline.cancels()] == [request.response_id]
    monkeypatch.undo()


async def test_how_a_response_began_is_known_to_who_reads_its_first_token_at_the_next_gateway(region: Region) -> None:
    """`Started` was read and committed before the partition moved."""
    client = Client(region.old)
    request = await region.old.pipeline.next_request()
    region.old.pipeline.start(request)
    await until(lambda: stream_of(region.old, request).started_is_kept, "how it began stands in history")
    new = await region.add_gateway()
    new.pipeline.release(request, 1, ["one "])
    await until(lambda: new.runtime.hub.released_tokens == 1, "the first token is there")
    async with http(new) as asking:
        running = (await asking.get(f"/v1/chat/completions/{request.response_id}")).json()
        assert (running["status"], running["model"]) == ("in_progress", "tiny")
        assert running["choices"][0]["message"]["content"] == "one "
    back = Client(new, request.response_id)
    await until(lambda: '"one "' in back.text, "the client is back")
    chunks = [json.loads(line.removeprefix("data: ")) for line in back.text.splitlines() if line.startswith("data: {")]
    assert {chunk["model"] for chunk in chunks} == {"tiny"}
    new.pipeline.start(request)
    new.pipeline.end(request, 2)
    async with asyncio.timeout(20):
        text = await back.ended
    assert text.count('"one "') == 1
    numbers = [int(number) for number in re.findall(r'"sequence_number":(\d+)', text)]
    assert numbers == sorted(numbers), "a late copy of the start takes nobody back"
    await client.leave()


def stream_of(stack: Stack, request: Request) -> Stream:
    stream = stack.runtime.hub.get(request.response_id)
    assert stream is not None
    return stream
