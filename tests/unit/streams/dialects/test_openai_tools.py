"""Tools in Chat Completions: what clients offer, choose, called and answer becomes the neutral request, or is named."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)

from schemas.batch import BatchJob
from schemas.endings import EndingCode
from schemas.request import Tool, ToolCall, ToolChoice
from streams.dialects.batch_line import parse_job
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_generation import GenerationRequest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "default": None}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}}
ADD = {"type": "function", "function": {"name": "add"}}
HELLO = {"role": "user", "content": "Hello"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}


def parsed(*messages: dict[str, Any], **fields: object) -> GenerationRequest:
    return parse_chat_request({"model": "m", "messages": [HELLO, *messages], **fields})


def refused(*messages: dict[str, Any], **fields: object) -> tuple[EndingCode, str | None]:
    with pytest.raises(RequestError) as error:
        parsed(*messages, **fields)
    return error.value.code, error.value.param


def test_tools_arrive_as_they_were_given() -> None:
    strict = {"type": "function", "function": {"name": "x.y-z_1", "parameters": {}, "strict": True}}
    chat = parsed(tools=[WEATHER, ADD, strict])
    assert chat.tools == [
        Tool(name="weather", description="Tells it.", parameters=SCHEMA),
        Tool(name="add"),
        Tool(name="x.y-z_1", parameters={}, strict=True),
    ]
    assert chat.tool_choice == ToolChoice(mode="auto", parallel=True)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": None}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice(mode="none")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, ToolChoice(mode="required", parallel=False)),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, ToolChoice(mode="named", name="add")),
    ],
    ids=str,
)
def test_a_choice_is_one_of_four(given: dict[str, object], choice: ToolChoice) -> None:
    assert parsed(tools=[WEATHER, ADD], **given).tool_choice == choice
    assert parsed(tools=[]).tool_choice is None


def test_what_asks_for_nothing_in_a_tool_or_a_call_is_accepted() -> None:
    function = {"name": "add", "description": None, "parameters": None, "strict": None, "anything": None}
    tool = {"type": "function", "function": function, "cache_control": {"type": "ephemeral"}, "defer_loading": False}
    assert parsed(tools=[tool]) == parsed(tools=[ADD])
    echoed = {**CALL, "index": 0, "provider_specific_fields": {}, "extra_content": None}
    assert parsed({**CALLED, "tool_calls": [echoed]}, RESULT) == parsed(CALLED, RESULT)
    called: dict[str, object] = {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
        "parsed_arguments": {"city": "Rome"},
    }
    read = {**CALL, "function": called}
    assert parsed({**CALLED, "parsed": None, "tool_calls": [read]}, RESULT) == parsed(CALLED, RESULT)
    said = {"role": "assistant", "content": '{"a": 1}'}
    assert parsed({**said, "parsed": {"a": 1}}) == parsed(said)


def test_calls_and_results_are_turns_of_the_neutral_request() -> None:
    more = {"id": "call_2", "function": {"name": "add"}}
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    chat = parsed(
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL, more]},
        {"role": "tool", "tool_call_id": "call_2", "content": parts},
        RESULT,
        {"role": "assistant", "tool_calls": [{**more, "id": "call_3"}]},
        {"role": "tool", "tool_call_id": "call_3", "content": "", "name": "add"},
    )
    told = [(message.role, message.text, message.tool_call_id) for message in chat.messages[1:]]
    assert told == [
        ("assistant", "Let me see.", None), ("tool", "42", "call_2"), ("tool", "Sunny.", "call_1"),
        ("assistant", "", None), ("tool", "", "call_3"),
    ]  # fmt: skip
    assert chat.messages[1].tool_calls == [
        ToolCall(id="call_1", name="weather", arguments='{"city": "Rome"}'),
        ToolCall(id="call_2", name="add", arguments=""),
    ]
    assert chat.messages[4].content == []


@pytest.mark.parametrize("without", [{"content": None}, {"content": ""}, {"content": []}, {}], ids=str)
def test_who_calls_need_not_say_anything(without: dict[str, object]) -> None:
    calling = {"role": "assistant", "tool_calls": [CALL], **without}
    assert parsed(calling, RESULT).messages[1].text == ""


def test_arguments_are_kept_as_the_model_wrote_them() -> None:
    """What is no JSON was some model's mistake: its client tells it so in the result, and goes on."""
    for arguments in ("", "{", '{"a": 1, "a": 2}', "not json", "[1]"):
        call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
        chat = parsed({**CALLED, "tool_calls": [call]}, RESULT)
        assert chat.messages[1].tool_calls[0].arguments == arguments


