"""Several answers to one request: in chunks, whole, on sockets, and from wherever a client comes back."""

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from schemas.endings import EndingCode
from schemas.request import Request
from schemas.responses import Terminal
from schemas.websocket import Delta
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.spans import Span, join_runs
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.port import Opening
from tests.unit.streams.gateway.gateway_stack import Stack, started, terminal, until
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, sdk
from tests.unit.streams.gateway.hub_stories import ACME, R
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say
from tests.unit.streams.gateway.test_calls_in_chunks import (
    Part,
    accumulated,
    answers,
    spans_of,
    told_calls,
    whole_of,
)

TURNS = [(0, "Par"), (1, "Rom"), (2, "Li"), (1, "e"), (0, "is"), (2, "ma")]
TEXTS = ["Paris", "Rome", "Lima"]
REASONS = ["stop", "length", "stop"]


@st.composite
def spoken(draw: st.DrawFn) -> list[Span]:
    """Answers of two or three choices, which speak in any turns: each token a span."""
    parts: list[list[Part]] = draw(st.lists(answers(), min_size=2, max_size=3))
    waiting = [spans_of(each, draw(st.integers(1, 4)), choice=choice) for choice, each in enumerate(parts)]
    turns = draw(st.permutations([choice for choice, own in enumerate(waiting) for _ in own]))
    return [
        waiting[choice].pop(0)._replace(first_sequence=number, sequence_number=number)
        for number, choice in enumerate(turns, 1)
    ]


def ended(spans: list[Span], choices: int | None = None) -> Terminal:
    count = choices or max(span.choice for span in spans) + 1
    return terminal(R, ACME, len(spans) + 1, finish_reasons=(["stop", "tool_calls", "length"] * count)[:count])


def chunks_of(spans: list[Span], end: Terminal, after: int = 0) -> list[dict[str, Any]]:
    """What is told to who has seen the tokens up to `after`, of the whole response."""
    choices = len(end.finish_reasons)
    assert CHAT_COMPLETIONS.tells_all(started(R, ACME, choices=choices)) is (choices > 1)
    events = CHAT_COMPLETIONS.events(None, Opening(R, 7, "tiny", after=after, choices=choices))
    told = b"".join(map(events.span, spans)) + events.terminal(end)
    return [json.loads(data) for _, data in events_of(told.decode()) if data != "[DONE]"]


@settings(max_examples=30)
@given(spoken(), st.integers(1, 12))
def test_the_package_puts_each_choice_together(tokens: list[Span], chars: int) -> None:
    spans, end = join_runs(tokens, chars), ended(tokens)
    whole, completion = whole_of(spans, end), accumulated(chunks_of(spans, end))
    assert len(completion.choices) == len(whole["choices"])
    for choice, told in zip(completion.choices, whole["choices"], strict=True):
        message = told["message"]
        assert (choice.index, choice.finish_reason) == (told["index"], told["finish_reason"])
        assert choice.message.role == "assistant"
        assert (choice.message.content or "") == (message["content"] or "")
        assert getattr(choice.message, "reasoning_content", "") == message.get("reasoning_content", "")
        assert told_calls(completion, choice.index) == message.get("tool_calls", [])


@settings(max_examples=40)
@given(spoken(), st.integers(1, 12), st.integers(1, 12))
def test_who_was_cut_off_anywhere_puts_the_same_together(tokens: list[Span], chars: int, other: int) -> None:
    """Also in the middle of a name that another choice has spoken into."""
    spans, others, end = join_runs(tokens, chars), join_runs(tokens, other), ended(tokens)
    chunks = chunks_of(spans, end)
    whole = [choice.message for choice in accumulated(chunks).choices]
    for seen, chunk in enumerate(chunks, 1):
        number = chunk["sequence_number"]
        if number in (0, end.sequence_number) or (seen < len(chunks) and chunks[seen]["sequence_number"] == number):
            continue
        rest = chunks_of(others, end, number)
        assert [choice.message for choice in accumulated(chunks[:seen] + rest).choices] == whole


def test_roles_come_first_and_reasons_last_each_once() -> None:
    spans = [Span(n, n, choice, "content", text, [len(text)]) for n, (choice, text) in enumerate(TURNS[1:], 1)]
    chunks = chunks_of(spans, terminal(R, ACME, 6, finish_reasons=[*REASONS, "stop"]))
    told = [(choice["index"], choice) for chunk in chunks for choice in chunk["choices"]]
    assert [(index, choice["delta"].get("role")) for index, choice in told][:4] == [
        (index, "assistant") for index in range(4)
    ], "also of the one that says nothing"
    assert [(index, choice["finish_reason"]) for index, choice in told][-4:] == [*enumerate([*REASONS, "stop"])]
    assert sum("role" in choice["delta"] for _, choice in told) == 4
    assert chunks[-1]["usage"] is not None, "usage comes behind the last of them"
    numbers = [chunk["sequence_number"] for chunk in chunks]
    assert numbers == sorted(numbers)
    assert numbers.count(6) == 1


