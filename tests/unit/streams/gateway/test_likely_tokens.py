"""How likely tokens were, from the log to every viewer: streamed, whole, replayed, cut off anywhere, on sockets."""

import asyncio
import json
import sys
import threading
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from schemas.generated import Kind
from schemas.logprobs import RowLogprobs, TokenLogprobs
from schemas.responses import RESPONSES, Release
from schemas.websocket import Delta
from streams.dialects.openai_logprobs import token_objects, written
from streams.gateway.fan_out.spans import (
    ALTERNATIVE_BYTES,
    MAX_SPAN_CHARS,
    SPAN_BYTES,
    TOLD_TOKEN_BYTES,
    Span,
    cut,
    first_part,
    join,
    join_runs,
    logprobs_bytes,
    memory_bytes,
    told_chars,
)
from streams.gateway.history.replay import Replay, pack
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.service.lookup import Snapshot
from tests.unit.streams.gateway.gateway_stack import Stack, likely, release
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of
from tests.unit.streams.gateway.hub_stories import ACME, R, Reader, hub
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say

TOKENS = ["Pa", "ris", "", " 👋", "é", "."]
LIKELY: dict[str, Any] = {**HELLO, "logprobs": True, "top_logprobs": 2}
ONCE: dict[str, Any] = {"model": "small", "prompt": "Once", "logprobs": 2}
CONTENT = token_objects([likely(token, number, 2) for number, token in enumerate(TOKENS, 1)])
OFFSETS = [0, *accumulate(map(len, TOKENS[:-1]))]
EDGES = st.lists(st.integers(1, len(TOKENS)), max_size=6).map(lambda cuts: sorted({0, len(TOKENS), *cuts}))


def span_of(first: int, tokens: list[str], likeliest: int | None = 2, choice: int = 0) -> Span:
    logprobs: RowLogprobs = None
    if likeliest is not None:
        logprobs = [likely(token, number, likeliest) for number, token in enumerate(tokens, first)]
    ends = [*accumulate(map(len, tokens))]
    return Span(first, first + len(tokens) - 1, choice, "content", "".join(tokens), ends, 0, 0, logprobs)


def as_packed(logprobs: RowLogprobs) -> list[TokenLogprobs]:
    """Whether they came from the log or from history, where JSON has lists."""
    return [[(token, value) for token, value in each] for each in logprobs or ()]


@given(EDGES, st.integers(0, len(TOKENS)))
def test_a_span_is_cut_and_joined_with_what_is_told_of_its_tokens(edges: list[int], after: int) -> None:
    spans = [span_of(a + 1, TOKENS[a:b]) for a, b in pairwise(edges)]
    whole = join(spans)
    assert whole == span_of(1, TOKENS)
    assert (whole.after(after) or whole) == (span_of(after + 1, TOKENS[after:]) if after < len(TOKENS) else whole)
    assert [part.tokens for part in join_runs([*spans, span_of(len(TOKENS) + 1, ["x"], None)])] == [len(TOKENS), 1]


@given(EDGES, st.integers(0, 2), st.integers(1, 3_000), st.integers(1, 12_000))
def test_a_span_is_cut_where_it_takes_too_much(
    edges: list[int], likeliest: int, most_chars: int, most_bytes: int
) -> None:
    spans = [span_of(a + 1, TOKENS[a:b], likeliest or None) for a, b in pairwise(edges)]
    parts = list(cut(spans, most_chars))
    assert join(parts) == join(spans)
    assert all(part.tokens == 1 or told_chars(part) <= most_chars for part in parts)
    whole = join(spans)
    first = first_part(whole, most_bytes)
    assert first.tokens == 1 or memory_bytes((first,)) <= most_bytes
    rest = whole.after(first.sequence_number)
    assert join([first, rest] if rest else [first]) == whole
    plain = span_of(1, ["word"] * 10, None)
    assert [first_part(plain, SPAN_BYTES + most).tokens for most in (0, 44 * 3 - 1, 44 * 3)] == [1, 2, 3]


