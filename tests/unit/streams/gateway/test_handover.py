"""A partition moves from one gateway to another, with running responses in it, and perhaps comes back."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import redis

from schemas.request import Request
from streams import redis_keys
from streams.gateway import watches
from streams.gateway.fan_out.pump import Pump
from streams.gateway.fan_out.stream import Stream
from streams.gateway.runtime import SWEEP_S
from streams.gateway.service import acceptance
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.service.refusals import unavailable
from streams.log.producer_thread import ProducerThread
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, memory_log, serving, until

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
LONG_MS = 60_000


def http(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)


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
    await region.start(getattr(request, "param", 20_000))
    yield region
    await region.close()


async def begin(stack: Stack, partition: int = 1) -> tuple[Client, Request]:
    """A client that has seen the first token of a response; the one in partition 1 moves."""
    client = Client(stack)
    request = await stack.pipeline.next_request()
    assert request.reply_to.partition == partition
    assert request.on_disconnect == "cancel"
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["one "])
    await until(lambda: '"one "' in client.text, "the first token is there")
    return client, request


def words(text: str, *expected: str) -> list[int]:
    """How often each was told."""
    return [text.count(word) for word in expected]


async def test_who_watches_what_moves_away_notices_nothing(region: Region) -> None:
    client, request = await begin(region.old)
    new = await region.add_gateway()
    back = Client(new, request.response_id, after=1)
    await until(lambda: new.runtime.hub.viewers == 1, "somebody watches at the new gateway")
    new.pipeline.release(request, 2, ["two "])
    await until(lambda: '"two "' in client.text and '"two "' in back.text, "both have the second token")
    await asyncio.sleep(3 * SWEEP_S)
    assert (region.old.runtime.hub.viewers, new.runtime.hub.viewers) == (1, 1)
    assert new.pipeline.cancels() == [], "the old gateway's grace is over, and it is no longer its response"
    new.pipeline.end(request, 3)
    async with asyncio.timeout(60):
        assert words(await client.ended, "one ", "two ", "[DONE]") == [1, 1, 1]
        assert words(await back.ended, "one ", "two ", "[DONE]") == [0, 1, 1]
    assert region.old.runtime.hub.gaps == 0


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


async def test_what_runs_at_another_gateway_is_read_and_followed_at_any(region: Region) -> None:
    new = await region.add_gateway()
    client, request = await begin(new)
    async with http(region.old) as asking:
        state = (await asking.get(f"/v1/chat/completions/{request.response_id}")).json()
    assert (state["status"], state["choices"][0]["message"]["content"]) == ("in_progress", "one ")
    followers = [Client(region.old, request.response_id, after) for after in (0, 1)]
    await until(lambda: region.old.runtime.hub.viewers == 2, "both watch at the other gateway")
    new.pipeline.release(request, 2, ["two "])
    await until(lambda: all('"two "' in follower.text for follower in followers), "they are told what comes")
    late = Client(region.old, request.response_id, after=2)
    await until(lambda: region.old.runtime.hub.viewers == 3, "one more watches")
    new.pipeline.release(request, 3, ["three "])
    new.pipeline.end(request, 4)
    async with asyncio.timeout(60):
        texts = [await each.ended for each in (client, *followers, late)]
    told = [words(text, "one ", "two ", "three ", "[DONE]") for text in texts]
    assert told == [[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]
    await until(lambda: new.runtime.hub.get(request.response_id) is None, "it has ended and stands in history")
    async with http(region.old) as asking:
        answer = await asking.get(f"/v1/chat/completions/{request.response_id}?stream=true&starting_after=1")
        assert words(answer.text, "one ", "two ", "three ", "[DONE]") == [0, 1, 1, 1]
    await asyncio.sleep(2 * SWEEP_S)
    usage = [json.loads(record.value or b"") for record in new.log.records(new.settings.topics.usage.name)]
    assert [(each["gateway_id"], each["delivered_tokens"]) for each in usage] == [("gateway-2", 3)], "its owner counts"


async def test_another_tenants_response_is_not_found_wherever_it_runs(region: Region) -> None:
    new = await region.add_gateway()
    client, request = await begin(new)
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    async with httpx.AsyncClient(base_url=region.old.url, headers=headers, timeout=60) as stranger:
        for _ in range(2):  # before, and while its partition is followed
            answer = await stranger.get(f"/v1/chat/completions/{request.response_id}?stream=true")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
            follower = Client(region.old, request.response_id)
            await until(lambda: region.old.runtime.hub.viewers == 1, "its owner's client follows it there")
            await follower.leave()
    await client.leave()


async def test_what_is_asked_for_before_its_first_record_is_followed_from_it_on(region: Region) -> None:
    new = await region.add_gateway()
    client = Client(new)
    request = await new.pipeline.next_request()
    early = Client(region.old, request.response_id)
    await until(lambda: region.old.runtime.pump.following.number(1) is not None, "its partition is read")
    new.pipeline.start(request)
    new.pipeline.release(request, 1, ["one "])
    new.pipeline.end(request, 2)
    async with asyncio.timeout(60):
        assert words(await client.ended, "one ", "[DONE]") == [1, 1]
        assert words(await early.ended, "one ", "[DONE]") == [1, 1]


async def test_a_partition_that_comes_back_read_by_another_is_followed_on(region: Region) -> None:
    client, request = await begin(region.old)
    new = await region.add_gateway()
    new.pipeline.release(request, 2, ["two "])
    await until(lambda: new.runtime.hub.released_tokens == 1, "the new gateway has read it")
    await region.remove_gateway()
    back = Client(region.old, request.response_id, after=1)
    await until(lambda: region.old.runtime.hub.viewers == 2, "another client has come")
    region.old.pipeline.release(request, 3, ["three "])
    region.old.pipeline.end(request, 4)
    async with asyncio.timeout(60):
        told = [words(await each.ended, "one ", "two ", "three ", "[DONE]") for each in (client, back)]
    assert told == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert region.old.runtime.hub.gaps == 0
    await until(lambda: region.old.runtime.hub.get(request.response_id) is None, "it has ended and stands in history")
    again = Client(region.old, request.response_id)
    async with asyncio.timeout(60):
        assert words(await again.ended, "one ", "two ", "three ", "[DONE]") == [1, 1, 1, 1]


async def test_a_response_ends_with_its_last_viewer_wherever_that_one_watches(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "LEASE_S", 2)
    monkeypatch.setattr(watches, "SAY_AGAIN_S", 0.3)
    new = await region.add_gateway()
    client, request = await begin(region.old, partition=0)
    elsewhere = Client(new, request.response_id, after=1)
    await until(lambda: new.runtime.hub.viewers == 1, "somebody watches at another gateway")
    key = redis_keys.watched(region.old.settings.region, request.response_id)
    with redis.Redis.from_url(region.old.settings.redis.url) as server:
        await until(lambda: server.exists(key), "and its owner can know")
    await client.leave()
    await until(lambda: region.old.runtime.hub.viewers == 0, "nobody watches where it is owned")
    await asyncio.sleep(5 * SWEEP_S)
    assert region.old.pipeline.cancels() == []
    await elsewhere.leave()
    await until(region.old.pipeline.cancels, "now it is cancelled")
    assert [cancel.response_id for cancel in region.old.pipeline.cancels()] == [request.response_id]


async def test_a_partition_that_comes_back_unread_is_followed_as_if_nothing_had_been(region: Region) -> None:
    client, request = await begin(region.old)
    await region.add_gateway()
    await region.remove_gateway()
    region.old.pipeline.release(request, 2, ["two "])
    region.old.pipeline.end(request, 3)
    async with asyncio.timeout(60):
        text = await client.ended
    assert [word in text for word in ('"one "', '"two "', "[DONE]", "partition_moved")] == [True, True, True, False]


async def test_a_gateway_that_stops_cancels_nothing_that_it_told_its_clients_to_resume(region: Region) -> None:
    client, request = await begin(region.old)
    await region.old.runtime.stop()
    async with asyncio.timeout(60):
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
    assert_withdrawn(await asking, region.old, request)


@pytest.mark.parametrize("region", [60_000], indirect=True)
async def test_what_is_not_admitted_before_its_gateway_stops_is_cancelled_before_its_client_hears_so(
    region: Region,
) -> None:
    asking = asyncio.ensure_future(ask(region.old))
    request = await region.old.pipeline.next_request()
    await region.old.runtime.stop()
    async with asyncio.timeout(60):
        assert_withdrawn(await asking, region.old, request)


@pytest.mark.parametrize("region", [200], indirect=True)
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
    async with asyncio.timeout(60):
        text = await back.ended
    assert text.count('"one "') == 1
    numbers = [int(number) for number in re.findall(r'"sequence_number":(\d+)', text)]
    assert numbers == sorted(numbers), "a late copy of the start takes nobody back"
    await client.leave()


def stream_of(stack: Stack, request: Request) -> Stream:
    stream = stack.runtime.hub.get(request.response_id)
    assert stream is not None
    return stream
