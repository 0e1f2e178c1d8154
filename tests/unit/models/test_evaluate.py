"""How the model is measured: on a scripted one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from models import evaluate
from models.evaluate import Answer, Question


class ScriptedModel:
    """Answers each question with its text in capitals, or as told; remembers what it was asked with."""

    def __init__(self, **answers: str) -> None:
        self.asked: list[list[str]] = []
        self._answers = answers

    def answer(self, messages: Sequence[dict[str, str]], max_tokens: int, temperature: float, seed: int) -> Answer:
        self.asked.append([message["content"] for message in messages])
        ask = messages[-1]["content"]
        return Answer(self._answers.get(ask, ask.upper()), tokens=1, stopped=True)


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"topic": (Question("c", lambda answer: answer.text == "C", before=("a", "b")),)}
    monkeypatch.setattr(evaluate, "HELD_OUT", said)


@pytest.mark.usefixtures("questions")
def test_a_question_is_asked_after_the_models_own_answers() -> None:
    model = ScriptedModel()
    [score] = evaluate.evaluate(model, temperature=0.0, repeats=1)
    assert model.asked == [["a"], ["a", "A", "b"], ["a", "A", "b", "B", "c"]]
    assert (score.passed, score.asked, score.failures) == (1, 1, ())


@pytest.mark.usefixtures("questions")
def test_an_answer_that_fails_is_told_with_all_that_was_asked() -> None:
    [score] = evaluate.evaluate(ScriptedModel(c="no"), temperature=0.7, repeats=2)
    assert (score.passed, score.asked) == (0, 2)
    assert score.failures == (("a / b / c", "no"),) * 2


@pytest.mark.usefixtures("questions")
def test_who_repeats_himself_does_not_pass() -> None:
    [score] = evaluate.evaluate(ScriptedModel(a="C"), temperature=0.0, repeats=1)
    assert score.passed == 0