@given(EDGES, st.integers(0, len(TOKENS) - 1))
def test_the_log_and_history_tell_them_of_each_token(edges: list[int], after: int) -> None:
    records = [release(R, ACME, a + 1, TOKENS[a:b], likeliest=2) for a, b in pairwise(edges)]
    told, kept = Replay(after), Replay(after)
    for record in records:
        read = RESPONSES.validate_json(record.encode())
        assert isinstance(read, Release)
        told.add_release(read, R)
    kept.add_packed(pack(None, told.spans, None))
    for replay in (told, kept):
        whole = join(replay.spans)
        assert whole.text == "".join(TOKENS[after:])
        assert as_packed(whole.logprobs) == span_of(after + 1, TOKENS[after:]).logprobs


def test_what_history_kept_before_there_were_any_is_read() -> None:
    replay = Replay()
    replay.add_packed(b'[1,null,[[1,2,0,"content","Hi!",[2,3],7]],null]')
    replay.add_packed(b'[1,null,[[3,3,0,"tool_arguments","{}",[2],8,1]],null]')
    assert [span.logprobs for span in replay.spans] == [None, None]
    assert pack(None, replay.spans, None) == (
        b'[1,null,[[1,2,0,"content","Hi!",[2,3],7],[3,3,0,"tool_arguments","{}",[2],8,1]],null]'
    ), "and kept as it was"


@given(EDGES, st.booleans())
def test_the_hub_counts_what_they_take(edges: list[int], repeats: bool) -> None:
    watched = hub(max_lag_bytes=10**9)
    watched.open(R, 0, ACME, "continue", 0)
    for a, b in pairwise(edges):
        watched.apply_release(release(R, ACME, max(1, a) if repeats else a + 1, TOKENS[max(0, a - repeats) : b],
                                      likeliest=20), 0, 0)  # fmt: skip
    stream = watched.get(R)
    assert stream is not None
    assert watched.held_bytes == memory_bytes(stream.spans) > len(TOKENS) * 21 * ALTERNATIVE_BYTES
    reader = Reader(watched, 0, Replay)
    reader.take()
    assert reader.text == "".join(TOKENS)


@pytest.mark.parametrize("token", ["word", "=" * 500], ids=["short", "long"])
def test_what_is_counted_is_what_they_take(token: str) -> None:
    read = RESPONSES.validate_json(release(R, ACME, 1, [token] * 500, likeliest=20).encode())
    assert isinstance(read, Release)
    assert read.logprobs is not None
    [logprobs] = read.logprobs
    assert logprobs is not None
    taken = sum(
        sys.getsizeof(each) + sum(map(sys.getsizeof, (*each, *(part for told in each for part in told))))
        for each in logprobs
    )
    assert 0.7 < taken / logprobs_bytes(logprobs) < 1.1
    chars = sum(len(text) for each in logprobs for text, _ in each)
    assert logprobs_bytes(logprobs) == 500 * (TOLD_TOKEN_BYTES + 21 * ALTERNATIVE_BYTES) + chars


@pytest.mark.parametrize("token", ["word", " " * 128], ids=["short", "long"])
def test_who_lags_is_given_no_more_at_once_than_of_text(token: str) -> None:
    """A token takes two thousand characters to tell with the twenty that were likeliest beside it, and one of blanks
    seven times as many: a client's library takes no message of a megabyte.
    """
    watched = hub(max_lag_bytes=10**9)
    watched.open(R, 0, ACME, "continue", 0)
    viewer = watched.attach(R, 0, ACME, 0, lambda _: None, 0)
    for number in range(1, 101):
        watched.apply_release(release(R, ACME, number, [token], likeliest=20), 0, 0)
    taken: list[Span] = []
    while isinstance(span := viewer.take(), Span):
        taken.append(span)
    for spans in (taken, join_runs([span_of(number, [token], 20) for number in range(1, 101)])):
        assert sum(span.tokens for span in spans) == 100
        told = [json.dumps(token_objects(span.logprobs or ()), separators=(",", ":")) for span in spans]
        assert len(told) > 3
        assert max(map(len, told)) < 1.5 * MAX_SPAN_CHARS
        assert all(0.5 < told_chars(span) / len(text) < 2 for span, text in zip(spans, told, strict=True))


