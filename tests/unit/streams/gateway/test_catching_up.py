"""What a viewer lacks is read back while its response goes on: each token comes once, in order."""

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from schemas.responses import Started
from schemas.websocket import Delta, TerminalMessage
from streams.clocks import monotonic_ms
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Behind, Closed
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import RedisHistory
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.log.port import TopicPartition
from tests.unit.streams.gateway.gateway_stack import Stack, release, started, terminal, until
from tests.unit.streams.gateway.hub_stories import ACME, R, flush, hub
from tests.unit.streams.gateway.replays import entry, http, span, text_after
from tests.unit.streams.gateway.socket_clients import hear, resuming


class SlowHistory:
    """Answers with what the test says, when it says so."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Replay] = asyncio.get_running_loop().create_future()

    async def read(self, *_: object, **__: object) -> Replay:
        return await self.answer


def met_in_the_middle() -> Hub:
    """Token 3 was read here, and stands in history; how the response began is not known."""
    restarted = hub()
    restarted.apply_release(release(R, ACME, 3, ["c"]), 0, 0)
    flush(restarted)
    return restarted


def follow(watched: Hub, history: SlowHistory, after: int) -> Follower:
    follower = Follower(history, "acme")  # type: ignore[arg-type]
    viewer = watched.attach(R, 0, ACME, after, follower.wake, 0)
    follower.watch(viewer)
    return follower


def told(after: int, *spans: Span) -> Replay:
    replay = Replay(after)
    replay.add_started(started(R, ACME))
    for each in spans:
        replay.add_span(each)
    return replay


def texts(follower: Follower) -> list[str]:
    """Of all that it has now."""
    seen = []
    while (event := follower.poll()) is not None:
        assert isinstance(event, Span | Started), event
        if isinstance(event, Span):
            seen.append(event.text)
    return seen


@pytest.mark.parametrize("after", [1, 3], ids=["lacks a token", "lacks only how it began"])
async def test_who_reads_history_is_given_nothing_of_memory_before_history_has_answered(after: int) -> None:
    restarted, history = met_in_the_middle(), SlowHistory()
    follower = follow(restarted, history, after)
    assert isinstance(follower.poll(), Behind)
    reading = asyncio.ensure_future(follower.catch_up())
    await asyncio.sleep(0)
    restarted.apply_release(release(R, ACME, 4, ["d"]), 0, 0)
    restarted.wake_viewers()
    assert follower.poll_span() is None
    assert isinstance(follower.poll(), Behind), "still"
    history.answer.set_result(told(after, *[span(2, "bc")] * (after < 3)))
    await reading
    restarted.apply_release(release(R, ACME, 5, ["e"]), 0, 0)
    assert "".join(texts(follower)) == ("bcde" if after == 1 else "de")
    assert follower.viewer is not None
    assert follower.viewer.delivered_tokens == 5 - after


async def test_what_a_viewer_took_it_took_whatever_history_says_later() -> None:
    restarted = met_in_the_middle()
    viewer = restarted.attach(R, 0, ACME, 3, lambda _: None, 0)
    restarted.apply_release(release(R, ACME, 4, ["d"]), 0, 0)
    assert isinstance(viewer.take(), Span)
    viewer.caught_up(3, started=True)
    assert (viewer.after, viewer.delivered_tokens) == (4, 1)


@pytest.mark.parametrize("fails", [False, True], ids=["history answers", "history fails"])
async def test_who_is_given_up_while_it_reads_history_hears_why(fails: bool) -> None:
    restarted, history = met_in_the_middle(), SlowHistory()
    follower = follow(restarted, history, 1)
    reading = asyncio.ensure_future(follower.catch_up())
    await asyncio.sleep(0)
    restarted.close_partition(0, CloseReason.PARTITION_MOVED)
    if fails:
        history.answer.set_exception(HistoryUnavailable("late"))
    else:
        history.answer.set_result(told(1, span(2, "bc")))
    await reading
    events = []
    while follower.has_more:
        events.append(follower.poll())
    assert events == [*([] if fails else [span(2, "bc")]), Closed(CloseReason.PARTITION_MOVED)]


class Gate:
    """Holds up what clients and the gateway ask history."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.opened = asyncio.Event()
        read, beginnings = RedisHistory.read, RedisHistory.started

        async def read_late(*arguments: Any, **options: Any) -> Replay:
            self.reads += 1
            await self.opened.wait()
            return await read(*arguments, **options)

        async def beginnings_late(*arguments: Any) -> dict[str, Started]:
            await self.opened.wait()
            return await beginnings(*arguments)

        monkeypatch.setattr(RedisHistory, "read", read_late)
        monkeypatch.setattr(RedisHistory, "started", beginnings_late)


