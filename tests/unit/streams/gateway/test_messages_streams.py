"""Anthropic's events on a socket: named, numbered, kept alive, and gone on with by who comes back."""

import asyncio
import json
import weakref
from typing import Any

import anthropic
import httpx
import pytest

from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.request import Request
from streams.gateway.fan_out.spans import Span
from streams.gateway.http import silence
from streams.gateway.http.dialects.messages import MessageEvents
from streams.gateway.http.dialects.port import Opening
from tests.unit.streams.gateway.gateway_stack import (
    Stack,
    until,
)
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.messages_clients import HELLO, of_events, raw_stream


async def test_pings_keep_a_stream_alive_and_the_package_passes_over_them(
    stack: Stack, api: anthropic.AsyncAnthropic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "KEEP_ALIVE_S", 0.01)
    streaming = asyncio.ensure_future(raw_stream(stack))
    request = await stack.pipeline.next_request()
    asking = asyncio.ensure_future(api.messages.create(**HELLO, stream=True))
    other = await stack.pipeline.next_request()
    for each in (request, other):
        stack.pipeline.start(each)
    for _ in range(20):  # however long a turn of the loop takes
        await asyncio.sleep(0.01)
    for each in (request, other):
        stack.pipeline.release(each, 1, ["Once"])
        stack.pipeline.end(each, 2)
    names = [event["event"] for event in of_events(await streaming)]
    assert names[0] == "message_start"
    assert names.count("ping") > 1
    assert [name for name in names if name != "ping"] == [event.type async for event in await asking]


async def test_events_are_named_and_numbered_and_have_ids_for_who_reads_as_browsers_do(stack: Stack) -> None:
    for headers in ({}, {"accept": "text/event-stream"}):
        answering = asyncio.ensure_future(stack.pipeline.answer(["Once", " upon\r\n\r\ndata: x"]))
        events = of_events(await raw_stream(stack, **headers))
        await answering
        told = [json.loads(event["data"]) for event in events]
        assert [each["type"] for each in told] == [event["event"] for event in events]
        numbers = [each["sequence_number"] for each in told]
        assert numbers == sorted(numbers)
        assert (numbers[:2], numbers[-3:]) == ([0, 0], [2, 2, 3])
        assert "".join(each["delta"]["text"] for each in told if each["type"] == "content_block_delta") == (
            "Once upon\r\n\r\ndata: x"
        )
        if headers:
            assert [int(event["id"]) for event in events] == numbers
            assert [event.get("retry") for event in events] == ["1000", *[None] * (len(events) - 1)]
        else:
            assert all(event.keys() == {"event", "data"} for event in events)


async def test_who_comes_back_is_told_exactly_the_rest(stack: Stack) -> None:
    tokens: list[tuple[Kind, str]] = [
        ("reasoning", "Let"),
        ("reasoning", " me."),
        ("content", "Par"),
        ("content", "is"),
    ]

    async def answer() -> Request:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for number, (kind, token) in enumerate(tokens, 1):
            stack.pipeline.say(request, number, kind, token)
        stack.pipeline.end(request, 5)
        return request

    answering = asyncio.ensure_future(answer())
    frame, texts = parts_of(await raw_stream(stack))
    path = f"/v1/messages/{(await answering).response_id}?stream=true"
    assert texts == {0: "Let me.", 1: "Paris"}
    assert frame[0] == (0, "message_start", None)
    async with client(stack) as http:
        for seen_nothing in (path, f"{path}&starting_after=0"):
            assert parts_of((await http.get(seen_nothing)).text) == (frame, texts)
        for after in range(1, 5):
            rest: dict[int, str] = {}
            for kind, token in tokens[after:]:
                index = 0 if kind == "reasoning" else 1
                rest[index] = rest.get(index, "") + token
            by_query = await http.get(f"{path}&starting_after={after}")
            by_header = await http.get(path, headers={"last-event-id": str(after)})
            for told in (by_query.text, by_header.text):
                assert parts_of(told) == ([each for each in frame if each[0] >= after], rest)
            assert by_header.text.count("\nid: ") == by_header.text.count("\n\n")
        assert (await http.get(f"{path}&starting_after=5")).status_code == 204
        beyond = await http.get(f"{path}&starting_after=6")
        assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "starting_after")
        unknown = (await http.get("/v1/messages/resp_x")).json()
        assert (unknown["error"]["type"], unknown["error"]["code"]) == ("not_found_error", "response_not_found")


