"""Anthropic's bodies become neutral requests: nothing is ignored, what is wrong is named as its clients write it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.request import MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, ReplyTo, Request, Sampling, Tool, ToolChoice
from schemas.structure import StructuredOutputs
from streams.dialects.anthropic.body import (
    CountTokensBody,
    MessagesBody,
    MessagesRequest,
    messages_schemas,
    parse_count_tokens,
    parse_messages_request,
)
from streams.dialects.anthropic.parameters import (
    HINTS,
    NOT_OFFERED,
    NOT_OFFERED_IN_OUTPUT_CONFIG,
    NOT_OFFERED_IN_TOOL,
    NOT_OFFERED_IN_TOOL_USE,
)
from streams.dialects.fields import MAX_PARTS, NotOffered
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError

HELLO: Mapping[str, Any] = {
    "model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}],
}  # fmt: skip
WEATHER: Mapping[str, Any] = {
    "name": "weather", "description": "Of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}  # fmt: skip
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Sunny."}
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {"place": {"type": "string"}}}}
CACHED = {"cache_control": {"type": "ephemeral"}}


def said(*messages: tuple[str, Any]) -> dict[str, Any]:
    return {**HELLO, "messages": [{"role": role, "content": content} for role, content in messages]}


def turns_of(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in parse_messages_request(body).messages]


def refusal_of(body: Mapping[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse_messages_request(body)
    return refused.value


def record_of(chat: MessagesRequest) -> Request:
    """As the gateway writes it: whatever was parsed is a valid record."""
    return Request(
        response_id="resp_local-0_ab", scope=Scope(tenant_id="acme"), endpoint=chat.endpoint, model=chat.model,
        messages=chat.messages, sampling=chat.sampling, tools=chat.tools, tool_choice=chat.tool_choice,
        service_tier=chat.service_tier, reply_to=ReplyTo(partition=0), accepted_at_ms=1, deadline_ms=2,
    )  # fmt: skip


def test_the_smallest_body_gets_the_documented_defaults() -> None:
    chat = parse_messages_request(HELLO)
    assert (chat.endpoint, chat.model, chat.service_tier, chat.on_disconnect) == ("messages", "tiny", "auto", "cancel")
    assert (chat.stream, chat.user, chat.tools, chat.tool_choice) == (False, None, [], None)
    assert turns_of(HELLO) == [("user", "Hello")]
    assert chat.sampling == Sampling(max_tokens=64)


def test_every_parameter_that_an_engine_can_honour_arrives() -> None:
    chat = parse_messages_request(
        {
            **HELLO, "temperature": 0, "top_p": 0.5, "top_k": 40, "stop_sequences": ["END", "\n\n"], "stream": True,
            "metadata": {"user_id": "ann"}, "service_tier": "standard_only", "on_disconnect": "continue",
            "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief.", **CACHED}],
        }
    )  # fmt: skip
    assert chat.sampling == Sampling(max_tokens=64, temperature=0, top_p=0.5, top_k=40, stop=["END", "\n\n"])
    assert (chat.stream, chat.user, chat.service_tier, chat.on_disconnect) == (True, "ann", "default", "continue")
    assert [(m.role, m.text) for m in chat.messages] == [("system", "Be brief."), ("user", "Hello")]
    assert chat.messages[0] == parse_messages_request({**HELLO, "system": "Be brief."}).messages[0].model_copy(
        update={"content": chat.messages[0].content}
    )


def test_a_conversation_with_tools_becomes_turns() -> None:
    body = said(
        ("user", "Weather?"),
        ("assistant", [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"}, {"type": "redacted_thinking", "data": "y"},
            {"type": "text", "text": "I look.", "citations": None}, {**USE, **CACHED, "caller": {"type": "direct"}},
            {**USE, "id": "toolu_2", "input": {}},
        ]),
        ("user", [
            {"type": "text", "text": "Go on.", **CACHED}, {**RESULT, "tool_use_id": "toolu_2", "is_error": True},
            {**RESULT, "content": [{"type": "text", "text": "Sun"}, {"type": "text", "text": "ny.", **CACHED}]},
        ]),
        ("system", "Now in French."),
    )  # fmt: skip
    chat = parse_messages_request({**body, "system": "Be brief.", "tools": [WEATHER]})
    assert [(m.role, m.text, m.tool_call_id) for m in chat.messages] == [
        ("system", "Be brief.", None), ("user", "Weather?", None), ("assistant", "I look.", None),
        ("tool", "Error: Sunny.", "toolu_2"), ("tool", "Sunny.", "toolu_1"), ("user", "Go on.", None),
        ("system", "Now in French.", None),
    ]  # fmt: skip
    calls = chat.messages[2].tool_calls
    assert [(call.id, call.name, json.loads(call.arguments)) for call in calls] == [
        ("toolu_1", "weather", {"place": "Paris"}), ("toolu_2", "weather", {}),
    ]  # fmt: skip
    record_of(chat)


def test_a_result_may_be_empty_and_a_turn_of_thoughts_alone_is_none() -> None:
    body = said(
        ("user", "Hi"), ("assistant", [{"type": "thinking", "thinking": "Hm.", "signature": ""}]), ("user", "Well?"),
        ("assistant", [USE]), ("user", [{"type": "tool_result", "tool_use_id": "toolu_1"}]),
    )  # fmt: skip
    assert turns_of(body) == [("user", "Hi"), ("user", "Well?"), ("assistant", ""), ("tool", "")]


def test_what_a_model_wrote_that_was_no_json_comes_back_as_it_wrote_it() -> None:
    use = {**USE, "input": {}, "input_text": '{"place": '}
    chat = parse_messages_request(said(("user", "Hi"), ("assistant", [use]), ("user", [RESULT])))
    assert chat.messages[1].tool_calls[0].arguments == '{"place": '


def test_calls_and_results_may_be_spread_over_messages_of_one_turn() -> None:
    two = {**USE, "id": "toolu_2"}
    results = [RESULT, {**RESULT, "tool_use_id": "toolu_2"}]
    body = said(
        ("user", "Hi"), ("assistant", [USE]), ("system", "Careful."), ("assistant", [two]), ("user", results[:1]),
        ("user", results[1:]),
    )  # fmt: skip
    assert [role for role, _ in turns_of(body)] == ["user", "assistant", "system", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([("user", [RESULT])], "messages.0.content.0.tool_use_id", "unexpected `tool_use_id`"),
        (
            [("user", "Hi"), ("assistant", [USE]), ("user", [RESULT, RESULT])],
            "messages.2.content.1.tool_use_id", "unexpected `tool_use_id`",
        ),
        (
            [("user", "Hi"), ("assistant", [USE]), ("user", "Well?"), ("assistant", "?"), ("user", [RESULT])],
            "messages.1.content.0.id", "without `tool_result` blocks immediately after: toolu_1",
        ),
        (
            [("user", "Hi"), ("assistant", [{"type": "text", "text": "x"}, USE]), ("user", "Well?")],
            "messages.1.content.1.id", "without `tool_result` blocks",
        ),
        (
            [("user", "Hi"), ("assistant", [USE, USE]), ("user", [RESULT])],
            "messages.1.content.1.id", "ids must be unique",
        ),
        ([("user", [USE])], "messages.0.content.0.type", "assistant"),
        ([("user", "Hi"), ("assistant", [RESULT])], "messages.1.content.0.type", "user"),
        ([("system", [USE])], "messages.0.content.0.type", "assistant"),
        (
            [("user", "Hi"), ("assistant", [USE]), ("user", [{**RESULT, "content": [USE]}])],
            "messages.2.content.0.content.0.type", "assistant",
        ),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_calls_and_results_belong_together(messages: list[tuple[str, Any]], param: str, words: str) -> None:
    refused = refusal_of(said(*messages))
    assert (refused.code, refused.param) == (EndingCode.INVALID_REQUEST, param)
    assert refused.message.startswith(f"{param}: ")
    assert words in refused.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([("user", "Hi"), ("assistant", "The answer is (")], "messages.1"),
        ([("assistant", "")], "messages.0"),
        ([("user", "Hi"), ("assistant", [{"type": "thinking", "thinking": "Hm."}]), ("assistant", "")], "messages.1"),
    ],
    ids=str,
)
def test_an_answer_is_not_gone_on_with(messages: list[tuple[str, Any]], param: str) -> None:
    refused = refusal_of(said(*messages))
    assert (refused.code, refused.param) == (EndingCode.UNSUPPORTED_PARAMETER, param)
    assert "does not support assistant message prefill" in refused.message


def test_an_answer_that_is_empty_asks_for_nothing() -> None:
    assert turns_of(said(("user", "Hi"), ("assistant", ""))) == [("user", "Hi")]


def test_tools_and_the_choice_among_them_arrive() -> None:
    tool = {
        **WEATHER, **CACHED, "type": "custom", "strict": True, "defer_loading": False, "allowed_callers": ["direct"],
        "eager_input_streaming": True,
    }  # fmt: skip
    chat = parse_messages_request({**HELLO, "tools": [tool, {"name": "noon", "input_schema": {"type": "object"}}]})
    assert chat.tools == [
        Tool(name="weather", description="Of a place.", parameters=WEATHER["input_schema"], strict=True),
        Tool(name="noon", parameters={"type": "object"}),
    ]
    record_of(chat)
    [long] = record_of(parse_messages_request({**HELLO, "tools": [{**WEATHER, "name": "a" * 128}]})).tools
    assert long.name == "a" * 128


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(parallel=False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice(mode="required")),
        ({"type": "tool", "name": "weather"}, ToolChoice(mode="named", name="weather")),
        ({"type": "none"}, ToolChoice(mode="none")),
    ],
    ids=str,
)
def test_a_choice_is_said_in_our_own_words(choice: object, expected: ToolChoice) -> None:
    assert parse_messages_request({**HELLO, "tools": [WEATHER], "tool_choice": choice}).tool_choice == expected


def test_an_answer_may_be_bound_to_a_schema() -> None:
    for more in ({}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": {"type": "none"}}):
        chat = parse_messages_request({**HELLO, "output_config": {"format": {**FORMAT, "name": None}}, **more})
        assert chat.sampling.structured_outputs == StructuredOutputs.model_validate({"json": FORMAT["schema"]})
        record_of(chat)


def test_a_choice_among_no_tools_asks_for_nothing() -> None:
    for choice in ({"type": "auto"}, {"type": "none"}):
        assert parse_messages_request({**HELLO, "tools": [], "tool_choice": choice}) == parse_messages_request(HELLO)


def _neutral_bodies() -> Iterator[Mapping[str, object]]:
    for name, row in NOT_OFFERED.items():
        yield {name: None}
        yield from ({name: value} for value in row.asks_for_nothing)
    yield from ({name: kind()} for name, kind in HINTS.items())
    yield {"output_config": {}}
    for name, row in NOT_OFFERED_IN_OUTPUT_CONFIG.items():
        yield from ({"output_config": {name: value}} for value in (None, *row.asks_for_nothing))
    yield from ({name: None} for name in ("system", "tools", "tool_choice", "metadata", "temperature", "unheard_of"))
    yield {"metadata": {"user_id": None}}
    yield {"tools": [], "stop_sequences": [], "system": []}
    yield {"messages": [{"role": "user", "content": "Hello", **CACHED}]}
    yield {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello", **CACHED, "citations": []}]}]}


@pytest.mark.parametrize("neutral", list(_neutral_bodies()), ids=str)
def test_what_asks_for_nothing_is_accepted(neutral: Mapping[str, object]) -> None:
    assert parse_messages_request({**HELLO, **neutral}) == parse_messages_request(HELLO)


@pytest.mark.parametrize(
    ("table", "of"),
    [(NOT_OFFERED_IN_TOOL, "tool"), (NOT_OFFERED_IN_TOOL_USE, "use")],
    ids=lambda value: str(value)[:20],
)
def test_what_asks_for_nothing_is_accepted_of_a_tool_and_a_call(table: Mapping[str, NotOffered], of: str) -> None:
    for name, row in table.items():
        for value in (None, *row.asks_for_nothing):
            more = {name: value}
            tool, use = {**WEATHER, **(more if of == "tool" else {})}, {**USE, **(more if of == "use" else {})}
            body = said(("user", "Hi"), ("assistant", [use]), ("user", [RESULT]))
            assert len(parse_messages_request({**body, "tools": [tool]}).messages) == 3


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "thinking"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"), ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{}]}}, "context_management"),
        ({"output_config": {"format": {**FORMAT, "strict": True}}}, "output_config.format.strict"),
        ({"output_format": FORMAT}, "output_format"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"colour": 1}}, "output_config.colour"), ({"speed": "fast"}, "speed"),
        ({"colour": "red"}, "colour"), ({"n": 1}, "n"), ({"metadata": {"job": "1"}}, "metadata.job"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}]}, "tools.1.type"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tools": [{**WEATHER, "colour": 1}]}, "tools.0.colour"),
        ({"tools": [WEATHER], "tool_choice": {"type": "auto", "name": "weather"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "x" * 900}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": "x", "name": "ann"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a": 1}]}]},
         "messages.0.content.0.a"),
        (said(("user", "x"), ("assistant", [{**USE, "toolset_name": "t"}]), ("user", [RESULT])),
         "messages.1.content.0.toolset_name"),
        (said(("user", "x"), ("assistant", [USE]), ("user", [{**RESULT, "content": [IMAGE]}])),
         "messages.2.content.0.content.0.type"),
        ({"system": [IMAGE]}, "system.0.type"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(extra: Mapping[str, Any], param: str) -> None:
    refused = refusal_of({**HELLO, **extra})
    assert (refused.code, refused.param) == (EndingCode.UNSUPPORTED_PARAMETER, param)
    assert param in refused.message
    assert len(refused.message) < 300


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"a": schema}
    return schema


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"model": ""}, "model"), ({"model": 3}, "model"), ({"model": None}, "model"),
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"), ({"temperature": 1.1}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"), ({"stream": "yes"}, "stream"), ({"service_tier": "priority"}, "service_tier"),
        ({"stop_sequences": "END"}, "stop_sequences"), ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"), ({"metadata": {"user_id": 4}}, "metadata.user_id"),
        ({"metadata": "x"}, "metadata"), ({"cache_control": "x"}, "cache_control"), ({"system": 4}, "system"),
        ({"system": ["x"]}, "system.0"), ({"messages": []}, "messages"), ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages.0"), ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x" * 1_000_001}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        (said(("user", "x"), ("assistant", [{**USE, "input": "x"}])), "messages.1.content.0.input"),
        (said(("user", "x"), ("assistant", [{**USE, "name": ""}])), "messages.1.content.0.name"),
        (said(("user", "x"), ("assistant", [{**USE, "id": ""}])), "messages.1.content.0.id"),
        (said(("user", [{**RESULT, "is_error": 1}])), "messages.0.content.0.is_error"),
        (said(("user", [{**RESULT, "content": 4}])), "messages.0.content.0.content"),
        ({"tools": {}}, "tools"), ({"tools": [4]}, "tools.0"), ({"tools": [WEATHER] * 129}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.name"), ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [{**WEATHER, "name": "bad name"}]}, "tools.0.name"),
        ({"tools": [{**WEATHER, "name": "a" * 129}]}, "tools.0.name"),
        ({"tools": [{**WEATHER, "input_schema": nested(100)}]}, "tools.0.input_schema"),
        ({"tools": [{**WEATHER, "input_schema": []}]}, "tools.0.input_schema"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
        ({"output_config": {"format": {**FORMAT, "schema": nested(100)}}}, "output_config.format.schema"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "noon"}}, "tool_choice.name"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_the_path_of_the_field(extra: Mapping[str, Any], param: str) -> None:
    refused = refusal_of({**HELLO, **extra})
    assert (refused.code, refused.param) == (EndingCode.INVALID_REQUEST, param)
    assert refused.message.startswith(param)


def test_max_tokens_must_be_there() -> None:
    refused = refusal_of({name: value for name, value in HELLO.items() if name != "max_tokens"})
    assert refused.message == "max_tokens: Field required."


def test_all_turns_and_blocks_together_are_bounded() -> None:
    text = {"type": "text", "text": "x"}
    full = [{"role": "user", "content": [text] * MAX_PARTS_OF_MESSAGE}] * (MAX_PARTS // MAX_PARTS_OF_MESSAGE)
    record_of(parse_messages_request({**HELLO, "messages": full}))
    assert refusal_of({**HELLO, "messages": [*full, HELLO["messages"][0], {"role": "user", "content": [text]}]}).message
    many = [{"role": "user", "content": "x"}] * MAX_MESSAGES
    record_of(parse_messages_request({**HELLO, "messages": many}))
    assert refusal_of({**HELLO, "messages": many, "system": "x"}).param == "messages"
    calls = [{**USE, "id": f"t{n}"} for n in range(129)]
    results = [{**RESULT, "tool_use_id": f"t{n}"} for n in range(129)]
    body = said(("user", "x"), ("assistant", calls), ("user", results))
    assert refusal_of(body).param == "messages.1.content"
    widest = [{**RESULT, "is_error": True, "content": [text] * (MAX_PARTS_OF_MESSAGE - 1)}]
    record_of(parse_messages_request(said(("user", "x"), ("assistant", [USE]), ("user", widest))))


def test_an_input_as_deep_as_a_body_may_be_is_kept_or_refused() -> None:
    for depth in (10, 200, 900):
        deep = json.dumps(said(("user", "x"), ("assistant", [{**USE, "input": nested(depth)}]), ("user", [RESULT])))
        with suppress(RequestError):
            record_of(parse_messages_request(parse_json_object(deep))).encode()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
_WORD = st.sampled_from(["user", "assistant", "system", "tool", "toolu_1", "weather", ""])
_BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image"]) | _JSON},
    optional={
        "text": st.text(max_size=5) | _JSON, "id": _WORD, "tool_use_id": _WORD, "name": _WORD, "input": _JSON,
        "content": _WORD | _JSON, "is_error": st.booleans(), "cache_control": _JSON,
    },
)  # fmt: skip
_MESSAGE = st.fixed_dictionaries({"role": _WORD | _JSON, "content": _WORD | st.lists(_BLOCK | _JSON, max_size=4)})


@given(
    messages=st.lists(_MESSAGE, max_size=5) | _JSON,
    extra=st.dictionaries(st.sampled_from([*MessagesBody.model_fields, *NOT_OFFERED]), _JSON, max_size=3),
)
def test_whatever_comes_is_a_record_or_refused(messages: object, extra: dict[str, Any]) -> None:
    with suppress(RequestError):
        chat = parse_messages_request({**HELLO, **extra, "messages": messages})
        Request.model_validate_json(record_of(chat).encode())


def test_a_prompt_is_read_alike_where_its_tokens_are_counted() -> None:
    prompt = {"model": "tiny", "messages": HELLO["messages"], "system": "Be brief.", "tools": [WEATHER]}
    counted, asked = parse_count_tokens(prompt), parse_messages_request({**prompt, "max_tokens": 1})
    assert (counted.model, counted.messages, counted.tools) == (asked.model, asked.messages, asked.tools)
    wrong: list[dict[str, Any]] = [{"max_tokens": 1}, {"stream": True}, {"mcp_servers": [{}]}]
    for more in wrong:
        with pytest.raises(RequestError) as refused:
            parse_count_tokens({**prompt, **more})
        assert refused.value.param == next(iter(more))


def test_the_published_schema_has_every_field_and_what_asks_for_nothing() -> None:
    schemas = messages_schemas("#/$defs/{model}")
    assert schemas.keys() == {"MessagesBody", "CountTokensBody"}
    schema = schemas["MessagesBody"]
    assert set(schema["required"]) == {"model", "messages", "max_tokens"}
    assert schema["properties"].keys() == {*MessagesBody.model_fields, *NOT_OFFERED, *HINTS}
    assert schemas["CountTokensBody"]["properties"].keys() == {*CountTokensBody.model_fields, *NOT_OFFERED, *HINTS}
    content = schema["$defs"]["MessageParam"]["properties"]["content"]
    assert {each.get("type") for each in content["anyOf"]} == {"string", "array"}