async def read_in_the_middle(stack: Stack) -> str:
    """A response of which this gateway read the third token alone; history has all three."""
    response_id = stack.settings.response_ids.mint(0)
    history = stack.runtime.gateway._history
    await history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    stack.pipeline.write(response_id, release(response_id, ACME, 3, ["c"]))
    await until(lambda: (s := stack.runtime.hub.get(response_id)) and s.trimmed, "token 3 stands in history alone")
    return response_id


async def deltas(client: ClientConnection) -> list[tuple[int, int, str]]:
    heard = []
    while not isinstance(message := await hear(client), TerminalMessage):
        if isinstance(message, Delta):
            heard.append((message.first_sequence, message.sequence_number, message.text))
    return heard


@pytest.mark.parametrize("after", [1, 3])
async def test_a_socket_that_waits_for_history_gets_each_token_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    gate = Gate(monkeypatch)
    response_id = await read_in_the_middle(stack)
    async with resuming(stack, response_id, after) as client:
        await until(lambda: gate.reads == 1, "it waits for history")
        stack.pipeline.write(response_id, release(response_id, ACME, 4, ["d"]))
        await until(lambda: stack.runtime.hub.released_tokens == 2, "the next token is there")
        gate.opened.set()
        stream = stack.runtime.hub.get(response_id)
        assert stream is not None
        await until(lambda: not any(viewer.reads_history for viewer in stream.viewers), "it has caught up")
        stack.pipeline.write(response_id, release(response_id, ACME, 5, ["e"]))
        await until(lambda: stack.runtime.hub.released_tokens == 3, "and so is the last")
        stack.pipeline.write(response_id, terminal(response_id, ACME, 6))
        heard = await deltas(client)
    assert "".join(text for _, _, text in heard) == "abcde"[after:]
    assert [first for first, _, _ in heard] == [after + 1, *(last + 1 for _, last, _ in heard[:-1])]


class StaleReads:
    """What history says is as old as the question; it says it once the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_read, self.may_answer = asyncio.Event(), asyncio.Event()
        read = RedisHistory.read

        async def answer_late(*arguments: Any, **options: Any) -> Replay:
            replay = await read(*arguments, **options)
            self.has_read.set()
            await self.may_answer.wait()
            return replay

        monkeypatch.setattr(RedisHistory, "read", answer_late)


async def test_who_comes_back_while_its_response_ends_and_leaves_memory_is_told_the_end(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What history said before is of a running response, which nobody will ever speak of again."""
    response_id = stack.settings.response_ids.mint(0)
    await stack.runtime.gateway._history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    reads = StaleReads(monkeypatch)
    back = asyncio.ensure_future(text_after(stack, response_id, 1))
    async with asyncio.timeout(60):
        await reads.has_read.wait()
        stack.pipeline.write(response_id, release(response_id, ACME, 3, ["c"]))
        stack.pipeline.write(response_id, terminal(response_id, ACME, 4))
        hub = stack.runtime.hub
        await until(lambda: hub.has_ended(response_id) and hub.get(response_id) is None, "it has left memory")
        reads.may_answer.set()
        answer = await back
    assert [f'"{text}"' in answer["text"] for text in ("abc", "bc")] == [False, True]
    assert "[DONE]" in answer["text"]
    async with http(stack) as client:
        whole = (await client.get(f"/v1/chat/completions/{response_id}")).json()
    assert (whole["status"], whole["choices"][0]["message"]["content"]) == ("completed", "abc")


async def test_who_comes_back_while_another_gateway_reads_the_rest_is_told_it(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was away before history has answered, and nothing of the response is left to read here."""
    response_id = stack.settings.response_ids.mint(0)
    pump, history = stack.runtime.pump, stack.runtime.gateway._history
    await history.append([entry(response_id, span(1, "ab"), with_start=True, is_first=True)])
    reads = StaleReads(monkeypatch)
    back = asyncio.ensure_future(text_after(stack, response_id, 1))
    async with asyncio.timeout(60):
        await reads.has_read.wait()
        source = TopicPartition(stack.settings.topics.responses.name, 0)
        pump.revoked([source], monotonic_ms())
        await history.append([entry(response_id, span(3, "c"), end=4)])
        await pump.assigned([source], monotonic_ms())
        reads.may_answer.set()
        answer = await back
    assert '"bc"' in answer["text"]
    assert "[DONE]" in answer["text"]
