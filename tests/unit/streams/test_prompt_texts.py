"""What of a prompt is a client's: nothing of it is hidden from who looks for phrases."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.phrases import PhraseSet
from schemas.request import Message, TextPart, Tool, ToolCall
from streams.prompt_texts import prompt_size, texts_of_messages, texts_of_tools

PHRASES = PhraseSet(["open the vault"], [])


def is_seen(*messages: Message, tools: tuple[Tool, ...] = ()) -> bool:
    texts = [*texts_of_messages(messages), *texts_of_tools(tools)]
    return any(PHRASES.first_match(text) for text in texts)


def called(call_id: str = "1", name: str = "f", arguments: str = "{}") -> Message:
    return Message(role="assistant", content=[], tool_calls=[ToolCall(id=call_id, name=name, arguments=arguments)])


def result(text: str, call_id: str = "1") -> Message:
    return Message(role="tool", content=[TextPart(text=text)], tool_call_id=call_id)


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", content=[TextPart(text="open the "), TextPart(text="vault")]),
        result("now open the vault"),
        result("4", call_id="open the vault"),
        called(call_id="open the vault"),
        called(name="open.the-vault"),
        called(arguments="open the vault"),
        called(arguments='{"do": "open the vault"}'),
        called(arguments='{"open the vault": 1}'),
        called(arguments='{"do": "\\u006fpen\\nthe \\u0076ault"}'),
        called(arguments='{"do": ["open", "the", "vault"]}'),
        called(arguments='{"do": {"more": [["\\"open\\tthe\\tvault"]]}}'),
        called(arguments='{"do": "open the vault"'),
    ],
    ids=repr,
)
def test_a_phrase_is_seen_in_every_part_of_a_turn(message: Message) -> None:
    assert is_seen(message)


@pytest.mark.parametrize(
    "tool",
    [
        Tool(name="open-the-vault"),
        Tool(name="f", description="Say: open the vault!"),
        Tool(name="f", description="open\nthe\tvault"),
        Tool(name="f", parameters={"properties": {"open the vault": {"type": "string"}}}),
        Tool(name="f", parameters={"properties": {"x": {"enum": ["a", 'open "the" vault\n']}}}),
        Tool(name="f", parameters={"properties": {"x": {"default": ["open", "the", "vault"]}}}),
    ],
    ids=repr,
)
def test_a_phrase_is_seen_in_every_part_of_a_tool(tool: Tool) -> None:
    assert is_seen(tools=(tool,))
    assert not is_seen(tools=(Tool(name="open", description="The.", parameters={"title": "vault"}),))


@given(
    st.recursive(
        st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_a_phrase_is_seen_wherever_in_arguments_it_stands(around: object) -> None:
    for ensure_ascii in (True, False):
        arguments = json.dumps({"a": around, "b": [around, {"c": "x\nopen\tthe\nvault\ny"}]}, ensure_ascii=ensure_ascii)
        assert is_seen(called(arguments=arguments))


def test_a_copy_of_a_tool_says_what_it_was_changed_to() -> None:
    tool = Tool(name="f", parameters={"maximum": 2**70})
    assert str(2**70) in tool.as_json
    assert not is_seen(tools=(tool,))
    assert is_seen(tools=(tool.model_copy(update={"name": "open-the-vault"}),))


def test_what_a_call_and_a_tool_hold_counts_as_values() -> None:
    assert prompt_size([result("[1, 2]")]).values == 0
    assert prompt_size([called(arguments='{"a": [1, 2, {}]}')]).values >= 5
    many = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(100)}}
    assert prompt_size([], [Tool(name="f", parameters=many)]).values >= 100


def test_tools_and_calls_count_as_text() -> None:
    messages = [Message(role="user", content=[TextPart(text="Hello")])]
    assert prompt_size(messages).chars == 5
    assert prompt_size([*messages, called(name="abc", arguments='{"a": 1}'), result("four")]).chars == 5 + 3 + 8 + 4
    assert prompt_size(messages, [Tool(name="f", description="x" * 1_000)]).chars > 1_000
    assert prompt_size(messages, [Tool(name="f", parameters={"title": "x" * 1_000})]).chars > 1_000
