"""What of a prompt is a client's: nothing of it is hidden from who looks for phrases."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.safety.phrases import PhraseSet
from schemas.request import Message, TextPart, Tool, ToolCall
from streams.prompt_texts import prompt_chars, texts_of_messages, texts_of_tools

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


def test_tools_and_calls_count_as_text() -> None:
    messages = [Message(role="user", content=[TextPart(text="Hello")])]
    assert prompt_chars(messages) == 5
    assert prompt_chars([*messages, called(name="abc", arguments='{"a": 1}'), result("four")]) == 5 + 3 + 8 + 4
    assert prompt_chars(messages, [Tool(name="f", description="x" * 1_000)]) > 1_000
    assert prompt_chars(messages, [Tool(name="f", parameters={"title": "x" * 1_000})]) > 1_000