@pytest.mark.parametrize(("tokens", "is_long"), [(3, False), (400, True)])
async def test_a_long_answer_is_told_beside_the_loop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tokens: int, is_long: bool
) -> None:
    """Others are sent something meanwhile."""
    told, state = [], CHAT_COMPLETIONS.state

    def watched(snapshot: Snapshot) -> dict[str, Any]:
        told.append(threading.current_thread() is not threading.main_thread())
        return state(snapshot)

    monkeypatch.setattr(CHAT_COMPLETIONS, "state", watched)
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**LIKELY, "top_logprobs": 20}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["word"] * tokens, likeliest=20)
        stack.pipeline.end(request, tokens + 1)
        whole = (await asking).json()
        shown = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
    assert told == [is_long]
    assert shown["choices"] == whole["choices"]
    assert len(whole["choices"][0]["logprobs"]["content"]) == tokens


async def test_openais_package_gets_them_whole_and_by_id(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        whole = (await http.post("/v1/chat/completions", json=LIKELY)).json()
        request = await answering
        shown = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
    assert request.sampling.logprobs == 2
    ChatCompletion.model_validate(whole, strict=True)
    assert whole["choices"][0]["logprobs"] == {"content": CONTENT, "refusal": None}
    assert shown["choices"] == whole["choices"]


@pytest.mark.parametrize("after", range(len(TOKENS)))
async def test_a_stream_tells_each_once_from_any_number(stack: Stack, after: int) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        streamed = events_of((await http.post("/v1/chat/completions", json={**LIKELY, "stream": True})).text)
        request = await answering
        path = f"/v1/chat/completions/{request.response_id}?stream=true&starting_after={after}"
        rest = events_of((await http.get(path)).text)
    for events, expected in ((streamed, CONTENT), (rest, CONTENT[after:])):
        chunks = [ChatCompletionChunk.model_validate_json(data, strict=True) for _, data in events if data != "[DONE]"]
        told = [
            token.to_dict()
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs is not None
            for token in choice.logprobs.content or ()
        ]
        assert told == expected


@pytest.mark.parametrize("after", range(len(TOKENS)))
async def test_a_legacy_stream_says_from_any_number_where_each_token_stands(stack: Stack, after: int) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        whole = (await http.post("/v1/completions", json=ONCE)).json()
        request = await answering
        path = f"/v1/completions/{request.response_id}"
        shown = (await http.get(path)).json()
        rest = events_of((await http.get(f"{path}?stream=true&starting_after={after}")).text)
    [choice] = whole["choices"]
    assert choice["logprobs"]["tokens"] == TOKENS
    assert choice["logprobs"]["text_offset"] == OFFSETS
    assert choice["logprobs"]["top_logprobs"][0] == {"Pa0": 0, "Pa1": -0.125, "Pa": -0.125}
    assert shown["choices"] == whole["choices"]
    told = [choice["logprobs"] for _, data in rest[:-1] for choice in json.loads(data)["choices"]]
    for name, every in choice["logprobs"].items():
        assert [each for logprobs in told if logprobs for each in logprobs[name]] == every[after:], name


async def test_a_socket_tells_them_with_each_delta_and_all_who_watch_the_same(stack: Stack) -> None:
    async with dial(stack) as one, dial(stack) as two:
        await say(one, type="request", request_id="r1", body=LIKELY)
        request = await stack.pipeline.next_request()
        await hear(one)
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, TOKENS[:1], likeliest=2)
        await hear(one)
        first = await hear(one)
        await say(two, type="resume", response_id=request.response_id)
        stack.pipeline.release(request, 2, TOKENS[1:], likeliest=2)
        stack.pipeline.end(request, len(TOKENS) + 1)
        told = [await hear_until_terminal(socket) for socket in (one, two)]
    for messages in ([first, *told[0][0]], told[1][0]):
        deltas = [message for message in messages if isinstance(message, Delta)]
        assert [each.model_dump() for delta in deltas for each in delta.logprobs or ()] == CONTENT


async def test_who_did_not_ask_finds_no_such_field_on_a_socket(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS[:2]))
        raw = ""
        while '"terminal"' not in raw:
            raw = str(await socket.recv())
            assert "logprobs" not in raw
        await answering


async def test_only_what_is_said_has_them(stack: Stack) -> None:
    """Not what was thought, and not a call."""
    strands: list[tuple[Kind, int]] = [("reasoning", 0), ("content", 0), ("tool_name", 0), ("tool_arguments", 0)]
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=LIKELY))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Hm", "Yes", "f", "{}"], strands, likeliest=2)
        stack.pipeline.end(request, 5, finish_reasons=["tool_calls"])
        [choice] = (await asking).json()["choices"]
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["Yes"]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert written("\xc3\xa9") == "é"
