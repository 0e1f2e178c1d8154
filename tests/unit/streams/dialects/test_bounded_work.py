"""A body costs a bounded number of steps, however many elements it has. Steps are counted: no clock says how many."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.request import MAX_LOGIT_BIASES, MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, MAX_TOOL_CALLS, MAX_TOOLS
from streams.dialects import fields
from streams.dialects.anthropic.body import parse_messages_request
from streams.dialects.fields import MAX_PARTS, Location
from streams.dialects.json_body import LARGE_CHARS, LARGE_VALUES, MAX_VALUES, is_large, parse_json_object
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_text_completion import parse_completion_request
from streams.dialects.vllm_tokens import parse_detokenise, parse_tokenise

MANY = 20_000
HELLO: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
PART = {"type": "text", "text": ""}
SAID = {"role": "user", "content": ""}
NAMES = dict.fromkeys((f"n{number}" for number in range(MANY)), 0)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def tool(parameters: object, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


def steps(work: Callable[[], object]) -> int:
    """Calls of functions, whether Python's or C's, until `work` has ended or refused."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with suppress(RequestError):
            work()
    finally:
        sys.setprofile(None)
    return calls


BODIES: dict[str, dict[str, Any]] = {
    "empty messages": {"messages": [{}] * MANY},
    "messages that are none": {"messages": ["x"] * MANY},
    "too many messages": {"messages": [SAID] * MANY},
    "as many empty messages as there may be": {"messages": [{}] * MAX_MESSAGES},
    "wrong messages behind a right one": {"messages": [SAID, *[{"role": "poet", "content": ""}] * 2_000]},
    "empty parts": {"messages": [{"role": "user", "content": [{}] * MANY}]},
    "too many parts": {"messages": [{"role": "user", "content": [PART] * MANY}]},
    "messages of parts that are none": {"messages": [{"role": "user", "content": ["x"] * MANY}] * MAX_MESSAGES},
    "messages of unknown names": {"messages": [{**SAID, **NAMES}] * MAX_MESSAGES},
    "parts of unknown names": {"messages": [{"role": "user", "content": [{**PART, **NAMES}]}] * MAX_MESSAGES},
    "hints in a message": {"messages": [{**SAID, "reasoning_details": [{}] * MANY}]},
    "unknown names": NAMES,
    "unknown stream_options": {"stream_options": NAMES},
    "unknown names in an object": {"repetition_detection": NAMES},
    "metadata": {"metadata": NAMES},
    "wrong stops": {"stop": [0] * MANY},
    "too many stops": {"stop": ["x"] * MANY},
    "wrong stop_token_ids": {"stop_token_ids": ["x"] * MANY},
    "wrong bad_words": {"bad_words": [0] * MANY},
    "wrong allowed_token_ids": {"allowed_token_ids": ["x"] * MANY},
    "negative allowed_token_ids": {"allowed_token_ids": [-1] * MANY},
    "too many biases": {"logit_bias": {str(number): 0 for number in range(MANY)}},
    "biases of no token": {"logit_bias": NAMES},
    "tools": {"tools": [{}] * MANY},
    "empty tools": {"tools": [{}] * MAX_TOOLS},
    "tools of unknown names": {"tools": [{**tool({}), **NAMES}] * MAX_TOOLS},
    "functions of unknown names": {"tools": [{"type": "function", "function": NAMES}] * MAX_TOOLS},
    "a schema of many values": {"tools": [tool({"enum": [[]] * MANY})]},
    "a schema of many names": {"tools": [tool(NAMES)]},
    "a deep schema": {"tools": [tool(nested(900))]},
    "a long schema": {"tools": [tool({"title": "x" * 1_000_000})]},
    "schemas of many values together": {"tools": [tool({}), tool({"enum": [0] * MANY}, "g")]},
    "a choice of unknown names": {"tool_choice": NAMES},
    "a choice of many": {"tool_choice": [{}] * MANY},
    "too many calls": {"messages": [{**CALLED, "tool_calls": [CALL] * MANY}]},
    "messages of calls that are none": {"messages": [{**CALLED, "tool_calls": ["x"] * 9}] * MAX_MESSAGES},
    "calls of unknown names": {"messages": [{**CALLED, "tool_calls": [{**CALL, **NAMES}] * 9}] * MAX_MESSAGES},
    "results without a call": {"messages": [{"role": "tool", "tool_call_id": 4}] * MAX_MESSAGES},
    "response_format": {"response_format": NAMES},
    "modalities": {"modalities": ["text"] * MANY},
}


