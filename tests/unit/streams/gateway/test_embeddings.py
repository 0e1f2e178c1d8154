"""Embeddings over HTTP: OpenAI's own package, and vectors by their id."""

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from openai.types import CreateEmbeddingResponse

from schemas.endings import EndingCode
from schemas.request import Request
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.embeddings import vectors_of
from tests.unit.streams.gateway.gateway_stack import OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import client, sdk

VECTORS = [[1.0, 0.0, -0.5], [0.1, 0.2, 0.3], [0.0, 0.0, 1.0]]
TEXTS = [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in VECTORS]
AS_FLOAT32 = [list(struct.unpack("<3f", struct.pack("<3f", *vector))) for vector in VECTORS]


async def embedded(stack: Stack, texts: Sequence[str] = TEXTS, **started: Any) -> Request:
    """Answers the next request, in two releases."""
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request, **started)
    for first, part in ((1, texts[:2]), (3, texts[2:])):
        stack.pipeline.say(request, first, "embedding", *part)
    stack.pipeline.end(request, len(texts) + 1)
    return request


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}], ids=str)
async def test_openais_package_gets_a_vector_for_each_input(stack: Stack, encoding: dict[str, Any]) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(embedded(stack, limits={"tokens_remaining": 9}))
        raw = await api.embeddings.with_raw_response.create(
            model="small", input=["a", "b", "c"], dimensions=3, user="ann", **encoding
        )
        request = await answering
    answer = raw.parse()
    assert isinstance(answer, CreateEmbeddingResponse)
    assert (answer.object, answer.model) == ("list", "tiny")
    assert [(item.object, item.index) for item in answer.data] == [("embedding", 0), ("embedding", 1), ("embedding", 2)]
    told: list[Any] = [item.embedding for item in answer.data]
    assert told == (TEXTS if encoding.get("encoding_format") == "base64" else AS_FLOAT32)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4)
    assert raw.headers["x-request-id"] == request.response_id
    assert raw.headers["x-ratelimit-remaining-tokens"] == "9"
    assert (request.endpoint, request.inputs, request.dimensions) == ("embeddings", ["a", "b", "c"], 3)
    assert (request.messages, request.prompt, request.on_disconnect) == ([], None, "cancel")
    assert len(request.scope.end_user) == 32


@pytest.mark.parametrize("code", [EndingCode.SAFETY_HALTED, EndingCode.GENERATION_INTERRUPTED])
async def test_a_part_of_the_vectors_is_no_answer(stack: Stack, code: EndingCode) -> None:
    async with sdk(stack) as api:
        failing = asyncio.ensure_future(stack.pipeline.ends(code, *TEXTS[:2], kind="embedding"))
        with pytest.raises(openai.InternalServerError) as error:
            await api.embeddings.create(model="small", input=["a", "b", "c"])
        await failing
    assert error.value.code == code.value


async def test_vectors_are_had_again_by_their_id_by_their_tenant_alone(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(embedded(stack))
        told = (await http.post("/v1/embeddings", json={"model": "small", "input": ["a", "b", "c"]})).json()
        path = f"/v1/embeddings/{(await answering).response_id}"
        again = (await http.get(path)).json()
        as_base64 = (await http.get(f"{path}?encoding_format=base64")).json()
        assert (await http.get(f"{path}?encoding_format=int8")).status_code == 400
        other = await http.get(path, headers={"authorization": f"Bearer {OTHER_KEY}"})
    assert [item["embedding"] for item in told["data"]] == AS_FLOAT32
    assert {name: again[name] for name in told} == told
    assert (again["status"], again["error"]) == ("completed", None)
    assert [item["embedding"] for item in as_base64["data"]] == TEXTS
    assert other.status_code == 404


async def test_vectors_that_are_not_all_there_are_not_told(stack: Stack) -> None:
    async with client(stack) as http:
        asking = asyncio.ensure_future(http.post("/v1/embeddings", json={"model": "small", "input": ["a", "b", "c"]}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "embedding", *TEXTS[:2])
        path = f"/v1/embeddings/{request.response_id}"
        await until(lambda: stack.has_released(request), "it has begun")
        running = (await http.get(path)).json()
        stack.pipeline.end(request, 3, EndingCode.ENGINE_FAILED)
        assert (await asking).status_code == 502
        failed = (await http.get(path)).json()
    assert (running["status"], running["data"], running["usage"]) == ("in_progress", [], None)
    assert (failed["status"], failed["data"], failed["error"]["code"]) == ("failed", [], "engine_failed")


@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages"])
async def test_formats_of_texts_tell_how_it_stands_and_no_vector(stack: Stack, path: str) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(embedded(stack))
        await http.post("/v1/embeddings", json={"model": "small", "input": ["a", "b", "c"]})
        response_id = (await answering).response_id
        state = await http.get(f"/v1/{path}/{response_id}")
        stream = await http.get(f"/v1/{path}/{response_id}?stream=true")
    assert (state.status_code, stream.status_code) == (200, 200)
    assert state.json()["status"] == "completed"
    assert not any(text in answer.text for text in TEXTS for answer in (state, stream))


async def test_a_chat_is_no_embedding(stack: Stack) -> None:
    async with client(stack) as http:
        answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
        chat = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
        await http.post("/v1/chat/completions", json=chat)
        answer = await http.get(f"/v1/embeddings/{(await answering).response_id}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_id")


def test_vectors_are_told_apart_however_they_were_grouped() -> None:
    spans = [Span(1, 2, 0, "embedding", "aabbb", [2, 5]), Span(3, 3, 0, "embedding", "c", [1])]
    assert list(vectors_of(spans)) == ["aa", "bbb", "c"]