def test_an_answers_message_may_be_sent_back_as_openais_package_has_it() -> None:
    function = Function(name="weather", arguments='{"city": "Rome"}')
    call = ChatCompletionMessageFunctionToolCall(id="call_1", type="function", function=function)
    message = ChatCompletionMessage(role="assistant", content=None, tool_calls=[call], annotations=[])
    for dumped in (message.model_dump(), message.model_dump(exclude_none=True), json.loads(message.model_dump_json())):
        assert parsed(dumped, RESULT) == parsed(CALLED, RESULT)


def test_a_batch_line_has_tools_too() -> None:
    body = {"model": "m", "messages": [HELLO, CALLED, RESULT], "tools": [WEATHER], "tool_choice": "required"}
    assert parse_job(BatchJob(body=body).encode(), "line-1") == parsed(
        CALLED, RESULT, tools=[WEATHER], tool_choice="required"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [WEATHER, {**ADD, "colour": 1}]}, "tools[1].colour"),
        ({"tools": [{"type": "function", "name": "add", "parameters": {}}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "add", "colour": 1}}]}, "tools[0].function.colour"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [ADD], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice.type"),
        ({"functions": [{"name": "add"}]}, "functions"),
        ({"function_call": {"name": "add"}}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
    ],
    ids=str,
)
def test_what_is_not_offered_of_tools_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    assert refused(**fields) == (EndingCode.UNSUPPORTED_PARAMETER, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools[0].function.name"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "banana", "function": {"name": "add"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [ADD, {"type": "function", "function": {"name": "<|end|>"}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": 4}}]},
         "tools[0].function.description"),
        ({"tools": [WEATHER, ADD, WEATHER]}, "tools[2].function.name"),
        ({"tools": [ADD] * 1_000}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": "x" * 1_000_000}}]}, "tools"),
        ({"tools": [ADD], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {}}, "tool_choice.type"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "add"}}, "tool_choice.function"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
         "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"tools": [ADD], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
    ids=lambda value: str(value)[:80],
)  # fmt: skip
def test_a_wrong_value_of_tools_is_refused_with_its_path(fields: dict[str, object], param: str) -> None:
    assert refused(**fields) == (EndingCode.INVALID_REQUEST, param)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([RESULT], "messages[1].tool_call_id"),
        ([CALLED, {**RESULT, "tool_call_id": "call_2"}], "messages[2].tool_call_id"),
        ([CALLED, {"role": "tool", "content": "x"}], "messages[2].tool_call_id"),
        ([CALLED, {**RESULT, "tool_call_id": ""}], "messages[2].tool_call_id"),
        ([CALLED, {**RESULT, "tool_call_id": "c" * 129}], "messages[2].tool_call_id"),
        ([CALLED, {**RESULT, "content": None}], "messages[2].content"),
        ([CALLED, {**RESULT, "content": {"temperature": 7}}], "messages[2].content"),
        ([CALLED], "messages[1].tool_calls"),
        ([CALLED, HELLO, RESULT], "messages[1].tool_calls"),
        ([{**CALLED, "tool_calls": [CALL, CALL]}, RESULT, RESULT], "messages[1].tool_calls"),
        ([{**CALLED, "tool_calls": "x"}], "messages[1].tool_calls"),
        ([{**CALLED, "tool_calls": ["x"]}], "messages[1].tool_calls[0]"),
        ([{**CALLED, "tool_calls": [{}]}], "messages[1].tool_calls[0].id"),
        ([{**CALLED, "tool_calls": [{**CALL, "type": "custom"}]}], "messages[1].tool_calls[0].type"),
        ([{**CALLED, "tool_calls": [{**CALL, "function": {"name": ""}}]}],
         "messages[1].tool_calls[0].function.name"),
        ([{**CALLED, "tool_calls": [{**CALL, "function": {"name": "a", "arguments": {"city": "Rome"}}}]}],
         "messages[1].tool_calls[0].function.arguments"),
        ([{**CALLED, "tool_calls": [{**CALL, "index": "0"}]}], "messages[1].tool_calls[0].index"),
        ([{**CALLED, "tool_calls": [CALL] * 129}], "messages[1].tool_calls"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[1].content"),
        ([{"role": "assistant"}], "messages[1].content"),
    ],
    ids=lambda value: str(value)[:80],
)  # fmt: skip
def test_turns_that_do_not_fit_are_refused_with_their_path(messages: list[dict[str, Any]], param: str) -> None:
    assert refused(*messages) == (EndingCode.INVALID_REQUEST, param)


@pytest.mark.parametrize("name", ["get weather\n now", "wetter_ü", "x" * 65])
def test_a_name_that_the_model_made_up_can_be_sent_back(name: str) -> None:
    call = {**CALL, "function": {"name": name, "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": "There is no such tool."}
    request = parsed({**CALLED, "tool_calls": [call]}, result)
    assert request.messages[1].tool_calls[0].name == name
