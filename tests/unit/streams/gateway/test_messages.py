"""Anthropic's own package against a gateway: messages whole and in events, calls of tools, tokens counted."""

import asyncio
import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Request
from streams.chat_tokenizer import ChatTokenizer
from streams.dialects.anthropic.body import parse_count_tokens
from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    MODEL_PATH,
    Stack,
)
from tests.unit.streams.gateway.messages_clients import HELLO, HI, package


async def test_the_package_streams_an_answer(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    async def answer() -> Request:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.say(request, 1, "reasoning", "Let ", "me see.")
        stack.pipeline.say(request, 3, "content", "Par", "is")
        stack.pipeline.say(request, 5, "content", ".")
        stack.pipeline.end(request, 6)
        return request

    answering = asyncio.ensure_future(answer())
    async with api.messages.stream(**HELLO, system="Be brief.", metadata={"user_id": "ann"}) as stream:
        events = [event async for event in stream]
        message = await stream.get_final_message()
        request = await answering
        assert stream.request_id == request.response_id
    assert [(block.type, getattr(block, block.type)) for block in message.content if block.type != "tool_use"] == [
        ("thinking", "Let me see."), ("text", "Paris."),
    ]  # fmt: skip
    assert (message.id, message.model, message.stop_reason) == (request.response_id, "tiny", "end_turn")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 1, 5)
    assert [event.type for event in events][:2] == ["message_start", "content_block_start"]
    assert events[-1].type == "message_stop"
    assert (request.endpoint, request.on_disconnect, request.sampling.max_tokens) == ("messages", "cancel", 16)
    assert [(m.role, m.text) for m in request.messages] == [("system", "Be brief."), ("user", "Hi")]
    assert request.scope.end_user not in ("", "ann")


async def test_the_package_gets_a_whole_answer(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is", "."]))
    message = await api.messages.create(**HELLO)
    request = await answering
    [block] = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason, message.stop_sequence) == ("Paris.", "end_turn", None)
    assert message.id == request.response_id == message._request_id
    assert message.to_dict()["usage"] == {
        "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1, "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 0},
    }  # fmt: skip


