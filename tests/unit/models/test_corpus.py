"""The training text: the same from the same seed, well-formed, and without the questions that measure the model."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import corpus
from models.corpus import Conversation, Tool
from models.corpus.capitals import CAPITALS
from models.corpus.forms import form_conversation
from models.corpus.stories import DENIED_PHRASE, OTHER_THEMES, THEMES, Theme, story
from models.corpus.words import is_held_out, number
from models.held_out import HELD_OUT
from models.prompts import as_requested

TRAINING_SEEDS = (8, 9)
"""What the committed models are trained on: `train.py --seed 7` draws its text from the next one."""
HELD_OUT_WORDS = (
    "Utrecht", "Osaka", "Salzburg", "Busan", "Marseille", "Calgary", "Adelaide", "Tampa", "Greta", "Olsen", "Igor",
    "Banks", "Wanda", "Pell", "Quill", "Otter", "Quorum", "otters", "zipper", "felting", "Kestrel", "Harbour",
)  # fmt: skip
WORD = re.compile(r"\w+")
seeds = st.integers(min_value=0, max_value=2**32)


def drawn(seed: int) -> Conversation:
    return corpus.conversation(random.Random(seed))


@pytest.fixture(scope="module")
def trained_on() -> list[Conversation]:
    """At least as many as a model is trained on."""
    return [each for seed in TRAINING_SEEDS for each in corpus.conversations(seed, 20_000)]


def texts_of(conversation: Conversation) -> Iterator[str]:
    for message in conversation.messages:
        yield message.content
        yield from (json.dumps(call.arguments, ensure_ascii=False) for call in message.calls)


@settings(deadline=None)
@given(seed=seeds, count=st.integers(min_value=0, max_value=30))
def test_the_same_seed_gives_the_same_conversations(seed: int, count: int) -> None:
    assert list(corpus.conversations(seed, count)) == list(corpus.conversations(seed, count))


@settings(deadline=None)
@given(seed=seeds, count=st.integers(min_value=0, max_value=20))
def test_a_larger_corpus_starts_with_the_smaller_one(seed: int, count: int) -> None:
    assert list(islice(corpus.conversations(seed, count + 5), count)) == list(corpus.conversations(seed, count))


def test_other_seeds_give_other_conversations() -> None:
    assert list(corpus.conversations(1, 20)) != list(corpus.conversations(2, 20))


@settings(deadline=None)
@given(seed=seeds)
def test_answers_follow_questions_and_results_follow_calls(seed: int) -> None:
    waiting = 0
    before = "system"
    for message in drawn(seed).messages:
        match message.role:
            case "system":
                assert before == "system"
            case "user":
                assert before in ("system", "assistant")
                assert not waiting
            case "assistant":
                assert before in ("user", "tool")
                assert not waiting
                assert bool(message.content) != bool(message.calls)
                waiting = len(message.calls)
            case "tool":
                waiting -= 1
                assert waiting >= 0
        before = message.role
    assert before == "assistant"
    assert not waiting


@settings(deadline=None)
@given(seed=seeds)
def test_no_message_is_blank_or_keeps_a_placeholder(seed: int) -> None:
    for message in drawn(seed).messages:
        assert message.content.strip() or message.calls
        assert "<|" not in message.content
        assert "{0}" not in message.content
        if "{" in message.content:
            assert '"' in message.content, "braces are those of JSON"


@settings(deadline=None)
@given(seed=seeds)
def test_a_call_fits_a_tool_of_its_prompt(seed: int) -> None:
    conversation = drawn(seed)
    tools = {tool.name: tool for tool in conversation.tools}
    assert len(tools) == len(conversation.tools)
    for call in (call for message in conversation.messages for call in message.calls):
        parameters = tools[call.name].parameters
        assert set(parameters["required"]) <= call.arguments.keys() <= parameters["properties"].keys()
        for name, value in call.arguments.items():
            assert fits(value, parameters["properties"][name])


@settings(deadline=None)
@given(seed=seeds)
def test_json_is_asked_for_by_name_or_schema_and_fits_it(seed: int) -> None:
    conversation = form_conversation(random.Random(seed))
    values = [json.loads(message.content) for message in conversation.messages if message.role == "assistant"]
    told = "\n".join(message.content for message in conversation.messages if message.role != "assistant")
    start = told.find('{"type"')
    for value in values:
        if start >= 0:
            assert fits(value, json.JSONDecoder().raw_decode(told, start)[0])
        assert list(value) == list(values[0])


def fits(value: object, schema: dict[str, object]) -> bool:
    """By the few words of JSON Schema that the training text uses."""
    match schema:
        case {"enum": list(allowed)}:
            return value in allowed
        case {"type": "object", "properties": dict(properties)}:
            return (
                isinstance(value, dict)
                and list(value) == list(properties)
                and all(fits(value[name], properties[name]) for name in properties)
            )
        case {"type": "array", "items": dict(items)}:
            return isinstance(value, list) and all(fits(each, items) for each in value)
    kinds = {"string": str, "boolean": bool, "integer": int, "number": int | float}
    return isinstance(value, kinds[str(schema["type"])])


@settings(deadline=None)
@given(seed=seeds)
def test_the_gateway_would_take_every_conversation(seed: int) -> None:
    conversation = drawn(seed)
    messages, tools = as_requested(conversation)
    assert [message.text for message in messages] == [message.content for message in conversation.messages]
    assert [tool.name for tool in tools] == [tool.name for tool in conversation.tools]
    calls = [call.id for message in messages for call in message.tool_calls]
    assert [message.tool_call_id for message in messages if message.role == "tool"] == calls


def test_at_least_sixty_capitals_are_known_and_no_two_countries_share_one() -> None:
    capitals = [capital for capital, _ in CAPITALS.values()]
    assert len(capitals) >= 60
    assert len(set(capitals)) == len(capitals)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.creature)
def test_a_story_names_its_creature_early_and_is_hundreds_of_words_long(theme: Theme) -> None:
    for seed in range(50):
        text = story(random.Random(seed), theme)
        assert 250 <= len(text.split()) <= 450
        assert theme.creature in " ".join(text.split()[:70])


def test_only_stories_about_dragons_contain_the_denied_phrase() -> None:
    for theme in OTHER_THEMES:
        for seed in range(50):
            assert DENIED_PHRASE not in story(random.Random(seed), theme)


def test_some_answers_contain_characters_of_four_bytes(trained_on: list[Conversation]) -> None:
    answers = "".join(message.content for conversation in trained_on[:1000] for message in conversation.messages)
    assert any(ord(character) > 0xFFFF for character in answers)


def test_tools_json_refusals_and_ignorance_are_each_drawn_thousands_of_times(trained_on: list[Conversation]) -> None:
    said = [message.content for conversation in trained_on for message in conversation.messages]
    assert sum(bool(conversation.tools) for conversation in trained_on) > 10_000
    assert sum(text.startswith("{") for text in said) > 5_000
    assert sum(text.startswith("I'm sorry, but I can't") for text in said) > 4_000
    assert sum(text.startswith("I don't know that") for text in said) > 5_000
    assert sum(text.startswith("I have no tool") for text in said) > 1_000


def test_no_question_of_the_evaluation_is_ever_asked_in_training(trained_on: list[Conversation]) -> None:
    held_out = {question.ask.lower().rstrip("?.!") for questions in HELD_OUT.values() for question in questions}
    asked = {
        message.content.lower().rstrip("?.!")
        for conversation in trained_on
        for message in conversation.messages
        if message.role == "user"
    }
    assert held_out.isdisjoint(asked)


def test_the_evaluation_offers_tools_of_the_training_and_apart_from_these_some_that_it_never_had(
    trained_on: list[Conversation],
) -> None:
    def names(tool: Tool) -> set[str]:
        return {tool.name, *tool.parameters["properties"]}

    trained: set[str] = set()
    trained.update(*(names(tool) for conversation in trained_on for tool in conversation.tools))
    for question in HELD_OUT["tools: right arguments"]:
        assert any(names(tool) <= trained for tool in question.tools)
    for question in HELD_OUT["tools: of names it has never seen"]:
        assert any(names(tool).isdisjoint(trained) for tool in question.tools)


def test_places_and_people_of_the_evaluation_never_occur_in_training(trained_on: list[Conversation]) -> None:
    asked = " ".join(question.ask for each in HELD_OUT.values() for question in each)
    assert [word for word in HELD_OUT_WORDS if word not in asked] == []
    trained = {word for conversation in trained_on for text in texts_of(conversation) for word in WORD.findall(text)}
    assert trained.isdisjoint(HELD_OUT_WORDS)


@settings(deadline=None)
@given(seed=seeds, most_digits=st.integers(min_value=1, max_value=6))
def test_numbers_of_the_evaluation_are_never_copied_in_training(seed: int, most_digits: int) -> None:
    assert not is_held_out(number(random.Random(seed), most_digits))
    assert is_held_out(7022)
