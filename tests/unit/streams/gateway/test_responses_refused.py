"""Responses that are refused behind the gateway, or given up, in the words and with the fields of their own API."""

import asyncio
from typing import Any

import openai
import pytest

from schemas.endings import EndingCode
from schemas.request import Request
from streams.gateway.http.sse import PIECE_BYTES, pieces
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import client, events_of, sdk
from tests.unit.streams.gateway.test_responses import EVENT, HELLO

REFUSALS = [
    ("max_tokens", "max_tokens is above the limit of 16.", "max_output_tokens", "max_output_tokens is above"),
    ("messages", "The model's chat template refuses the messages: no.", "input", "refuses the input: no."),
    ("structured_outputs", "structured_outputs: no lookaround.", "text.format", "text.format: no lookaround."),
    ("seed", "seed is not supported by this model's engine.", "seed", "seed is not"),
    ("model", "The model 'max_tokens' does not exist.", "model", "The model 'max_tokens'"),
]


async def refuse(stack: Stack, *, begun: bool = False, **fields: Any) -> Request:
    return await stack.pipeline.ends(EndingCode.INVALID_REQUEST, *["a"] * begun, **fields)


@pytest.mark.parametrize(("param", "message", "own", "words"), REFUSALS, ids=[row[0] for row in REFUSALS])
async def test_a_refusal_names_the_field_as_responses_call_it(
    stack: Stack, param: str, message: str, own: str, words: str
) -> None:
    async with sdk(stack) as api, client(stack) as http:
        refusing = asyncio.ensure_future(refuse(stack, param=param, message=message))
        with pytest.raises(openai.BadRequestError) as error:
            await api.responses.create(model="small", input="Hi")
        request = await refusing
        assert error.value.param == own
        assert words in error.value.message
        again = (await http.get(f"/v1/responses/{request.response_id}")).json()
        assert words in again["error"]["message"]

        refusing = asyncio.ensure_future(refuse(stack, begun=True, param=param, message=message))
        streamed = await http.post("/v1/responses", json={**HELLO, "stream": True})
        await refusing
        last = EVENT.validate_json(events_of(streamed.text)[-1][1], strict=True)
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert words in last.response.error.message


@pytest.mark.parametrize(
    ("param", "own"),
    [("structured_outputs", "output_config.format"), ("stop", "stop_sequences"), ("max_tokens", "max_tokens")],
)
async def test_a_refusal_names_the_field_as_messages_call_it(stack: Stack, param: str, own: str) -> None:
    asked = {"model": "small", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    async with client(stack) as http:
        for begun in (False, True):
            refusing = asyncio.ensure_future(refuse(stack, begun=begun, param=param, message=f"{param}: no."))
            refused = await http.post("/v1/messages", json={**asked, "stream": begun})
            request = await refusing
            told = refused.text if begun else refused.json()["error"]["message"]
            assert f"{own}: no." in told
            if not begun:
                assert refused.json()["error"]["param"] == own
            again = (await http.get(f"/v1/messages/{request.response_id}")).json()["error"]
            assert (again["param"], again["message"]) == (own, f"{own}: no.")


async def test_a_field_that_nobody_knows_keeps_the_name_that_its_client_gave_it(stack: Stack) -> None:
    async with client(stack) as http:
        for name in ("max_tokens", "messages"):
            refused = (await http.post("/v1/responses", json={**HELLO, name: 5})).json()["error"]
            assert (refused["code"], refused["param"]) == ("unsupported_parameter", name)
            assert refused["message"].startswith(f"{name} is not supported")


async def test_who_comes_for_what_was_refused_late_is_told_what_it_asked_for(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "laterefusal", admission_timeout_ms=50)
    async with serving(settings, memory_log(settings)) as stack, sdk(stack) as api, client(stack) as http:
        queued = await api.responses.create(
            model="small", input="Hi", background=True, instructions="Be brief.", metadata={"a": "b"}
        )
        assert queued.status == "queued"
        request = await stack.pipeline.next_request()
        echo = request.echo
        stack.pipeline.end(request, 1, EndingCode.OVERLOADED, echo=echo)
        await until(lambda: stack.runtime.hub.has_ended(request.response_id), "it is refused")
        ended = await api.responses.retrieve(queued.id)
        assert (ended.status, ended.background, ended.metadata) == ("failed", True, {"a": "b"})
        assert ended.instructions == "Be brief."
        streamed = await http.get(f"/v1/responses/{queued.id}?stream=true")
        types = [EVENT.validate_json(data).type for _, data in events_of(streamed.text)]
        assert types == ["response.created", "response.queued", "response.in_progress", "response.failed"]


async def test_a_long_answer_ends_alike_for_all_who_watch_it(stack: Stack) -> None:
    words = ["Once upon a time, " * 400] * 40
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/responses", json={**HELLO, "stream": True}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        path = f"/v1/responses/{request.response_id}?stream=true"
        others = [asyncio.ensure_future(http.get(path)) for _ in range(3)]
        await until(lambda: stack.runtime.hub.viewers == 4, "all watch")
        for number, word in enumerate(words, 1):
            stack.pipeline.release(request, number, [word])
        stack.pipeline.end(request, len(words) + 1)
        told = [(await each).text for each in (asking, *others)]
        late = (await http.get(path)).text
    endings = [[data for _, data in events_of(text) if '"delta"' not in data] for text in (*told, late)]
    assert all(ending == endings[0] for ending in endings)
    last = EVENT.validate_json(endings[0][-1], strict=True)
    assert last.type == "response.completed"
    assert last.response.output_text == "".join(words)


def test_what_is_long_is_sent_piece_by_piece() -> None:
    told = (b"a" * 200_000, b"b", b"")
    assert b"".join(pieces(told)) == b"".join(told)
    assert max(map(len, pieces(told))) == PIECE_BYTES


async def test_a_chats_metadata_is_given_back_by_its_id(stack: Stack) -> None:
    metadata = {"topic": "ü", "empty": ""}
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
    async with client(stack) as http:
        for asked, told in (({"metadata": metadata}, metadata), ({}, {})):
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json={**body, **asked}))
            request = await stack.pipeline.next_request()
            stack.pipeline.start(request)
            stack.pipeline.end(request, 1)
            assert (await asking).status_code == 200
            for path in ("chat/completions", "responses"):
                again = (await http.get(f"/v1/{path}/{request.response_id}")).json()
                assert again["metadata"] == told
