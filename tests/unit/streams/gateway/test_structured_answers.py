"""Answers that are bound to a structure, as OpenAI's package asks for them and reads them."""

import asyncio

import openai
import pydantic
import pytest

from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, sdk


class Weather(pydantic.BaseModel):
    city: str
    degrees: int
    tags: list[str] = []


TOLD = ['{"city": "Bern"', ', "degrees": 21', ', "tags": []}']


async def test_a_class_is_asked_for_and_read_back(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOLD))
        answer = await api.chat.completions.parse(model="small", messages=HELLO["messages"], response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Bern", degrees=21)
    bound_to = (await answering).sampling.structured_outputs
    assert bound_to is not None
    assert bound_to.json_schema is not None
    assert bound_to.json_schema["required"] == ["city", "degrees", "tags"]


async def test_a_class_is_read_from_a_stream(stack: Stack) -> None:
    async with sdk(stack) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(TOLD))
        async with api.chat.completions.stream(
            model="small", messages=HELLO["messages"], response_format=Weather
        ) as stream:
            deltas = [event.delta async for event in stream if event.type == "content.delta"]
            answer = await stream.get_final_completion()
    await answering
    assert "".join(deltas) == "".join(TOLD)
    assert answer.choices[0].message.parsed == Weather(city="Bern", degrees=21)


async def test_a_schema_that_is_too_large_never_enters(stack: Stack) -> None:
    deep: object = {}
    for _ in range(400):
        deep = {"items": deep}
    format_of = {"type": "json_schema", "json_schema": {"name": "deep", "schema": deep}}
    async with client(stack) as http:
        answer = await http.post("/v1/chat/completions", json={**HELLO, "response_format": format_of})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema"
    async with sdk(stack) as api:
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(
                model="small", messages=HELLO["messages"], extra_body={"guided_choice": ["x"] * 1_001}
            )
    assert refused.value.param == "guided_choice"
    assert not stack.pipeline.requests()
