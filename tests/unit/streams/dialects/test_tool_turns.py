"""What every dialect asks of tools, calls and results: the first that is wrong is named, as its clients write it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.request import Message, TextPart, Tool, ToolCall, ToolChoice
from streams.dialects.neutral import RequestError
from streams.dialects.schema_bounds import MAX_VALUES
from streams.dialects.tool_turns import (
    MAX_SCHEMA_DEPTH,
    MAX_SCHEMA_VALUES,
    MAX_TOOLS_BYTES,
    check_tools,
    check_turns,
    settled_choice,
)

ADD, SEARCH = Tool(name="add"), Tool(name="search", parameters={"type": "object"})


def said(role: str, text: str = "hi") -> Message:
    return Message.model_validate({"role": role, "content": [TextPart(text=text)]})


def called(*ids: str) -> Message:
    return Message(role="assistant", content=[], tool_calls=[ToolCall(id=call_id, name="add") for call_id in ids])


def result(call_id: str) -> Message:
    return Message(role="tool", content=[TextPart(text="4")], tool_call_id=call_id)


def refusal_of(messages: Sequence[Message]) -> str | None:
    """The field that is named, as a dialect writes it whose results stand in parts."""
    try:
        check_turns(messages, lambda index: f"turns.{index}", calls="calls", result="id")
    except RequestError as error:
        return error.param
    return None


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([said("user")], None),
        ([said("user"), called("a"), result("a")], None),
        ([called("a", "b"), result("b"), result("a"), said("assistant"), called("a"), result("a")], None),
        ([called("a"), said("system"), result("a")], None),
        ([called("a"), result("a"), called("b"), result("b"), said("user")], None),
        ([result("a")], "turns.0.id"),
        ([said("user"), result("a")], "turns.1.id"),
        ([called("a"), result("b")], "turns.1.id"),
        ([called("a"), result("a"), result("a")], "turns.2.id"),
        ([called("a"), result("a"), said("assistant"), result("a")], "turns.3.id"),
        ([called("a"), result("a"), called("b"), result("a")], "turns.3.id"),
        ([called("a")], "turns.0.calls"),
        ([said("user"), called("a"), said("user"), result("a")], "turns.1.calls"),
        ([called("a", "b"), result("a"), said("assistant")], "turns.0.calls"),
        ([called("a"), called("b"), result("b")], "turns.0.calls"),
        ([said("user"), called("a", "a"), result("a"), result("a")], "turns.1.calls"),
        ([Message(role="tool", content=[TextPart(text="4")])], "turns.0.id"),
    ],
    ids=lambda value: str([message.role for message in value]) if isinstance(value, list) else str(value),
)
def test_each_call_has_one_result_before_the_next_turn(messages: list[Message], param: str | None) -> None:
    assert refusal_of(messages) == param


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), max_size=4), st.data())
def test_results_may_come_in_any_order_and_none_may_be_missing(turns: list[list[str]], data: st.DataObject) -> None:
    messages = []
    for ids in turns:
        messages += [called(*ids), *(result(call_id) for call_id in data.draw(st.permutations(ids)))]
    assert refusal_of(messages) is None
    results = [index for index, message in enumerate(messages) if message.role == "tool"]
    if results:
        left_out = data.draw(st.sampled_from(results))
        assert refusal_of(messages[:left_out] + messages[left_out + 1 :]) is not None


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("tools", "param", "why"),
    [
        ([ADD, SEARCH], None, ""),
        ([Tool(name=f"t{number}") for number in range(128)], None, ""),
        ([Tool(name="add", parameters=nested(MAX_SCHEMA_DEPTH))], None, ""),
        ([Tool(name="add", parameters={"examples": [0] * (MAX_VALUES - 1)})], None, ""),
        ([Tool(name=f"t{number}") for number in range(129)], "tools", "at most 128 items"),
        ([ADD, SEARCH, ADD], "body.tools.2.name", "Another tool is called add already"),
        ([ADD, Tool(name="deep", parameters=nested(MAX_SCHEMA_DEPTH + 1))], "body.tools.1.schema", "64 deep"),
        ([Tool(name="wide", parameters={"enum": [0] * MAX_SCHEMA_VALUES})], "body.tools.0.schema", "16384 values"),
        (
            [Tool(name=f"t{number}", parameters={"examples": [0] * (MAX_SCHEMA_VALUES // 2)}) for number in range(2)],
            "body.tools.1.schema",
            "16384 values",
        ),
        ([ADD, Tool(name="many", parameters={"maxItems": 10**9})], "body.tools.1.schema", "10,000 items"),
        ([Tool(name="long", description="x" * MAX_TOOLS_BYTES)], "tools", f"at most {MAX_TOOLS_BYTES} bytes"),
        ([Tool(name=f"t{n}", parameters={"title": "é" * 70_000}) for n in range(2)], "tools", "bytes"),
    ],
    ids=str,
)
def test_tools_are_bounded_and_each_has_a_name_of_its_own(tools: list[Tool], param: str | None, why: str) -> None:
    def check() -> None:
        check_tools(tools, lambda index: f"body.tools.{index}", schema="schema")

    if param is None:
        check()
        return
    with pytest.raises(RequestError, match=why) as refused:
        check()
    assert refused.value.param == param


def test_a_choice_is_settled_among_the_tools() -> None:
    for mode in ("auto", "none", "required"):
        choice = ToolChoice.model_validate({"mode": mode, "parallel": False})
        assert settled_choice(choice, [ADD], name="tool") == choice
    named = ToolChoice(mode="named", name="add")
    assert settled_choice(named, [SEARCH, ADD], name="tool") == named
    assert settled_choice(ToolChoice(), [], name="tool") is settled_choice(ToolChoice(mode="none"), [], name="tool")
    for choice, tools, param in (
        (ToolChoice(mode="required"), [], "tool_choice"),
        (named, [], "tool_choice"),
        (named, [SEARCH], "tool"),
    ):
        with pytest.raises(RequestError) as refused:
            settled_choice(choice, tools, name="tool")
        assert refused.value.param == param
