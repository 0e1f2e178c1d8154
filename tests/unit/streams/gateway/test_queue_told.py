"""Who waits in a queue is told where, in every way, by heartbeats alone; and nobody looks while nobody waits."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from schemas.generated import QueueAhead
from schemas.request import Lane, Request
from schemas.websocket import Delta, QueuedMessage, StartedMessage
from schemas.worker import WorkerState
from streams.clocks import now_ms
from streams.gateway import queues
from streams.gateway.http import silence
from streams.heartbeats import Heartbeats
from streams.log.port import LogError
from tests.unit.streams.gateway.gateway_stack import Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk
from tests.unit.streams.gateway.messages_clients import HELLO as MESSAGE
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, resuming, say

BEFORE = QueueAhead(worker_id="worker-1", before=6, wait_ms=3_500, left=100, counts_since_ms=7)
SSE = {"accept": "text/event-stream"}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(silence, "LOOK_EVERY_S", 0.02)


def beat(stack: Stack, left: int, **fields: Any) -> None:
    """So many have left its queue by now."""
    values = {
        "worker_id": "worker-1", "pool": "default", "model": "tiny", "engine": "simulated", "state": "ready",
        "beat_at_ms": now_ms(), "lease_ms": 600_000, "counts_since_ms": 7,
        "queues": {"standard": {"waiting": 9, "left": left}}, **fields,
    }  # fmt: skip
    state = WorkerState.model_validate(values)
    stack.log.append(stack.settings.topics.workers.name, state.encode(), key=state.worker_id)


async def test_who_was_given_to_another_worker_is_told_by_its_heartbeats(stack: Stack) -> None:
    async with streaming(stack, "chat/completions", HELLO, **SSE) as (request, told):
        await until(lambda: told.befores() == [6], "it is told at once")
        there = QueueAhead(worker_id="worker-2", before=3, wait_ms=900, left=50, counts_since_ms=9)
        beat(stack, 50, worker_id="worker-2", counts_since_ms=9)
        beat(stack, 101, moved={request.response_id: there.model_dump()})
        await until(lambda: told.befores() == [6, 3], "where it is now")
        beat(stack, 110)
        beat(stack, 52, worker_id="worker-2", counts_since_ms=9)
        await until(lambda: told.befores() == [6, 3, 1], "two have gone there")


class Told:
    """What has come of a stream so far."""

    def __init__(self, answer: httpx.Response) -> None:
        self.headers = answer.headers
        self.text = ""

    def befores(self) -> list[int]:
        return [int(each) for each in re.findall(r'(?:before=|"before":)(\d+)', self.text)]


@asynccontextmanager
async def streaming(
    stack: Stack, path: str, body: dict[str, Any], **headers: str
) -> AsyncIterator[tuple[Request, Told]]:
    """A response that was admitted, and waits; behind the block it is answered, and read to its end."""
    async with client(stack, **headers) as http:
        asked = http.stream("POST", f"/v1/{path}", json={**body, "stream": True})
        entering = asyncio.ensure_future(asked.__aenter__())
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        told = Told(answer := await entering)

        async def read() -> None:
            async for text in answer.aiter_text():
                told.text += text

        reading = asyncio.ensure_future(read())
        try:
            yield request, told
            stack.pipeline.release(request, 1, ["Hi"])
            stack.pipeline.end(request, 2)
            await reading
        finally:
            reading.cancel()
            await asked.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", HELLO),
        ("completions", {"model": "small", "prompt": "Once"}),
        ("responses", {"model": "small", "input": "Once"}),
        ("messages", MESSAGE),
    ],
    ids=["chat/completions", "completions", "responses", "messages"],
)
async def test_a_stream_says_how_many_are_still_before_it(stack: Stack, path: str, body: dict[str, Any]) -> None:
    async with streaming(stack, path, body, **SSE) as (_, told):
        assert (told.headers["x-queue-before"], told.headers["x-queue-wait-ms"]) == ("6", "3500")
        await until(lambda: told.befores() == [6], "it is told at once")
        beat(stack, 102)
        await until(lambda: told.befores() == [6, 4], "two have gone")
        beat(stack, 102)
        beat(stack, 110)
        await until(lambda: told.befores() == [6, 4, 0], "it is next")
    assert told.befores() == [6, 4, 0]
    assert "Hi" in told.text
    lines = {line.partition(":")[0] for line in told.text.splitlines() if "before" in line}
    assert lines == ({"data"} if path == "messages" else {""}), "comments, which nobody takes for an event"


async def test_who_may_not_know_comments_is_told_in_the_head_alone(stack: Stack) -> None:
    async with streaming(stack, "chat/completions", HELLO) as (_, told):
        assert told.headers["x-queue-before"] == "6"
        beat(stack, 103)
        await until(lambda: "worker-1" in stack.runtime._queues._workers, "it is known")
    assert told.befores() == []
    assert {line.partition(": ")[0] for line in told.text.splitlines()} == {"data", ""}


async def test_a_stream_that_waits_is_kept_alive_as_any(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silence, "KEEP_ALIVE_S", 0.1)
    async with streaming(stack, "chat/completions", HELLO, **SSE) as (request, told):
        await until(lambda: told.text.count(": keep-alive") >= 2, "it lives")
        stack.pipeline.release(request, 1, ["Oh"])
        await until(lambda: "Oh" in told.text, "it has begun")
        beat(stack, 106)
        kept = told.text.count(": keep-alive")
        await until(lambda: told.text.count(": keep-alive") >= kept + 2, "it lives")
        assert told.befores() == [6], "what has begun waits no longer"


async def test_a_socket_says_it_once_and_as_they_go(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        heard = [await hear(socket) for _ in range(3)]
        assert isinstance(heard[1], StartedMessage)
        assert heard[2] == QueuedMessage(response_id=request.response_id, before=6, wait_ms=3_500)
        beat(stack, 103)
        assert (await hear(socket)).before == 3
        beat(stack, 101, counts_since_ms=9)
        beat(stack, 106)
        assert (await hear(socket)).before == 0, "the last of them is what counts"
        stack.pipeline.release(request, 1, ["Hi"])
        stack.pipeline.end(request, 2)
        messages, text = await hear_until_terminal(socket)
    assert text == "Hi"
    assert not any(isinstance(message, QueuedMessage) for message in messages)
    assert stack.runtime._queues._waiters == {}


async def test_who_comes_back_later_is_told_what_is_so_then(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what was so when it was routed: that would send it back."""
    monkeypatch.setattr(queues, "FRESH_MS", 0)
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        async with resuming(stack, request.response_id, 0) as other:
            assert isinstance(await hear(other), StartedMessage)
            beat(stack, 105)
            assert (await hear(other)).before == 1
        stack.pipeline.end(request, 1)