async def test_who_comes_back_to_a_choice_that_has_ended_is_told_how_it_ended(stack: Stack) -> None:
    """Of several, the others go on: until they end there is nothing to tell."""
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "n": 2}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Par", "is", "Rome"], [("content", 0), ("content", 0), ("content", 0, 1)])
        await until(lambda: stack.runtime.hub.released_tokens == 3, "the first choice has spoken")
        coming = asyncio.ensure_future(http.get(f"/v1/messages/{request.response_id}?stream=true&starting_after=3"))
        await until(lambda: stack.runtime.hub.viewers == 2, "it has come back")
        stack.pipeline.release(request, 4, [" it", " is"], [("content", 0, 1)] * 2)
        stack.pipeline.end(request, 6, finish_reasons=["stop", "stop"])
        frame, texts = parts_of((await coming).text)
        await asking
    assert (frame, texts) == ([(5, "content_block_stop", 0), (5, "message_delta", None), (6, "message_stop", None)], {})


def test_nothing_is_kept_of_what_a_client_that_comes_back_has_seen() -> None:
    """Nothing is sent meanwhile, so nothing slows what comes: with probabilities it was megabytes."""
    kept: list[weakref.ref[Text]] = []

    def seen(number: int) -> Span:
        text = Text("word ")
        kept.append(weakref.ref(text))
        return Span(number, number, 0, "content", text, [5], logprobs=[[("word ", -0.1)]])

    events = MessageEvents(Opening("resp_x", 1, "tiny", after=1_000))
    assert not any(events.span(seen(number)) for number in range(1, 1_000))
    assert not [one for one in kept if one() is not None]
    assert b'"text_delta"' in events.span(Span(1_001, 1_001, 0, "content", "more", [4]))


class Text(str):
    """One that tells when it is gone."""


def parts_of(text: str) -> tuple[list[tuple[int, str, int | None]], dict[int, str]]:
    """What stands around the deltas, with its number; and the text of each block, whose tokens come in any groups."""
    frame: list[tuple[int, str, int | None]] = []
    texts: dict[int, str] = {}
    for event in (json.loads(event["data"]) for event in of_events(text)):
        if event["type"] == "content_block_delta":
            [said] = (value for name, value in event["delta"].items() if name != "type")
            texts[event["index"]] = texts.get(event["index"], "") + said
        else:
            frame.append((event["sequence_number"], event["type"], event.get("index")))
    return frame, texts


async def test_a_message_can_be_had_while_it_runs_and_afterwards(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        path = f"/v1/messages/{request.response_id}"
        assert (await http.get(path)).json()["status"] == "queued"
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "reasoning", "Hm")
        stack.pipeline.say(request, 2, "content", "Hel", "lo")
        await until(lambda: stack.runtime.hub.released_tokens == 3, "tokens arrive")
        running = (await http.get(path)).json()
        assert [running[name] for name in ("status", "stop_reason", "sequence_number")] == ["in_progress", None, 3]
        assert [running["usage"][name] for name in ("input_tokens", "output_tokens")] == [4, 3]
        assert [block["type"] for block in running["content"]] == ["thinking", "text"]
        stack.pipeline.end(request, 4, EndingCode.CANCELLED)
        await asking
        ended = (await http.get(path)).json()
        assert (ended["status"], ended["stop_reason"], ended["error"]["code"]) == ("cancelled", None, "cancelled")
        assert ended["content"] == running["content"]
        anthropic.types.Message.model_validate(ended, strict=True)


@pytest.mark.usefixtures("leases_of_a_second")
@pytest.mark.parametrize(("policy", "cancelled"), [("cancel", True), ("continue", False)])
async def test_a_client_that_leaves_detaches_and_its_policy_decides(stack: Stack, policy: str, cancelled: bool) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(_first_bytes(http, {**HELLO, "stream": True, "on_disconnect": policy}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        await asking
    await until(lambda: stack.runtime.hub.viewers == 0, "the viewer is gone")
    if cancelled:
        await until(stack.pipeline.cancels, "the response is cancelled")
        return
    stack.pipeline.release(request, 1, ["still"])
    stack.pipeline.end(request, 2)
    await until(lambda: stack.runtime.hub.get(request.response_id) is None, "it ends without a viewer")
    assert stack.pipeline.cancels() == []


async def _first_bytes(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with http.stream("POST", "/v1/messages", json=body) as answer:
        async for _ in answer.aiter_bytes():
            return
