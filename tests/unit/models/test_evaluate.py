"""How the model is measured: on a scripted one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models import evaluate
from models.corpus import Call, Conversation, Tool
from models.corpus.refusals import REFUSALS
from models.corpus.tools.dialogues import NO_TOOL_ANSWER
from models.held_out import HELD_OUT
from models.held_out.questions import Answer, Question, calls, calls_with, has_no_tool, is_json, refuses, says

TALK = {"topic": (Question("c", lambda answer: answer.text == "C", before=("a", "b")),)}
TOOL = Tool("add", "Adds.", {"type": "object", "properties": {}})
CALL = Call("add", {"a": 2, "b": "ü"})
WRITTEN = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": "ü"}}</tool_call>'


class ScriptedModel:
    """Answers each question with its text in capitals, or as told; remembers what it was asked with."""

    def __init__(self, **answers: str) -> None:
        self.asked: list[Conversation] = []
        self._answers = answers

    def answer(self, asked: Conversation, max_tokens: int, temperature: float, seed: int) -> Answer:
        self.asked.append(asked)
        ask = asked.messages[-1].content
        return said(self._answers.get(ask, ask.upper()))


def said(text: str, stopped: bool = True) -> Answer:
    return Answer(text, tokens=1, stopped=stopped)


def test_a_question_is_asked_after_the_models_own_answers() -> None:
    model = ScriptedModel()
    [score] = evaluate.evaluate(model, TALK, temperature=0.0, repeats=1)
    contents = [[message.content for message in asked.messages] for asked in model.asked]
    assert contents == [["a"], ["a", "A", "b"], ["a", "A", "b", "B", "c"]]
    assert (score.passed, score.asked, score.failures) == (1, 1, ())


def test_an_answer_that_fails_is_told_with_all_that_was_asked() -> None:
    [score] = evaluate.evaluate(ScriptedModel(c="no"), TALK, temperature=0.7, repeats=2)
    assert (score.passed, score.asked) == (0, 2)
    assert score.failures == (("a / b / c", "no"),) * 2


def test_who_repeats_himself_does_not_pass() -> None:
    [score] = evaluate.evaluate(ScriptedModel(a="C"), TALK, temperature=0.0, repeats=1)
    assert score.passed == 0


def test_a_question_brings_its_system_message_its_tools_and_the_results_of_calls() -> None:
    question = Question("q", says("R"), system="s", tools=(TOOL,), called=(CALL,), results=("r",))
    model = ScriptedModel()
    [score] = evaluate.evaluate(model, {"topic": (question,)}, temperature=0.0, repeats=1)
    [asked] = model.asked
    assert [(message.role, message.content, message.calls) for message in asked.messages] == [
        ("system", "s", ()), ("user", "q", ()), ("assistant", "", (CALL,)), ("tool", "r", ()),
    ]  # fmt: skip
    assert asked.tools == (TOOL,)
    assert score.passed == 1


@pytest.mark.parametrize(
    ("passes", "good", "bad"),
    [
        (says("Paris", "29"), "In PARIS, 29.", ["In Paris.", WRITTEN + " Paris 29"]),
        (refuses, REFUSALS[0], ["I'm sorry.", NO_TOOL_ANSWER]),
        (has_no_tool, NO_TOOL_ANSWER, [REFUSALS[0], WRITTEN]),
        (calls("add"), WRITTEN, ["", "add", f"{WRITTEN}\n{WRITTEN}", f"Well. {WRITTEN}", "<tool_call>{}</tool_call>"]),
        (calls("add", "add"), f"{WRITTEN}\n{WRITTEN}", [WRITTEN]),
        (calls_with(CALL), WRITTEN, [WRITTEN.replace("2", "3"), WRITTEN.replace("ü", "u"), WRITTEN[:-5]]),
        (is_json({"a": 1, "b": ["X"]}), '{"a":1, "b":["x"]}', ['{"b":["X"],"a":1}', '{"a":"1","b":["X"]}', "{", "a 1"]),
    ],
)
def test_a_test_takes_what_is_right_and_nothing_else(
    passes: Callable[[Answer], bool], good: str, bad: list[str]
) -> None:
    assert passes(said(good))
    assert not passes(said(good, stopped=False))
    assert [text for text in bad if passes(said(text))] == []


@pytest.mark.parametrize("topic", [
    "refusals", "harmless", "says it does not know", "tools: called", "tools: right arguments", "tools: none fits",
    "tools: answers with the result", "JSON",
])  # fmt: skip
def test_what_the_model_is_trained_for_is_measured_with_at_least_twenty_questions(topic: str) -> None:
    assert len({question.ask for question in HELD_OUT[topic]}) >= 20


def test_the_questions_about_tools_have_right_answers() -> None:
    for question in (*HELD_OUT["tools: called"], *HELD_OUT["tools: right arguments"]):
        assert not question.passes(said("I have no tool for that, so I can't do it."))
    for question in HELD_OUT["tools: answers with the result"]:
        assert question.passes(said(question.results[0] + " " + question.ask))
        assert not question.passes(said("I don't know."))
