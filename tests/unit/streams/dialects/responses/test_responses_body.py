"""A body of the Responses API becomes a request: nothing is ignored, and the first thing that is wrong is named."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses.response_includable import ResponseIncludable

from schemas.base import MAX_ECHO_CHARS
from schemas.request import MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, MAX_TEXT_CHARS, MAX_TOOL_CALLS, MAX_TOOLS, Sampling
from schemas.structure import StructuredOutputs
from streams.dialects.fields import MAX_PARTS
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.responses.body import ResponsesRequest, parse_responses_request
from streams.dialects.responses.objects import read_echo
from streams.dialects.responses.parameters import HINTS, INCLUDABLE, NOT_OFFERED
from streams.dialects.responses.schema import responses_schema
from tests.unit.streams.dialects.test_bounded_work import MANY, NAMES, steps

HELLO: Mapping[str, Any] = {"model": "tiny", "input": "Hello"}
ADD = {"type": "function", "name": "add", "description": "adds", "parameters": {"type": "object"}, "strict": True}
PART = {"type": "input_text", "text": "Hi"}
PERSON: dict[str, Any] = {
    "type": "json_schema", "name": "person", "strict": True, "description": "Somebody.",
    "schema": {"type": "object", "properties": {"name": {"type": "string"}}},
}  # fmt: skip
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3"}


def parsed(**more: Any) -> ResponsesRequest:
    return parse_responses_request({**HELLO, **more})


def said(*items: object) -> list[tuple[str, str, list[str], str | None]]:
    """Of each message: role, text, ids of its calls, and whose result it is."""
    messages = parsed(input=list(items)).messages
    return [(m.role, m.text, [call.id for call in m.tool_calls], m.tool_call_id) for m in messages]


def refused(**more: Any) -> tuple[str | None, str]:
    with pytest.raises(RequestError) as error:
        parsed(**more)
    return error.value.param, error.value.message


def test_the_smallest_body_gets_the_documented_defaults() -> None:
    asked = parse_responses_request(HELLO)
    assert (asked.endpoint, asked.model, asked.stream, asked.service_tier) == ("responses", "tiny", False, "auto")
    assert [(m.role, m.text) for m in asked.messages] == [("user", "Hello")]
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.max_tokens) == (1.0, 1.0, None)
    assert (asked.background, asked.on_disconnect, asked.tools, asked.tool_choice) == (False, "cancel", [], None)


def test_what_is_honoured_arrives() -> None:
    asked = parsed(
        instructions="Be brief.", max_output_tokens=64, temperature=0, top_p=0.5, stream=True, background=True,
        user="ann", service_tier="priority", tools=[ADD], tool_choice="required", parallel_tool_calls=False,
        metadata={"a": "b"}, store=False, text={"format": {"type": "text"}}, max_tool_calls=3,
        prompt_cache_key="a document",
    )  # fmt: skip
    assert [(m.role, m.text) for m in asked.messages] == [("system", "Be brief."), ("user", "Hello")]
    assert (asked.sampling.max_tokens, asked.sampling.temperature, asked.sampling.top_p) == (64, 0.0, 0.5)
    assert (asked.stream, asked.background, asked.on_disconnect, asked.user) == (True, True, "continue", "ann")
    [tool] = asked.tools
    assert (tool.name, tool.description, tool.parameters, tool.strict) == ("add", "adds", {"type": "object"}, True)
    assert asked.tool_choice is not None
    assert (asked.tool_choice.mode, asked.tool_choice.parallel) == ("required", False)
    assert (asked.store, parse_responses_request(HELLO).store) == (False, True)
    echo = read_echo(asked.echo)
    assert (echo["metadata"], echo["store"], echo["max_tool_calls"]) == ({"a": "b"}, False, 3)
    assert (asked.cache_key, echo["prompt_cache_key"]) == ("a document", "a document")
    assert parsed(safety_identifier="ben").user == "ben"


def test_what_vllm_samples_by_is_honoured_here_too() -> None:
    sampled: dict[str, Any] = {
        "top_k": 5, "min_p": 0.1, "min_tokens": 2, "ignore_eos": True, "seed": 7, "stop": "x", "stop_token_ids": [3],
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.5, "logit_bias": {"4": -1.0},
        "bad_words": ["y"], "allowed_token_ids": [1], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "spaces_between_special_tokens": False, "repetition_detection": {"max_pattern_size": 4, "min_count": 2},
    }  # fmt: skip
    sampling = parsed(**sampled).sampling
    elsewhere = {"max_tokens", "temperature", "top_p", "structured_outputs", "logprobs"}
    assert sampled.keys() | elsewhere == Sampling.model_fields.keys()
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
    assert sampling == parse_chat_request({**chat, **sampled}).sampling
    assert parsed(top_k=-1).sampling.top_k == 0
    assert refused(min_tokens=5, max_output_tokens=4)[0] == "min_tokens"


def test_an_answer_may_be_bound_as_vllm_has_it() -> None:
    bound = parsed(structured_outputs={"regex": "[a-z]+"}).sampling.structured_outputs
    assert bound == StructuredOutputs(regex="[a-z]+")
    for more, param in (
        ({"structured_outputs": {"regex": "a"}, "text": {"format": PERSON}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"text": {"format": PERSON}, "min_tokens": 1}, "min_tokens"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {"$ref": "http://x"}}}, "structured_outputs.json"),
        ({"structured_outputs": 3}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "tools": [ADD]}, "tools"),
    ):
        assert refused(**more)[0] == param


def test_names_of_functions_are_as_long_as_openais() -> None:
    assert parsed(tools=[{**ADD, "name": "a" * 64}]).tools[0].name == "a" * 64
    assert refused(tools=[{**ADD, "name": "a" * 65}])[0] == "tools[0].name"


def test_an_answer_may_be_bound_to_a_format() -> None:
    bound = parsed(text={"format": PERSON})
    assert bound.sampling.structured_outputs == StructuredOutputs.model_validate({"json": PERSON["schema"]})
    assert read_echo(bound.echo)["text"] == {"format": PERSON, "verbosity": "medium"}
    assert parsed(text={"format": {"type": "json_object"}}).sampling.structured_outputs == StructuredOutputs(
        json_object=True
    )
    assert parsed(text={"format": {"type": "text"}}).sampling.structured_outputs is None


def test_an_answer_may_call_tools_and_is_bound_where_it_calls_none() -> None:
    asked = parsed(tools=[ADD], text={"format": {"type": "json_object"}})
    assert asked.tools
    assert asked.sampling.structured_outputs == StructuredOutputs(json_object=True)
    forced = parsed(tools=[ADD], tool_choice="required", text={"format": {"type": "json_object"}})
    assert forced.sampling.structured_outputs is None


def test_one_tool_may_be_named() -> None:
    choice = parsed(tools=[ADD], tool_choice={"type": "function", "name": "add"}).tool_choice
    assert choice is not None
    assert (choice.mode, choice.name) == ("named", "add")
    assert refused(tools=[ADD], tool_choice={"type": "function", "name": "sub"})[0] == "tool_choice.name"
    assert refused(tool_choice="required")[0] == "tool_choice"
    assert parsed(tool_choice="none").tool_choice is None


def test_items_become_turns() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    answer = {
        "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
    }  # fmt: skip
    assert said(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [PART, PART]},
        thought,
        answer,
        {**CALL, "id": "fc_1", "status": "completed"},
        {**CALL, "call_id": "c2"},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [PART]},
        {"role": "assistant", "content": "Three."},
        {"type": "message", "role": "user", "content": "And now?"},
    ) == [
        ("system", "Be brief.", [], None),
        ("user", "HiHi", [], None),
        ("assistant", "Let me see.", ["c1", "c2"], None),
        ("tool", "3", [], "c1"),
        ("tool", "Hi", [], "c2"),
        ("assistant", "Three.", [], None),
        ("user", "And now?", [], None),
    ]


def test_what_an_answer_says_behind_its_calls_is_of_the_same_turn() -> None:
    assert said(CALL, {"role": "assistant", "content": "Wait."}, RESULT) == [
        ("assistant", "Wait.", ["c1"], None), ("tool", "3", [], "c1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "param", "words"),
    [
        ([{"role": "poet", "content": "x"}], "input[0].role", ""),
        ([{"role": "user", "content": 3}], "input[0].content", "a string or a list of text parts"),
        ([{"role": "user", "content": [PART, {"type": "input_image"}]}], "input[0].content[1].type", "are text"),
        ([{"role": "user", "content": [{**PART, "colour": 1}]}], "input[0].content[0].colour", "not supported"),
        ([{"role": "user", "content": []}], "input[0].content", ""),
        ([{"role": "user", "content": "x", "weight": 1}], "input[0].weight", "not supported"),
        (["x"], "input[0]", "an object"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].type", "sent whole"),
        ([{"type": "web_search_call"}], "input[0].type", "not supported"),
        ([{"type": ["message"]}], "input[0].type", "not supported"),
        ([{**CALL, "name": ""}, RESULT], "input[0].name", ""),
        ([RESULT], "input[0].call_id", "No call"),
        ([{"role": "user", "content": "x"}, CALL], "input[1].call_id", "no result"),
        ([{"role": "assistant", "content": "x"}, CALL], "input[1].call_id", "no result"),
        ([{**CALL, "call_id": f"c{i}"} for i in range(MAX_TOOL_CALLS + 1)], f"input[{MAX_TOOL_CALLS}]", "at most"),
        ([{"type": "reasoning"}], "input", "nothing to answer"),
        ([], "input", "nothing to answer"),
        ([{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1), "input", "at most"),
        ([{"role": "user", "content": [PART] * MAX_PARTS_OF_MESSAGE}] * 17, "input", f"at most {MAX_PARTS}"),
        (7, "input", "a string or a list of items"),
        ("x" * (MAX_TEXT_CHARS + 1), "input", "at most"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_the_first_item_that_is_wrong_is_named(items: object, param: str, words: str) -> None:
    named, message = refused(input=items)
    assert named == param
    assert words in message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"priority": 3}, "priority"),
        ({"enable_response_messages": True}, "enable_response_messages"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "text", "grammar": "x"}}}, "text.format.grammar"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [ADD, {"type": "custom", "name": "x"}]}, "tools[1].type"),
        ({"tools": [ADD], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"messages": []}, "messages"),
    ],
    ids=str,
)
def test_what_is_not_offered_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    named, message = refused(**more)
    assert named == param
    assert message.startswith(f"{param} is not supported")


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": ""}, "model"),
        ({"previous_response_id": ""}, "previous_response_id"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"store": "yes"}, "store"),
        ({"input": None}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "warm"}, "temperature"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [ADD, ADD]}, "tools[1].name"),
        ({"tools": ["add"]}, "tools[0]"),
        ({"tools": [ADD] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": 3}, "tools"),
        ({"tools": [ADD], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {f"k{i}": "" for i in range(17)}}, "metadata"),
        ({"prompt_cache_key": 1}, "prompt_cache_key"),
        ({"text": {"format": {"type": "json_schema", "name": "p"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
        ({"text": {"format": {**PERSON, "schema": {"$ref": "http://x"}}}}, "text.format.schema"),
        ({"text": {"format": 3}}, "text.format"),
        ({"text": "json"}, "text"),
        ({"instructions": "x", "input": [{"role": "user", "content": "x"}] * MAX_MESSAGES}, "input"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(more: dict[str, Any], param: str) -> None:
    assert refused(**more)[0] == param


def _neutral_bodies() -> Iterator[dict[str, Any]]:
    for name, row in NOT_OFFERED.items():
        yield {name: None}
        yield from ({name: value} for value in row.asks_for_nothing)
    yield from ({name: kind()} for name, kind in HINTS.items())
    yield {"include": []}
    yield {"include": sorted(INCLUDABLE)}
    yield {"reasoning": {}}
    yield {"reasoning": {"effort": "none", "summary": None}}
    yield {"text": {"verbosity": "medium"}}
    yield {"text": {"format": None}}
    yield {"stream_options": {"include_obfuscation": False}}
    yield {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    yield {"unheard_of": None}


@pytest.mark.parametrize("neutral", list(_neutral_bodies()), ids=str)
def test_what_asks_for_nothing_is_accepted(neutral: dict[str, Any]) -> None:
    assert parsed(**neutral) == parsed()


def test_what_parse_has_made_of_an_answer_goes_back_with_it() -> None:
    said = {"type": "output_text", "text": '{"a": 1}'}
    call = {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a": 1}'}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}

    def asked(*items: dict[str, Any]) -> Any:
        return parse_responses_request({**HELLO, "input": list(items)})

    plain = asked({"role": "assistant", "content": [said]}, call, result)
    read = {**said, "parsed": {"a": 1}}
    assert asked({"role": "assistant", "content": [read]}, {**call, "parsed_arguments": {"a": 1}}, result) == plain


def test_all_that_openai_can_include_is_known() -> None:
    assert set(get_args(ResponseIncludable)) - INCLUDABLE == {"message.output_text.logprobs"}


def test_an_echo_that_is_too_long_goes_without_the_longest_first() -> None:
    long, longer = "ü" * (MAX_ECHO_CHARS // 2), "é" * (MAX_ECHO_CHARS * 2 // 3)
    assert read_echo(parsed(instructions=longer, tools=[ADD], prompt_cache_key="k").echo)["prompt_cache_key"] == "k"
    bare = {**ADD, "description": None, "parameters": None}
    told = {**ADD, "description": long}
    form = {"format": {**PERSON, "description": longer}}
    for more, instructions, tools, text in (
        ({"instructions": long, "tools": [ADD]}, long, [ADD], "text"),
        ({"instructions": longer, "tools": [told]}, None, [told], "text"),
        ({"instructions": long, "tools": [{**ADD, "description": longer}]}, long, [bare], "text"),
        ({"instructions": "x", "text": form, "tools": [told]}, "x", [told], None),
        ({"instructions": longer, "tools": [{**ADD, "description": longer}], "text": form}, longer, [bare], None),
    ):
        metadata = {"a": "b" * 512}
        echo = read_echo(parsed(**{**more, "metadata": metadata}).echo)
        assert (echo["instructions"], echo["tools"], echo["metadata"]) == (instructions, tools, metadata)
        assert (echo["text"] is None) == (text is None)
        assert {"temperature", "store"} <= echo.keys()


def test_metadata_and_the_names_of_tools_are_always_repeated() -> None:
    tools = [{**ADD, "name": f"{i:064}", "description": "d" * 1_000} for i in range(MAX_TOOLS)]
    metadata = {f"{i:064}": "ü" * 512 for i in range(16)}
    asked = parsed(
        tools=tools, metadata=metadata, instructions="x" * MAX_ECHO_CHARS, max_tool_calls=2**31, background=True,
        max_output_tokens=131_072, tool_choice={"type": "function", "name": tools[0]["name"]},
        prompt_cache_key="ü" * 512,
    )  # fmt: skip
    assert len(asked.echo) <= MAX_ECHO_CHARS
    echo = read_echo(asked.echo)
    assert [tool["name"] for tool in echo["tools"]] == [tool["name"] for tool in tools]
    assert echo["metadata"] == metadata
    assert refused(metadata={f"{i}": "\n" * 512 for i in range(16)})[0] == "metadata"


def test_nothing_of_the_user_stands_in_the_echo() -> None:
    assert "ann@example.com" not in parsed(user="ann@example.com", safety_identifier="ann@example.com").echo


BODIES: dict[str, dict[str, Any]] = {
    "empty items": {"input": [{}] * MANY},
    "items that are none": {"input": ["x"] * MANY},
    "as many empty items as there may be": {"input": [{}] * MAX_MESSAGES},
    "items of unknown kinds": {"input": [{"type": f"k{i}"} for i in range(MAX_MESSAGES)]},
    "empty parts": {"input": [{"role": "user", "content": [{}] * MANY}]},
    "too many parts": {"input": [{"role": "user", "content": [PART] * MANY}]},
    "items of unknown names": {"input": [{"role": "user", "content": "", **NAMES}] * MAX_MESSAGES},
    "reasoning": {"input": [{"type": "reasoning", "content": [{}] * MANY}]},
    "results without calls": {"input": [RESULT] * MANY},
    "tools": {"tools": [{}] * MANY},
    "as many wrong tools as there may be": {"tools": [{}] * MAX_TOOLS},
    "unknown names": NAMES,
    "metadata": {"metadata": NAMES},
    "include": {"include": ["x"] * MANY},
    "wrong include": {"include": [0] * MANY},
    "format": {"text": {"format": NAMES}},
    "reasoning settings": {"reasoning": NAMES},
    "choice": {"tools": [ADD], "tool_choice": NAMES},
}


@pytest.mark.parametrize("given_body", BODIES.values(), ids=BODIES)
def test_of_many_elements_few_are_looked_at(given_body: dict[str, Any]) -> None:
    assert steps(lambda: parse_responses_request({**HELLO, **given_body})) < 2_500


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | _JSON,
        "role": st.sampled_from(["user", "assistant", "system", "developer"]) | _JSON,
        "content": st.just("x") | st.lists(st.just(PART), max_size=2) | _JSON,
        "call_id": st.sampled_from(["a", "b"]) | _JSON,
        "name": st.just("add") | _JSON,
        "arguments": st.just("{}") | _JSON,
        "output": st.just("3") | _JSON,
    },
)


@given(body=st.dictionaries(st.sampled_from(sorted(responses_schema("{model}")["properties"])), _JSON, max_size=4),
       items=st.lists(_ITEM, max_size=5) | _JSON)  # fmt: skip
def test_whatever_comes_is_a_request_or_refused_by_name(body: dict[str, Any], items: Any) -> None:
    try:
        asked = parse_responses_request({**body, "model": "m", "input": items})
    except RequestError as error:
        named = error.param or ""
    else:
        assert asked.messages
        assert len(asked.echo) <= MAX_ECHO_CHARS
        return
    assert 0 < len(named) <= 200
