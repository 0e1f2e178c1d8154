"""What the traffic of chaos asks, and that nothing of what it saw is forgotten."""

from typing import Any, cast

import pytest

from deploy.local.runner import Stack
from tests.chaos import traffic
from tests.chaos.traffic import ClientFailed, Traffic, question
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
