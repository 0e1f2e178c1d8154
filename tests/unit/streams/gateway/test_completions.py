"""Legacy completions over HTTP: OpenAI's own package, benchmarks' ways of reading, and any grouping of the text."""

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from schemas.endings import EndingCode
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.port import Answer, Opening
from tests.unit.streams.gateway.gateway_stack import OTHER_KEY, Stack, started, terminal, until
from tests.unit.streams.gateway.http_clients import client, events_of, sdk, text_of
from tests.unit.streams.gateway.hub_stories import ACME
from tests.unit.streams.gateway.sse_readers import Lines, Stripping

ONCE: dict[str, Any] = {"model": "small", "prompt": "Once"}
TOKENS = [" upon", " a", " time"]


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [5, 6], [[5, 6]]], ids=str)
async def test_openais_package_gets_a_whole_answer(stack: Stack, prompt: Any) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS, limits={"requests_remaining": 9}))
        raw = await api.completions.with_raw_response.create(model="small", prompt=prompt, user="ann")
        request = await answering
    completion = raw.parse()
    assert (completion.object, completion.model, completion.id) == ("text_completion", "tiny", request.response_id)
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (" upon a time", "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (4, 3)
    assert raw.headers["x-request-id"] == request.response_id
    assert raw.headers["x-ratelimit-remaining-requests"] == "9"
    Completion.model_validate(json.loads(raw.content), strict=True)
    assert request.prompt == ("Once" if "Once" in prompt else [5, 6])
    assert (request.messages, request.endpoint, request.sampling.max_tokens) == ([], "completions", 16)
    assert len(request.scope.end_user) == 32


async def test_openais_package_streams_an_answer_with_usage(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        stream = await api.completions.create(
            model="small", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        request = await answering
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == " upon a time"
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {
        (request.response_id, "text_completion", "tiny")
    }
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [7]


async def test_an_error_after_the_first_token_is_an_error_event(stack: Stack) -> None:
    async with sdk(stack) as api:
        failing = asyncio.ensure_future(stack.pipeline.ends(EndingCode.GENERATION_INTERRUPTED, " upon"))
        stream = await api.completions.create(model="small", prompt="Once", stream=True)
        seen: list[str] = []
        with pytest.raises(openai.APIError) as error:  # noqa: PT012
            async for chunk in stream:
                seen.append(chunk.choices[0].text)
        await failing
    assert seen == [" upon"]
    assert error.value.code == "generation_interrupted"


@pytest.mark.parametrize("reader", [Stripping, Lines], ids=["vllm bench serve", "guidellm"])
async def test_benchmarks_read_each_chunk_and_the_usage(stack: Stack, reader: type[Stripping | Lines]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**ONCE, "max_tokens": 8, "stream": True, "stream_options": options, "ignore_eos": True}
    reading = reader()
    async with client(stack, accept="*/*") as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            async for piece in answer.aiter_raw():
                reading.feed(piece)
        await answering
    *chunks, done = reading.read
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == " upon a time"
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"]["prompt_tokens"] == 4 for chunk in chunks)


async def test_who_was_cut_off_goes_on_under_the_same_id(stack: Stack) -> None:
    async with client(stack, accept="text/event-stream") as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOKENS))
        events = events_of((await http.post("/v1/completions", json={**ONCE, "stream": True})).text)
        request = await answering
        seen, last = json.loads(events[0][1]), events[-2]
        assert (events[0][0], seen["sequence_number"]) == (str(seen["sequence_number"]), seen["sequence_number"])
        assert last[0] == "4", "the terminal's number stands on the last chunk alone"
        own = f"/v1/completions/{request.response_id}"
        shown, whole = (await http.get(f"/v1/chat{own[3:]}")).json(), (await http.get(own)).json()
        rests = [
            events_of((await http.get(f"{path}?stream=true&starting_after={seen['sequence_number']}")).text)
            for path in (f"/v1/chat{own[3:]}", own)
        ]
    assert (shown["status"], shown["choices"][0]["message"]["content"]) == ("completed", " upon a time")
    assert (whole["status"], whole["object"], whole["choices"][0]["text"]) == (
        "completed", "text_completion", " upon a time",
    )  # fmt: skip
    assert seen["choices"][0]["text"] + text_of(rests[0]) == " upon a time"
    chunks = [json.loads(data) for _, data in rests[1] if data != "[DONE]"]
    rest = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert seen["choices"][0]["text"] + rest == " upon a time"
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"


async def test_a_completion_is_shown_as_it_runs_and_never_to_another_tenant(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/completions", json={**ONCE, "stream": True}))
        request = await stack.pipeline.next_request()
        path = f"/v1/completions/{request.response_id}"
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, [" upon"])
        await until(lambda: stack.has_released(request), "it has begun")
        shown = (await http.get(path)).json()
        other = await http.get(path, headers={"authorization": f"Bearer {OTHER_KEY}"})
        stack.pipeline.end(request, 2)
        await asking
    assert (shown["status"], shown["usage"]) == ("in_progress", None)
    assert shown["choices"] == [{"index": 0, "text": " upon", "logprobs": None, "finish_reason": None}]
    assert other.status_code == 404


PIECES = st.lists(st.text(max_size=4), min_size=1, max_size=30)


@given(pieces=PIECES, cuts=st.sets(st.integers(1, 29)), include_usage=st.booleans(), with_ids=st.booleans())
def test_however_tokens_are_grouped_the_chunks_say_the_whole_text(
    pieces: list[str], cuts: set[int], include_usage: bool, with_ids: bool
) -> None:
    spans, first = [], 0
    for end in sorted({*(cut for cut in cuts if cut < len(pieces)), len(pieces)}):
        group = pieces[first:end]
        ends = [len("".join(group[: i + 1])) for i in range(len(group))]
        spans.append(Span(first + 1, end, 0, "content", "".join(group), ends))
        first = end
    asked = COMPLETIONS.parse({**ONCE, "stream_options": {"include_usage": include_usage}})
    events = COMPLETIONS.events(asked, Opening("resp_x", 1, "tiny", with_ids=with_ids))
    begun = started("resp_x", ACME)
    ending = terminal("resp_x", ACME, len(pieces) + 1)
    reading = Lines()
    reading.feed(events.begin(begun) + b"".join(map(events.span, spans)) + events.terminal(ending))
    *chunks, done = reading.read
    assert done == "[DONE]"
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "".join(pieces)
    numbers = [chunk["sequence_number"] for chunk in chunks]
    assert numbers == sorted(numbers)
    assert [number for number in numbers if number == len(pieces) + 1] == [len(pieces) + 1]
    assert [chunk["usage"] is not None for chunk in chunks if "usage" in chunk] == (
        [False] * (len(chunks) - 1) + [True] if include_usage else []
    )
    whole = COMPLETIONS.whole(asked, Answer("resp_x", 1, "tiny", spans, ending))
    assert whole["choices"][0]["text"] == "".join(pieces)
