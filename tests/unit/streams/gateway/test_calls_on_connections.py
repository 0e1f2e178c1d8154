"""Calls of tools as clients of a served gateway get them: streamed, whole, cut off in the middle, and on sockets."""

import asyncio
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from schemas.generated import Kind
from schemas.request import Request
from schemas.websocket import Delta
from streams.dialects.tool_calls import call_id
from streams.gateway.fan_out.spans import Span, join_runs
from streams.gateway.history.replay import Replay, pack
from tests.unit.streams.gateway.gateway_stack import Stack, release
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, sdk
from tests.unit.streams.gateway.hub_stories import ACME, R
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say

ROWS: list[tuple[Kind, int, list[str]]] = [
    ("reasoning", 0, ["Two", " cities"]),
    ("tool_name", 0, ["get_", "weather"]),
    ("tool_arguments", 0, ['{"city"', ': "Zürich', ' 👋"}']),
    ("tool_name", 1, ["get_time"]),
    ("tool_arguments", 1, ["{", "}"]),
]
TOKENS = [token for _, _, tokens in ROWS for token in tokens]
STRANDS = [(kind, call) for kind, call, tokens in ROWS for _ in tokens]
CALLS = [("get_weather", '{"city": "Zürich 👋"}'), ("get_time", "{}")]


async def call_tools(stack: Stack, request: Request | None = None) -> Request:
    """Plays an answer that thinks and calls, a token at a time."""
    request = request or await stack.pipeline.next_request()
    stack.pipeline.start(request)
    for number, (token, strand) in enumerate(zip(TOKENS, STRANDS, strict=True), 1):
        stack.pipeline.release(request, number, [token], [strand])
    stack.pipeline.end(request, len(TOKENS) + 1, finish_reasons=["tool_calls"])
    return request


async def test_openais_package_streams_the_calls(stack: Stack) -> None:
    answering = asyncio.ensure_future(call_tools(stack))
    async with sdk(stack) as api, api.chat.completions.stream(
        model="small", messages=[{"role": "user", "content": "Hi"}]
    ) as stream:  # fmt: skip
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        completion = await stream.get_final_completion()
    request = await answering
    assert [(event.index, event.name, event.arguments) for event in done] == [
        (index, name, arguments) for index, (name, arguments) in enumerate(CALLS)
    ]
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []] == [
        (call_id(request.response_id, 0, index), *call) for index, call in enumerate(CALLS)
    ]


async def test_whole_and_streamed_say_the_same(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(call_tools(stack))
        whole = (await http.post("/v1/chat/completions", json=HELLO)).json()
        request = await answering
        shown = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
    ChatCompletion.model_validate(whole, strict=True)
    message = whole["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "Two cities")
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]] == CALLS
    assert [call["id"] for call in message["tool_calls"]] == [call_id(request.response_id, 0, call) for call in (0, 1)]
    assert shown["choices"] == whole["choices"]


@pytest.mark.parametrize("after", range(1, len(TOKENS)))
async def test_who_comes_back_in_a_call_is_given_the_rest_and_neither_id_nor_name_again(
    stack: Stack, after: int
) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(call_tools(stack))
        await http.post("/v1/chat/completions", json=HELLO)
        request = await answering
        path = f"/v1/chat/completions/{request.response_id}?stream=true&starting_after={after}"
        events = events_of((await http.get(path)).text)
    deltas = [
        delta
        for _, data in events
        if data != "[DONE]"
        for choice in orjson.loads(data)["choices"]
        for delta in choice["delta"].get("tool_calls", [])
    ]
    rest = [*zip(TOKENS, STRANDS, strict=True)][after:]
    for index, _ in enumerate(CALLS):
        name = "".join(token for token, strand in rest if strand == ("tool_name", index))
        arguments = "".join(token for token, strand in rest if strand == ("tool_arguments", index))
        of_call = [delta for delta in deltas if delta["index"] == index]
        assert "".join(delta["function"].get("name", "") for delta in of_call) == name
        assert "".join(delta["function"].get("arguments", "") for delta in of_call) == arguments
        assert [delta["id"] for delta in of_call if "id" in delta] == (
            [call_id(request.response_id, 0, index)] if name else []
        )


async def test_a_socket_tells_of_every_delta_which_call_it_belongs_to(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        answering = asyncio.ensure_future(call_tools(stack))
        seen, _ = await hear_until_terminal(socket)
        request = await answering
        await say(socket, type="resume", response_id=request.response_id, starting_after=3)
        rest, _ = await hear_until_terminal(socket)
    for deltas, tokens, strands in ((seen, TOKENS, STRANDS), (rest, TOKENS[3:], STRANDS[3:])):
        told = [message for message in deltas if isinstance(message, Delta)]
        of_tokens = [(d.kind, d.call) for d in told for _ in range(d.first_sequence, d.sequence_number + 1)]
        assert of_tokens == strands
        assert "".join(delta.text for delta in told) == "".join(tokens)
        for delta in told:
            own_id = call_id(request.response_id, 0, delta.call) if delta.kind == "tool_name" else ""
            assert delta.call_id == own_id
    assert (seen[-1].finish_reason, seen[-1].finish_reasons) == ("tool_calls", ["tool_calls"])


def test_what_history_keeps_of_an_answer_without_tools_is_what_it_always_kept() -> None:
    span = Span(1, 2, 0, "content", "Hi!", [2, 3], 7)
    assert pack(None, [span, span._replace(kind="tool_name")], None) == (
        b'[1,null,[[1,2,0,"content","Hi!",[2,3],7],[1,2,0,"tool_name","Hi!",[2,3],7]],null]'
    )


def test_what_history_kept_before_there_were_calls_is_read() -> None:
    replay = Replay()
    replay.add_packed(b'[1,null,[[1,2,0,"content","Hi!",[2,3],7]],null]')
    replay.add_packed(b'[1,null,[[3,3,0,"tool_arguments","{}",[2],8,1]],null]')
    assert replay.spans == [
        Span(1, 2, 0, "content", "Hi!", [2, 3], 7), Span(3, 3, 0, "tool_arguments", "{}", [2], 8, 1),
    ]  # fmt: skip


@given(st.lists(st.integers(1, len(TOKENS)), max_size=6), st.integers(0, len(TOKENS) - 1), st.integers(1, 40))
def test_the_log_and_history_tell_each_token_with_its_kind_and_call(cuts: list[int], after: int, chars: int) -> None:
    edges = sorted({0, len(TOKENS), *cuts})
    records = [release(R, ACME, a + 1, TOKENS[a:b], STRANDS[a:b]) for a, b in pairwise(edges)]
    told, kept = Replay(after), Replay(after)
    for record in records:
        told.add_release(record, R)
    kept.add_packed(pack(None, join_runs(told.spans, chars), None))
    for replay in (told, kept):
        assert "".join(span.text for span in replay.spans) == "".join(TOKENS[after:])
        assert [(span.kind, span.call) for span in replay.spans for _ in range(span.tokens)] == STRANDS[after:]