@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages"])
async def test_looked_up_it_says_where_it_stands_until_it_has_begun(stack: Stack, path: str) -> None:
    async with sdk(stack) as api, client(stack) as http:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        queued = await asking
        assert (queued.model_extra or {})["queue"] == {"before": 6, "wait_ms": 3_500}

        async def shown() -> Any:
            return (await http.get(f"/v1/{path}/{request.response_id}")).json().get("queue")

        async def until_before(before: int | None) -> None:
            async with asyncio.timeout(60):
                while (await shown() or {}).get("before") != before:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        await until_before(6)
        beat(stack, 104)
        await until_before(2)
        beat(stack, 104, counts_since_ms=9)
        await until_before(None)  # Another worker of that name has not counted these.
        beat(stack, 105)
        await until_before(1)
        beat(stack, 106, beat_at_ms=now_ms() - 5_000, lease_ms=4_000)
        await until_before(None)  # It is gone, and others will go on with what waited there.
        stack.pipeline.release(request, 1, ["Hi"])
        await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
        beat(stack, 104)
        assert await shown() is None
        stack.pipeline.end(request, 2)


async def test_who_looks_up_now_and_then_is_told_each_time(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the time in which it stands where it was routed."""
    clock_ms = 0
    monkeypatch.setattr(queues, "FRESH_MS", 0)
    monkeypatch.setattr(queues, "monotonic_ms", lambda: clock_ms)

    def left() -> int | None:
        state = stack.runtime._queues._workers.get("worker-1")
        return None if state is None else state.queues[Lane.STANDARD].left

    async with sdk(stack) as api, client(stack) as http:
        asking = asyncio.ensure_future(api.responses.create(model="small", input="Hi", background=True))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, queued=BEFORE)
        await asking
        for count in (101, 103, 105):
            # Nobody asks while it looks twice.
            beat(stack, count)
            await until(lambda: left() == count, "it looks")  # noqa: B023
            beat(stack, count + 1)
            await until(lambda: left() == count + 1, "it looks on")  # noqa: B023
            shown = (await http.get(f"/v1/responses/{request.response_id}")).json()
            assert shown["queue"]["before"] == 106 - count - 1
            clock_ms += 20_000
        stack.pipeline.end(request, 1)


async def test_nothing_is_said_or_looked_at_where_nobody_waits(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Heartbeats] = []
    really_open = stack.runtime._queues._open

    def open_heartbeats() -> Heartbeats:
        opened.append(really_open())
        return opened[-1]

    monkeypatch.setattr(stack.runtime._queues, "_open", open_heartbeats)
    monkeypatch.setattr(queues, "LINGER_MS", 0)
    async with client(stack, **SSE) as http:
        asked = http.post("/v1/chat/completions", json={**HELLO, "stream": True})
        plain, _ = await asyncio.gather(asked, stack.pipeline.answer(["Hi"]))
    assert "queue" not in plain.text
    assert "x-queue-before" not in plain.headers
    assert opened == []
    async with streaming(stack, "chat/completions", HELLO, **SSE):
        await until(lambda: opened, "it looks")
    await until(lambda: stack.runtime._queues._waiters == {}, "it has ended")
    await until(lambda: not stack.runtime._queues._asked.is_set(), "it looks no more")
    await until(lambda: all(each._reader._closed for each in opened), "and has let go")  # type: ignore[attr-defined]


async def test_a_log_that_does_not_answer_harms_nothing(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise LogError("away", retriable=True)

    async with streaming(stack, "chat/completions", HELLO, **SSE) as (_, told):
        with monkeypatch.context() as broken:
            broken.setattr(stack.runtime._queues, "_open", away)
            await until(lambda: told.befores() == [6], "what was known is told")
            await asyncio.sleep(0.1)
        beat(stack, 106)
        await until(lambda: told.befores() == [6, 0], "it looks again")
    assert not stack.running.done()


async def test_who_comes_when_it_has_begun_is_told_of_no_queue(stack: Stack) -> None:
    async with client(stack, **SSE) as http:
        async with streaming(stack, "chat/completions", HELLO, **SSE) as (request, _):
            stack.pipeline.release(request, 1, ["Oh"])
            await until(lambda: stack.runtime.hub.released_tokens == 1, "it runs")
            path = f"/v1/chat/completions/{request.response_id}?stream=true&starting_after=0"
            again = asyncio.ensure_future(http.get(path))
            await until(lambda: stack.runtime.hub.viewers == 2, "both watch")
        later = await again
    assert "Oh" in later.text
    assert "x-queue-before" not in later.headers
    assert "before" not in later.text


async def test_viewers_beyond_the_bound_are_told_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_WAITERS", 1)
    async with (
        streaming(stack, "chat/completions", HELLO, **SSE) as (_, first),
        streaming(stack, "chat/completions", HELLO, **SSE) as (_, second),
    ):
        await until(lambda: first.befores() == second.befores() == [6], "both are told")
        beat(stack, 106)
        await until(lambda: first.befores() == [6, 0], "one is told more")
        assert second.befores() == [6]


def test_a_message_says_that_nobody_has_measured_it() -> None:
    told = json.loads(QueuedMessage(response_id="r1", before=1, wait_ms=None).encode())
    assert told == {"type": "queued", "response_id": "r1", "before": 1, "wait_ms": None}
    assert Delta.model_fields.keys().isdisjoint({"before"})