@pytest.mark.parametrize("given", BODIES.values(), ids=BODIES)
def test_of_many_elements_few_are_looked_at(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_listed(monkeypatch)
    for parse in (parse_chat_request, parse_tokenise):
        assert steps(lambda parse=parse: parse({**HELLO, **given})) < 2_500  # type: ignore[misc]
    assert all(listed <= 64 for listed in errors)


RESULT: dict[str, Any] = {"type": "tool_result", "tool_use_id": "t"}
OF_ANTHROPIC: dict[str, dict[str, Any]] = {
    "empty messages": {"messages": [{}] * MANY},
    "messages that are none": {"messages": ["x"] * MANY},
    "as many empty messages as there may be": {"messages": [{}] * MAX_MESSAGES},
    "wrong messages behind a right one": {"messages": [SAID, *[{"role": "poet", "content": ""}] * 2_000]},
    "empty blocks": {"messages": [{"role": "user", "content": [{}] * MANY}]},
    "too many blocks": {"messages": [{"role": "user", "content": [PART] * MANY}]},
    "messages of blocks that are none": {"messages": [{"role": "user", "content": ["x"] * MANY}] * MAX_MESSAGES},
    "messages of unknown names": {"messages": [{**SAID, **NAMES}] * MAX_MESSAGES},
    "blocks of unknown names": {"messages": [{"role": "user", "content": [{**PART, **NAMES}]}] * MAX_MESSAGES},
    "results of too many blocks": {"messages": [{"role": "user", "content": [{**RESULT, "content": [PART] * MANY}]}]},
    "results of no call": {"messages": [{"role": "user", "content": [RESULT] * 200}]},
    "a system prompt of empty blocks": {"system": [{}] * MANY},
    "tools": {"tools": [{}] * MANY},
    "tools of unknown names": {"tools": [{"name": "t", "input_schema": {}, **NAMES}] * 100},
    "wrong stop_sequences": {"stop_sequences": [0] * MANY},
    "too many stop_sequences": {"stop_sequences": ["x"] * MANY},
    "unknown names": NAMES,
    "metadata": {"metadata": NAMES},
    "tool_choice": {"tool_choice": NAMES},
    "output_config": {"output_config": NAMES},
    "a format of unknown names": {"output_config": {"format": {"schema": {}, **NAMES}}},
}


@pytest.mark.parametrize("given", OF_ANTHROPIC.values(), ids=OF_ANTHROPIC)
def test_of_many_elements_in_anthropics_body_few_are_looked_at(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = errors_listed(monkeypatch)
    assert steps(lambda: parse_messages_request({**HELLO, "max_tokens": 1, **given})) < 5_000
    assert all(listed <= 64 for listed in errors)


def test_results_in_results_are_bounded_all_together() -> None:
    wide = {"role": "user", "content": [{**RESULT, "content": [PART] * 200}] * 200}
    assert steps(lambda: parse_messages_request({**HELLO, "max_tokens": 1, "messages": [wide] * 50})) < 30 * MAX_PARTS


def errors_listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many errors validation made out, to name the first one."""
    listed = []
    explain = fields._explain

    def note(error: ValidationError, path: str, write: Callable[[str, Location], str]) -> RequestError:
        listed.append(error.error_count())
        return explain(error, path, write)

    monkeypatch.setattr(fields, "_explain", note)
    return listed


def test_of_wrong_tokens_the_first_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_listed(monkeypatch)
    assert steps(lambda: parse_detokenise({"model": "m", "tokens": ["x"] * MANY})) < 100
    assert errors == [1]


def test_of_wrong_prompts_the_first_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_listed(monkeypatch)
    for prompt in (["x"] * MANY, [["x"] * MANY], [[0]] * MANY, [0, *["x"] * MANY], [[[0]] * MANY]):
        assert steps(lambda prompt=prompt: parse_completion_request({"model": "m", "prompt": prompt})) < 200  # type: ignore[misc]
    assert errors == [1, 1, 1]


def test_what_is_wrong_with_a_bias_is_looked_for_in_as_many_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = errors_listed(monkeypatch)
    for key, bias in (("x", 0), ("", "x")):
        given = {f"{key}{number}": bias for number in range(MAX_LOGIT_BIASES)}
        assert steps(lambda given=given: parse_chat_request({**HELLO, "logit_bias": given})) < 10_000  # type: ignore[misc]
    assert max(errors) <= MAX_LOGIT_BIASES


def test_all_messages_together_have_a_bounded_number_of_parts() -> None:
    fitting = [{"role": "user", "content": [PART] * MAX_PARTS_OF_MESSAGE}] * (MAX_PARTS // MAX_PARTS_OF_MESSAGE)
    assert len(parse_chat_request({**HELLO, "messages": fitting}).messages) == 16
    with pytest.raises(RequestError, match=f"^messages: All of them together should have at most {MAX_PARTS} parts"):
        parse_chat_request({**HELLO, "messages": [*fitting, SAID]})
    more = {**HELLO, "messages": fitting * (MAX_MESSAGES // 16)}
    assert steps(lambda: parse_chat_request(more)) < 20 * MAX_PARTS


def test_calls_count_among_the_parts_of_all_messages() -> None:
    called = {**CALLED, "tool_calls": [{**CALL, "id": f"c{number}"} for number in range(MAX_TOOL_CALLS)]}
    many = {**HELLO, "messages": [called] * MAX_MESSAGES}
    with pytest.raises(RequestError, match=f"^messages: All of them together should have at most {MAX_PARTS} parts"):
        parse_chat_request(many)
    assert steps(lambda: parse_chat_request(many)) < 100 * MAX_PARTS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{}, SAID, {"role": "tool"}], "messages[0].role: Field required."),
        ([SAID, "x", {"role": "tool"}], "messages[1]: Input should be a valid dictionary or instance of ChatMessage."),
        ([SAID, {**SAID, "weight": 1}, {}], "messages[1].weight is not supported."),
        ([SAID, {"role": "user", "content": [PART, {"type": "text"}]}], "messages[1].content[1].text: Field required."),
        ([SAID] * (MAX_MESSAGES + 1), f"messages: List should have at most {MAX_MESSAGES} items."),
        (
            [SAID, {"role": "user", "content": [PART] * (MAX_PARTS_OF_MESSAGE + 1)}],
            f"messages[1].content: List should have at most {MAX_PARTS_OF_MESSAGE} items.",
        ),
        (
            [SAID, {"role": "user", "content": [{**PART, "a": 1, "b": 2}]}],
            "messages[1].content[0].a is not supported.",
        ),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_of_messages_the_first_that_is_wrong_is_named(given: list[object], message: str) -> None:
    for parse in (parse_chat_request, parse_tokenise):
        with pytest.raises(RequestError) as refused:
            parse({"model": "m", "messages": given})
        assert refused.value.message == message


def test_of_names_that_nobody_knows_one_is_named() -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**NAMES, **HELLO})
    assert (refused.value.param, refused.value.message) == ("n0", "n0 is not supported.")


@pytest.mark.parametrize(
    ("raw", "large"),
    [
        (b'{"a": "' + b"x" * (LARGE_CHARS - 20) + b'"}', False),
        (b'{"a": "' + b"x" * LARGE_CHARS + b'"}', True),
        (b'{"a": [' + b"0," * (LARGE_VALUES - 2) + b"0]}", False),
        (b'{"a": [' + b"0," * LARGE_VALUES + b"0]}", True),
        (b"[" * 1_000, True),
        (b'{"a":' * 1_000, True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_many_values_are_as_large_as_much_text(raw: bytes, large: bool) -> None:
    assert is_large(raw) is is_large(raw.decode()) is large


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (b"0", 1),
        (b'""', 1),
        (b"[0]", 2),
        (b'{"a":0}', 2),
        (b'{"a":0,"b":0}', 3),
        (b'"\\",[{"', 1),
        (b'"\\\\"', 1),
        (b'"\\\\\\",,"', 1),
    ],
    ids=str,
)
def test_values_are_bounded_whatever_they_are(value: bytes, values: int) -> None:
    most = MAX_VALUES // values - 3
    assert len(parse_json_object(b'{"a": [' + (value + b",") * most + b"0]}")["a"]) == most + 1
    with pytest.raises(RequestError, match=f"more than {MAX_VALUES} values"):
        parse_json_object(b'{"a": [' + (value + b",") * MAX_VALUES + b"0]}")
