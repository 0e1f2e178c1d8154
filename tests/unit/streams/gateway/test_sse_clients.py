"""What clients that nobody here wrote make of an event stream: each by its own way of reading, on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from streams.gateway.http import silence
from tests.unit.streams.dialects.recorded import RECORDED
from tests.unit.streams.gateway.gateway_stack import Stack, until
from tests.unit.streams.gateway.http_clients import HELLO, client
from tests.unit.streams.gateway.sse_readers import Decoder, Lines, Stripping

CHAT = "/v1/chat/completions"
STREAMED = {**HELLO, "stream": True}
TOKENS = ["Once", " upon", " a", " time"]

# What each of them sends: recorded.
PLAIN = {
    "openai-python, openai-node, LangChain, LlamaIndex, pydantic-ai, llm": "application/json",
    "vllm bench serve, sglang.bench_serving, guidellm, litellm, Vercel AI SDK, curl": "*/*",
}
EVENT_SOURCES = {
    "EventSource in browsers and in Node": {"accept": "text/event-stream"},
    "fetch-event-source": {"accept": "text/event-stream, application/json;q=0.5"},
    "who comes back": {"accept": "*/*", "last-event-id": "0"},
}


def text_of(read: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "") for chunk in read if chunk != "[DONE]" for choice in chunk["choices"]
    )


async def pieces_of(answer: httpx.Response) -> AsyncIterator[bytes]:
    async for piece in answer.aiter_raw():
        yield piece


@pytest.mark.parametrize("reader", [Stripping, Lines, Decoder])
@pytest.mark.parametrize("accept", PLAIN.values(), ids=PLAIN)
async def test_a_plain_client_gets_data_and_nothing_else(
    stack: Stack, accept: str, reader: Callable[[], Stripping | Lines | Decoder]
) -> None:
    reading = reader()
    async with client(stack, accept=accept) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        async with http.stream("POST", CHAT, json={**STREAMED, "stream_options": {"include_usage": True}}) as answer:
            raw = b""
            async for piece in pieces_of(answer):
                raw += piece
                reading.feed(piece)
        await answering
    assert all(line.startswith(b"data: ") for line in raw.splitlines() if line)
    assert text_of(reading.read) == "Once upon a time"
    assert reading.read[-1] == "[DONE]"
    assert reading.read[-2]["usage"]["completion_tokens"] == 4


async def test_each_chunk_says_after_which_number_to_resume(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        whole = Lines()
        answer = await http.post(CHAT, json={**STREAMED, "stream_options": {"include_usage": True}})
        whole.feed(answer.content)
        request = await answering
        chunks = whole.read[:-1]
        assert [chunk["sequence_number"] for chunk in chunks][:1] == [0]
        assert [chunk["sequence_number"] for chunk in chunks][-2:] == [4, 5]
        for position, chunk in enumerate(chunks):
            rest = Lines()
            path = f"/v1/chat/completions/{request.response_id}?stream=true&starting_after={chunk['sequence_number']}"
            rest.feed((await http.get(path)).content)
            assert text_of(chunks[: position + 1]) + text_of(rest.read) == "Once upon a time"
        assert not rest.read, "who has the last chunk has everything"


@pytest.mark.parametrize("headers", EVENT_SOURCES.values(), ids=EVENT_SOURCES)
@pytest.mark.parametrize("reader", [Decoder, Lines])
async def test_who_asks_for_an_event_stream_gets_ids_behind_the_data(
    stack: Stack, headers: dict[str, str], reader: Callable[[], Decoder | Lines]
) -> None:
    reading = reader()
    async with client(stack, **headers) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        answer = await http.post(CHAT, json=STREAMED)
        await answering
    reading.feed(answer.content)
    assert text_of(reading.read) == "Once upon a time"
    blocks = [block.splitlines() for block in answer.text.split("\n\n") if block]
    assert all(block[0].startswith("data: ") for block in blocks)
    assert {line.partition(":")[0] for line in blocks[0]} == {"data", "id", "retry"}
    assert blocks[-1] == ["data: [DONE]", "id: 5"]
    if isinstance(reading, Decoder):
        numbers = [chunk["sequence_number"] for chunk in reading.read[:-1]]
        assert [int(number or 0) for number in reading.ids] == [*numbers, 5]


async def test_a_browser_that_comes_back_to_the_address_it_began_with_is_told_nothing_twice(stack: Stack) -> None:
    """`EventSource` comes back to its own address by itself, whose position is the one that it began with."""
    async with client(stack, accept="text/event-stream") as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        await http.post(CHAT, json=STREAMED)
        path = f"{CHAT}/{(await answering).response_id}?stream=true&starting_after=1"
        began = Decoder()
        began.feed((await http.get(path)).content)
        assert text_of(began.read) == " upon a time"
        for last, rest in ((1, " upon a time"), (3, " time"), (4, "")):
            reading = Decoder()
            reading.feed((await http.get(path, headers={"last-event-id": str(last)})).content)
            assert text_of(reading.read) == rest
        assert (await http.get(path, headers={"last-event-id": "5"})).status_code == 204, "and then to stop"
        refused = await http.get(path.replace("=1", "=one"), headers={"last-event-id": "3"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")


@pytest.mark.parametrize("headers", [{}, {"accept": "text/event-stream"}], ids=["plain", "with ids"])
@pytest.mark.parametrize(
    ("path", "body", "text_in"),
    [
        ("chat/completions", {**HELLO, "logprobs": True}, lambda event: text_of([event])),
        ("completions", {"model": "small", "prompt": "Hello"}, lambda event: event["choices"][0]["text"]),
        ("messages", {**HELLO, "max_tokens": 16}, lambda event: event.get("delta", {}).get("text", "")),
        ("responses", {"model": "small", "input": "Hello"}, lambda event: event.get("delta", "")),
    ],
    ids=["chat/completions", "completions", "messages", "responses"],
)
async def test_no_text_parts_an_event_for_who_reads_it_line_by_line(
    stack: Stack, path: str, body: dict[str, Any], text_in: Callable[[Any], str], headers: dict[str, str]
) -> None:
    """As httpx does, and guidellm by it, which take for the end of a line whatever Python takes for one."""
    said = ["one", *(f"{end} more" for end in "\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")]
    async with client(stack, **headers) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(said))
        async with http.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as answer:
            lines = [line async for line in answer.aiter_lines()]
        await answering
    assert {line.partition(": ")[0] for line in lines} <= {"", "event", "data", "id", "retry"}
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert "".join(text_in(json.loads(each)) for each in data if each != "[DONE]") == "".join(said)


@pytest.mark.parametrize(
    ("accept", "reader"),
    [("application/json", Decoder), ("*/*", Stripping), ("*/*", Lines), ("text/event-stream", Decoder)],
)
async def test_nothing_but_keep_alives_is_sent_before_the_first_text_and_no_parser_breaks_on_them(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, accept: str, reader: Callable[[], Stripping | Lines | Decoder]
) -> None:
    monkeypatch.setattr(silence, "KEEP_ALIVE_S", 0.01)
    reading = reader()
    async with client(stack, accept=accept) as http:
        asking = asyncio.ensure_future(stack.pipeline.next_request())
        raw: list[bytes] = []

        async def ask() -> None:
            async with http.stream("POST", CHAT, json=STREAMED) as answer:
                assert answer.status_code == 200
                async for piece in pieces_of(answer):
                    raw.append(piece)
                    reading.feed(piece)

        reads = asyncio.ensure_future(ask())
        request = await asking
        stack.pipeline.start(request)
        await keep_alives(raw, 3)
        assert not reading.read, "admitted is not answered"
        assert {line.partition(b":")[0] for line in b"".join(raw).splitlines()} == {b""}
        stack.pipeline.release(request, 1, ["Once"])
        before = len(raw)
        await keep_alives(raw, before + 4)
        await until(lambda: text_of(reading.read) == "Once", "it is told")
        role = reading.read[0]["choices"][0]["delta"]
        assert role == {"role": "assistant", "content": "", "refusal": None}
        stack.pipeline.release(request, 2, TOKENS[1:])
        stack.pipeline.end(request, 5)
        await reads
    assert text_of(reading.read) == "Once upon a time"


async def keep_alives(raw: list[bytes], pieces: int) -> None:
    await until(lambda: len(raw) >= pieces, "keep-alives arrive")


async def test_an_answer_without_text_still_has_a_role(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer([]))
        reading = Lines()
        reading.feed((await http.post(CHAT, json=STREAMED)).content)
        await answering
    deltas = [chunk["choices"][0]["delta"].get("role") for chunk in reading.read[:-1]]
    assert deltas == ["assistant", None]
    assert reading.read[-2]["choices"][0]["finish_reason"] == "stop"


async def test_usage_so_far_stands_in_every_chunk_for_who_asks_for_it(stack: Stack) -> None:
    """As guidellm always does."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post(CHAT, json={**STREAMED, "stream_options": options}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["Once", " upon"])
        stack.pipeline.end(request, 3)
        reading = Lines()
        reading.feed((await asking).content)
    used = [(c["usage"]["prompt_tokens"], c["usage"]["completion_tokens"]) for c in reading.read[:-1]]
    assert used == [(4, 0), (4, 2), (4, 2), (4, 2)]


async def test_every_recorded_body_is_answered_over_http(stack: Stack) -> None:
    async with client(stack) as http:
        for recorded in RECORDED:
            asking = asyncio.ensure_future(http.post(CHAT, json=recorded["body"]))
            if recorded["refused"] is None:
                await stack.pipeline.answer(["Hel", "lo"])
            answer = await asking
            if recorded["refused"] is not None:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (400, "unsupported_parameter"), recorded["clients"]
                assert error["param"] == recorded["refused"], recorded["clients"]
            elif recorded["body"].get("stream"):
                reading = Lines()
                reading.feed(answer.content)
                assert (text_of(reading.read), reading.read[-1]) == ("Hello", "[DONE]"), recorded["clients"]
            else:
                assert answer.json()["choices"][0]["message"]["content"] == "Hello", recorded["clients"]