async def test_an_answer_is_part_of_the_next_question(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    answering = asyncio.ensure_future(stack.pipeline.answer(["Yes?"]))
    message = await api.messages.create(**HELLO)
    await answering
    answering = asyncio.ensure_future(stack.pipeline.answer(["Paris."]))
    turns: list[anthropic.types.MessageParam] = [*HI, message.to_param(), {"role": "user", "content": "Capital?"}]
    await api.messages.create(model="small", max_tokens=16, messages=turns)
    request = await answering
    assert [(m.role, m.text) for m in request.messages] == [("user", "Hi"), ("assistant", "Yes?"), ("user", "Capital?")]


WEATHER: anthropic.types.ToolParam = {
    "name": "weather", "description": "Of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}  # fmt: skip


async def call_twice(stack: Stack, second: str) -> Request:
    """Says something, then calls `weather` for Paris and with what is given."""
    request = await stack.pipeline.next_request()
    stack.pipeline.start(request)
    stack.pipeline.say(request, 1, "content", "I look.")
    stack.pipeline.say(request, 2, "tool_name", "wea", "ther")
    stack.pipeline.say(request, 4, "tool_arguments", '{"place": "', 'Paris"}')
    stack.pipeline.say(request, 6, "tool_name", "weather", call=1)
    stack.pipeline.say(request, 7, "tool_arguments", second, call=1)
    stack.pipeline.end(request, 8)
    return request


async def test_tools_are_called_and_their_results_taken(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    calling = asyncio.ensure_future(call_twice(stack, '{"place": "Rome"}'))
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": False}}
    async with api.messages.stream(**HELLO, **asked) as stream:
        message = await stream.get_final_message()
    request = await calling
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("weather", {"place": at}) for at in ("Paris", "Rome")]
    assert (message.stop_reason, message.content[0].type) == ("tool_use", "text")
    assert [tool.name for tool in request.tools] == ["weather"]
    assert request.tool_choice is not None
    assert (request.tool_choice.mode, request.tool_choice.parallel) == ("required", True)

    answering = asyncio.ensure_future(stack.pipeline.answer(["Sunny."]))
    results: list[anthropic.types.ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."} for call in calls
    ]
    turns: list[anthropic.types.MessageParam] = [*HI, message.to_param(), {"role": "user", "content": results}]
    await api.messages.create(model="small", max_tokens=16, messages=turns, tools=[WEATHER])
    request = await answering
    assert [m.role for m in request.messages] == ["user", "assistant", "tool", "tool"]
    assert [call.id for call in request.messages[1].tool_calls] == [m.tool_call_id for m in request.messages[2:]]
    assert [json.loads(call.arguments) for call in request.messages[1].tool_calls] == [call.input for call in calls]


async def test_arguments_that_are_no_json_are_told_and_come_back(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    calling = asyncio.ensure_future(call_twice(stack, '{"place": Rome'))
    message = await api.messages.create(**HELLO, tools=[WEATHER])
    await calling
    wrong = message.content[-1]
    assert wrong.type == "tool_use"
    assert (wrong.input, wrong.to_dict()["input_text"]) == ({}, '{"place": Rome')

    answering = asyncio.ensure_future(stack.pipeline.answer(["Sorry."]))
    results: list[anthropic.types.ToolResultBlockParam] = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "?", "is_error": True}
        for block in message.content
        if block.type == "tool_use"
    ]
    turns: list[anthropic.types.MessageParam] = [*HI, message.to_param(), {"role": "user", "content": results}]
    await api.messages.create(model="small", max_tokens=16, messages=turns, tools=[WEATHER])
    request = await answering
    assert request.messages[1].tool_calls[1].arguments == '{"place": Rome'
    assert [m.text for m in request.messages[2:]] == ["Error: ?", "Error: ?"]


@pytest.mark.parametrize(("api_key", "auth_token"), [(KEY, None), (None, KEY)], ids=["x-api-key", "bearer"])
async def test_both_ways_to_show_a_key_and_betas_are_taken(
    stack: Stack, api_key: str | None, auth_token: str | None
) -> None:
    async with package(stack, api_key=api_key, auth_token=auth_token) as api:
        answering = asyncio.ensure_future(stack.pipeline.answer(["x"]))
        message = await api.beta.messages.create(**HELLO, betas=["context-1m-2025-08-07"])
        await answering
    assert message.usage.output_tokens == 1


async def test_a_halted_answer_is_a_refusal(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    halting = asyncio.ensure_future(stack.pipeline.ends(EndingCode.SAFETY_HALTED, "Once"))
    message = await api.messages.create(**HELLO)
    await halting
    assert (message.stop_reason, message.content[0].type) == ("refusal", "text")
    assert message.stop_details is not None
    assert message.stop_details.explanation == ENDINGS[EndingCode.SAFETY_HALTED].message


async def test_what_is_left_of_the_limits_is_told_with_an_answer(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    async def answer() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, limits={"requests_limit": 10, "requests_remaining": 9})
        stack.pipeline.end(request, 1)

    answering = asyncio.ensure_future(answer())
    told = await api.messages.with_raw_response.create(**HELLO)
    await answering
    assert told.headers["anthropic-ratelimit-requests-remaining"] == "9"


class Place(BaseModel):
    place: str


async def test_the_package_parses_what_is_bound_to_a_model(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    answering = asyncio.ensure_future(stack.pipeline.answer(['{"place": ', '"Paris"}']))
    message = await api.messages.parse(**HELLO, output_format=Place)
    request = await answering
    assert message.parsed_output == Place(place="Paris")
    structure = request.sampling.structured_outputs
    assert structure is not None
    assert structure.json_schema is not None
    assert structure.json_schema["properties"]["place"]["type"] == "string"


async def test_tokens_are_counted_as_a_worker_is_given_them(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    tokenizer = ChatTokenizer(MODEL_PATH)
    answering = asyncio.ensure_future(stack.pipeline.answer(["x"]))
    prompt: dict[str, Any] = {"model": "small", "messages": HI, "system": "Be brief."}
    counted = await api.messages.count_tokens(**prompt)
    await api.messages.create(**prompt, max_tokens=16)
    request = await answering
    assert counted.input_tokens == len(tokenizer.encode_chat(request.messages)) > 0
    more = await api.messages.count_tokens(**prompt, tools=[WEATHER])
    tools = parse_count_tokens({**prompt, "tools": [WEATHER]}).tools
    assert more.input_tokens == len(tokenizer.encode_chat(request.messages, tools=tools)) > counted.input_tokens


async def test_which_stop_sequence_ended_an_answer_is_told(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    """A token that is none of them, and a call, end one otherwise."""
    for stopped_by, reason, sequence in (
        (["END"], "stop_sequence", "END"), ([7], "end_turn", None), ([], "end_turn", None),
    ):  # fmt: skip
        ending = asyncio.ensure_future(stack.pipeline.ends(EndingCode.COMPLETED, "Once", stopped_by=stopped_by))
        whole = await api.messages.create(**HELLO, stop_sequences=["END"])
        await ending
        assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
        ending = asyncio.ensure_future(stack.pipeline.ends(EndingCode.COMPLETED, "Once", stopped_by=stopped_by))
        async with api.messages.stream(**HELLO, stop_sequences=["END"]) as stream:
            streamed = await stream.get_final_message()
        await ending
        assert (streamed.stop_reason, streamed.stop_sequence) == (reason, sequence)


async def test_the_package_lists_models_and_aliases(stack: Stack, api: anthropic.AsyncAnthropic) -> None:
    page = await api.models.list(limit=1)
    listed = [model async for model in page]
    assert [model.id for model in listed] == ["tiny", "small"] == [page.first_id, page.last_id]
    assert await api.models.retrieve("small") == listed[1]
    assert all(set(model.to_dict()) == set(type(model).model_fields) for model in listed)
    assert listed[0].max_input_tokens == 2_048
    with pytest.raises(anthropic.NotFoundError):
        await api.models.retrieve("huge")