async def answer(stack: Stack, likeliest: int | None = None) -> Request:
    """Plays three choices, a token at a time."""
    request = await stack.pipeline.next_request()
    assert request.choices == 3
    stack.pipeline.start(request)
    for number, (choice, text) in enumerate(TURNS, 1):
        stack.pipeline.release(request, number, [text], [("content", 0, choice)], likeliest=likeliest)
    stack.pipeline.end(request, len(TURNS) + 1, finish_reasons=REASONS)
    return request


async def test_openais_package_gets_all_of_them_whole(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(answer(stack))
        completion = await api.chat.completions.create(**HELLO, n=3)
        request = await answering
        again = await api.chat.completions.retrieve(request.response_id)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert [choice.message.content for choice in completion.choices] == TEXTS
    assert [choice.finish_reason for choice in completion.choices] == REASONS
    assert again.choices == completion.choices


async def test_openais_package_streams_all_of_them(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(answer(stack))
        async with api.chat.completions.stream(
            **HELLO, n=3, stream_options={"include_usage": True}, extra_body={"best_of": 3}
        ) as stream:
            await stream.until_done()
            completion = stream.current_completion_snapshot
        await answering
    assert [choice.message.content for choice in completion.choices] == TEXTS
    assert [choice.finish_reason for choice in completion.choices] == REASONS
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(TURNS)


async def test_usage_so_far_counts_the_tokens_of_all_choices(stack: Stack) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client(stack) as http:
        answering = asyncio.ensure_future(answer(stack))
        body = {**HELLO, "n": 3, "stream": True, "stream_options": options}
        events = events_of((await http.post("/v1/chat/completions", json=body)).text)
        await answering
    used = [json.loads(data)["usage"]["completion_tokens"] for _, data in events if data != "[DONE]"]
    assert used == [0, 0, 0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6]


@pytest.mark.parametrize("after", range(len(TURNS) + 2))
async def test_each_comes_back_from_any_number(stack: Stack, after: int) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(answer(stack))
        whole = (await http.post("/v1/chat/completions", json={**HELLO, "n": 3})).json()
        request = await answering
        path = f"/v1/chat/completions/{request.response_id}"
        rest = await http.get(f"{path}?stream=true&starting_after={after}")
    if after > len(TURNS):
        assert rest.status_code == 204
        return
    texts: defaultdict[int, str] = defaultdict(str)
    for _, data in events_of(rest.text)[:-1]:
        for choice in json.loads(data)["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            assert after == 0 or "role" not in choice["delta"], "who has seen a token has seen the roles"
    left = ["".join(text for choice, text in TURNS[after:] if choice == index) for index in range(3)]
    assert [texts[index] for index in range(3)] == left
    assert [choice["message"]["content"] for choice in whole["choices"]] == TEXTS


async def test_a_legacy_completion_has_them_too(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(answer(stack))
        whole = await api.completions.create(model="small", prompt="Once", n=3, best_of=3)
        await answering
        answering = asyncio.ensure_future(answer(stack))
        stream = await api.completions.create(model="small", prompt="Once", n=3, stream=True)
        texts: defaultdict[int, str] = defaultdict(str)
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        request = await answering
    Completion.model_validate(whole.model_dump(exclude_none=True), strict=True)
    assert [choice.text for choice in whole.choices] == TEXTS
    assert [choice.finish_reason for choice in whole.choices] == REASONS
    assert [texts[index] for index in range(3)] == TEXTS
    assert (request.choices, request.endpoint) == (3, "completions")


async def test_on_a_socket_every_delta_says_which_it_is_of(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body={**HELLO, "n": 3})
        answering = asyncio.ensure_future(answer(stack))
        seen, _ = await hear_until_terminal(socket)
        request = await answering
        await say(socket, type="resume", response_id=request.response_id, starting_after=4)
        rest, _ = await hear_until_terminal(socket)
    for messages, turns in ((seen, TURNS), (rest, TURNS[4:])):
        assert [(each.choice, each.text) for each in messages if isinstance(each, Delta)] == turns
        assert messages[-1].finish_reasons == REASONS


async def test_while_they_run_all_of_them_are_shown(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**HELLO, "n": 3, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Rom"], [("content", 0, 1)])
        await until(lambda: stack.has_released(request), "it has begun")
        shown = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
        stack.pipeline.end(request, 2, EndingCode.CANCELLED, finish_reasons=["stop"] * 3)
        await asking
    assert [choice["message"]["content"] for choice in shown["choices"]] == ["", "Rom", ""]
    assert {choice["finish_reason"] for choice in shown["choices"]} == {None}


def test_calls_of_different_choices_have_ids_of_their_own() -> None:
    assert len({call_id(R, choice, call) for choice in range(128) for call in range(8)}) == 128 * 8


def test_a_legacy_completion_is_told_from_its_beginning_to_who_comes_back() -> None:
    assert COMPLETIONS.tells_all(None)
