"""What the clients of chaos write down is what they were told: over both transports, cut off or not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.endings import EndingCode
from schemas.responses import TokenUsage
from tests.chaos.clients import CANCEL_AFTER, Asking, OverEvents, OverWebSocket
from tests.e2e.relay import Relay
from tests.history.saw import Answer
from tests.servers import free_ports
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until

BODY: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "user", "content": "Hello"}],
    "on_disconnect": "continue",
}
BOTH = pytest.mark.parametrize("kind", [OverWebSocket, OverEvents])


@pytest.fixture
async def stack(redis_url: str) -> AsyncIterator[Stack]:
    settings = gateway_settings(redis_url, "chaos")
    async with serving(settings, memory_log(settings)) as served:
        yield served


def asking(kind: type[Asking], *urls: str, key: str = "", cancels: bool = False, **more: Any) -> Asking:
    return kind(urls, KEY, {**BODY, **more}, Answer(request="1", how="either", tenant="acme", key=key), cancels=cancels)


@BOTH
async def test_an_answer_is_written_down_token_by_token_also_where_the_first_gateway_is_gone(
    stack: Stack, kind: type[Asking]
) -> None:
    [port] = free_ports(1)
    answering = asyncio.create_task(stack.pipeline.answer(["Once", " upon", " a time"]))
    answer = await asyncio.to_thread(asking(kind, f"http://127.0.0.1:{port}", stack.url).follow)
    request = await answering
    assert (answer.response_ids, answer.code, answer.refused) == ([request.response_id], "completed", "")
    assert (answer.text, answer.last, answer.terminal_sequence) == ("Once upon a time", 3, 4)
    assert answer.left == ["nobody is there"]
    assert answer.cut == 1


@BOTH
@pytest.mark.parametrize("key", ["", "key-1"])
async def test_who_is_cut_off_goes_on_behind_the_last_token(stack: Stack, kind: type[Asking], key: str) -> None:
    with Relay(stack.url).running() as relay:
        client = asking(kind, relay.url, key=key)
        following = asyncio.create_task(asyncio.to_thread(client.follow))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once", " upon"])
        await until(lambda: client.answer.last == 2, "it has two tokens")
        relay.cut()
        stack.pipeline.release(request, 3, [" a time"])
        await until(lambda: client.answer.last == 3, "it has come back")
        stack.pipeline.release(request, 4, [""])
        stack.pipeline.end(request, 5)
        answer = await following
    assert answer.response_ids == [request.response_id]
    assert [span.first for span in answer.spans][:2] == [1, 3]
    assert (answer.text, answer.code, answer.terminal_sequence) == ("Once upon a time", "completed", 5)
    assert len(answer.left) == 1
    assert answer.cut == 1


@BOTH
async def test_an_ending_is_told_by_its_code(stack: Stack, kind: type[Asking]) -> None:
    ending = asyncio.create_task(stack.pipeline.ends(EndingCode.STREAM_GAP, "Once"))
    answer = await asyncio.to_thread(asking(kind, stack.url).follow)
    await ending
    assert (answer.code, answer.text, answer.terminal_sequence) == ("stream_gap", "Once", 2)


async def cut_before_it_knows(stack: Stack, relay: Relay, client: Asking) -> str:
    """The response that it asked for. Over HTTP nothing is told of one that has not begun."""
    following = asyncio.create_task(asyncio.to_thread(client.follow))
    request = await stack.pipeline.next_request()
    relay.cut()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["Once"])
    stack.pipeline.end(request, 2)
    await following
    return request.response_id


async def test_who_was_cut_off_before_it_knew_asks_again_with_its_key_alone(stack: Stack) -> None:
    with Relay(stack.url).running() as relay:
        unkeyed, keyed = asking(OverEvents, relay.url), asking(OverEvents, relay.url, key="key-1")
        await cut_before_it_knows(stack, relay, unkeyed)
        response_id = await cut_before_it_knows(stack, relay, keyed)
    assert unkeyed.answer.refused.startswith("unknown: ")
    assert (unkeyed.answer.response_ids, unkeyed.answer.code) == ([], "")
    assert (keyed.answer.response_ids, keyed.answer.text, keyed.answer.code) == ([response_id], "Once", "completed")


async def test_who_is_refused_in_words_was_not_cut_off(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "chaos", admission_timeout_ms=300)
    async with serving(settings, memory_log(settings)) as stack:
        client = asking(OverEvents, stack.url)
        await asyncio.to_thread(client.follow)  # nobody admits it
    assert client.answer.refused == "unavailable"
    assert client.answer.cut == 0


@BOTH
async def test_each_token_is_written_down_as_of_its_choice(stack: Stack, kind: type[Asking]) -> None:
    following = asyncio.create_task(asyncio.to_thread(asking(kind, stack.url, n=2).follow))
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.release(request, 1, ["Once", "Twice"], [("content", 0, 0), ("content", 0, 1)])
    stack.pipeline.end(request, 3, finish_reasons=["content_filter", "stop"], code=EndingCode.SAFETY_HALTED)
    answer = await following
    assert [(span.text, span.choice) for span in answer.spans] == [("Once", 0), ("Twice", 1)]
    assert (answer.code, answer.terminal_sequence) == ("safety_halted", 3)


async def test_who_cancels_says_so_again_at_the_next_gateway(stack: Stack) -> None:
    with Relay(stack.url).running() as relay:
        client = asking(OverWebSocket, relay.url, cancels=True)
        following = asyncio.create_task(asyncio.to_thread(client.follow))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, [" and"] * (CANCEL_AFTER - 1))
        await until(lambda: client.answer.last == CANCEL_AFTER - 1, "it has some tokens")
        assert not client.answer.was_cancelled
        stack.pipeline.release(request, CANCEL_AFTER, [" so"])
        await until(lambda: len(stack.pipeline.cancels()) == 1, "it is cancelled")
        relay.cut()
        await until(lambda: len(stack.pipeline.cancels()) == 2, "it is cancelled again")
        stack.pipeline.end(request, CANCEL_AFTER + 1, EndingCode.CANCELLED)
        answer = await following
    assert (answer.was_cancelled, answer.code, answer.last) == (True, "cancelled", CANCEL_AFTER)
    assert answer.usage is not None
    assert answer.usage.keys() == TokenUsage().model_dump().keys()
