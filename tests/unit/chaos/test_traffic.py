"""What the traffic of chaos asks, and that nothing of what it saw is forgotten."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from deploy.local.runner import Stack
from tests.chaos import traffic
from tests.chaos.traffic import ClientFailed, Question, Traffic, question
from tests.history.saw import Answer
from tests.servers import until

QUESTIONS = [question(client, turn) for client in range(12) for turn in range(40)]


def test_no_question_is_asked_twice() -> None:
    assert len({each.prompt for each in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("over_socket", [True, False])
@pytest.mark.parametrize("has_key", [True, False])
def test_every_kind_of_client_asks_everything(over_socket: bool, has_key: bool) -> None:
    asked = [each for each in QUESTIONS if (each.over_socket, each.has_key) == (over_socket, has_key)]
    assert {each.tenant for each in asked} == {"demo", "guarded"}
    assert {each.body.get("n", 1) for each in asked} == {1, 2}
    assert {each.is_cancelled for each in asked} == ({True, False} if over_socket else {False})


class NoStack:
    """Whoever asks it for anything fails."""


def test_what_a_client_raised_is_told_beside_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "status_of", lambda _: {"kafka": "nowhere"})
    monkeypatch.setattr(traffic, "produce", lambda *_: None)
    stack = cast(Stack, NoStack())
    stack.data = cast(Any, None)
    with Traffic(stack, 2) as asked:
        with pytest.raises(ClientFailed, match="AttributeError"):
            asked.until_answered(0, 60)
        until(lambda: asked.jobs, "a job is produced", 60)
        asked.finish(60)
    assert [failure.split(" raised ")[0] for failure in asked.failures] == ["client 0", "client 1"]
    assert [job.failed for job in asked.jobs] == [""] * len(asked.jobs) != []


class Answered:
    """Whoever asks is answered at once."""

    asked: ClassVar[list[tuple[tuple[str, ...], str]]] = []

    def __init__(self, urls: Sequence[str], api_key: str, body: object, answer: Answer, *, cancels: bool) -> None:
        self.asked.append((tuple(urls), answer.request))
        self._answer = answer

    def follow(self) -> None:
        self._answer.code = "completed"
        time.sleep(0.001)


def test_who_comes_later_asks_other_things_where_and_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "status_of", lambda _: {"kafka": "nowhere"})
    monkeypatch.setattr(traffic, "produce", lambda *_: None)
    monkeypatch.setattr(traffic, "OverWebSocket", Answered)
    stack = cast(Any, NoStack())
    stack.data, stack.api_key = None, str

    def over_sockets(client: int, turn: int) -> Question:
        return replace(question(client, turn), over_socket=True)

    with Traffic(stack, 2, first=10, urls=["here", "there"], asks=over_sockets) as asked:
        asked.until_ended(6, 60, "completed")
        with pytest.raises(TimeoutError, match="halted"):
            asked.until_ended(1, 0.1, "safety_halted")
        asked.finish(60)
    assert asked.failures == []
    assert {urls for urls, _ in Answered.asked} == {("here", "there"), ("there", "here")}
    assert {int(number) // 100_000 for _, number in Answered.asked} == {10, 11}


def test_a_job_that_nobody_acknowledged_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("the job was not acknowledged")

    monkeypatch.setattr(traffic, "status_of", lambda _: {"kafka": "nowhere"})
    monkeypatch.setattr(traffic, "produce", fails)
    stack = cast(Stack, NoStack())
    stack.data = cast(Any, None)
    with Traffic(stack, 0) as asked:
        until(lambda: asked.jobs, "a job is tried", 60)
        asked.finish(60)
    assert asked.failures == []
    assert {job.failed for job in asked.jobs} == {"RuntimeError"}
