"""Coming back to a response: by `Last-Event-ID`, by `starting_after`, by WebSocket `resume`; during and after it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deploy.local.runner import Stack
from schemas.websocket import ErrorMessage
from tests.e2e.events import Event, read_events, until_token
from tests.e2e.sockets import open_socket
from tests.e2e.stacks import LONG, TIMEOUT_S, body, http_client, is_scripted, until_idle
from tests.servers import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ENDLESS: dict[str, Any] = {**LONG, "max_tokens": 4_000}
LASTING: dict[str, Any] = {"stream": True, "on_disconnect": "continue", "max_tokens": 300, "ignore_eos": True}


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with http_client(stack) as client:
        yield client


TOKENS: int = LASTING["max_tokens"]


def start_and_leave(client: httpx.Client, tokens: int = 10) -> tuple[str, list[Event]]:
    """A response that goes on, and what its first viewer saw before it dropped the connection."""
    while True:
        with client.stream("POST", "/v1/chat/completions", json=body("A long one.", **LASTING)) as answer:
            seen = until_token(read_events(answer), tokens)
        # Else it had all come when it was first looked at.
        if seen[-1].id < TOKENS:
            return answer.headers["x-request-id"], seen


def replay(client: httpx.Client, response_id: str, headers: dict[str, str], **query: str) -> list[Event]:
    params = {"stream": "true", **query}
    with client.stream("GET", f"/v1/chat/completions/{response_id}", params=params, headers=headers) as answer:
        assert answer.status_code == 200
        return list(read_events(answer))


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events)


def until_complete(client: httpx.Client, response_id: str) -> str:
    """Its whole text, once its bound has ended it."""
    shown: dict[str, Any] = {}

    def complete() -> bool:
        shown.update(client.get(f"/v1/chat/completions/{response_id}").json())
        return bool(shown["status"] == "incomplete")

    until(complete, "the response is complete", TIMEOUT_S, every_s=0.1)
    return str(shown["choices"][0]["message"]["content"])


@pytest.mark.parametrize("by", ["last-event-id", "starting_after"])
def test_who_drops_out_in_the_middle_goes_on_where_it_was(client: httpx.Client, by: str) -> None:
    response_id, seen = start_and_leave(client)
    last = seen[-1].id
    assert 0 < last < TOKENS
    if by == "last-event-id":
        rest = replay(client, response_id, {"last-event-id": str(last)})
    else:
        rest = replay(client, response_id, {}, starting_after=str(last))
    assert rest[-1].id == TOKENS + 1
    whole = until_complete(client, response_id)
    assert is_scripted(whole)
    assert text_of(seen) + text_of(rest) == whole


def test_the_end_can_be_replayed_from_everywhere(client: httpx.Client) -> None:
    response_id, _ = start_and_leave(client)
    whole = until_complete(client, response_id)
    from_start = replay(client, response_id, {})
    assert text_of(from_start) == whole
    for event in from_start[1::15]:
        if event.id <= TOKENS:
            before = text_of([each for each in from_start if each.id <= event.id and each.text])
            assert before + text_of(replay(client, response_id, {}, starting_after=str(event.id))) == whole
    done = client.get(
        f"/v1/chat/completions/{response_id}", params={"stream": "true"}, headers={"last-event-id": str(TOKENS + 1)}
    )
    assert done.status_code == 204, "who has seen everything is told to stop"


def test_a_position_in_the_middle_of_an_event_is_as_good_as_any(client: httpx.Client) -> None:
    """How tokens are grouped into events may differ; what follows a token may not."""
    response_id, _ = start_and_leave(client, tokens=3)
    whole = until_complete(client, response_id)
    tails = [text_of(replay(client, response_id, {}, starting_after=str(after))) for after in (1, 2, 3, 41, 42, 43)]
    assert all(whole.endswith(tail) for tail in tails)
    assert [len(tail) for tail in tails] == sorted((len(tail) for tail in tails), reverse=True)


@pytest.mark.parametrize("position", ["-1", "1.5", "one", "9" * 30])
def test_what_is_no_position_is_refused_by_name(client: httpx.Client, position: str) -> None:
    response_id, _ = start_and_leave(client, tokens=2)
    for headers, query in (({"last-event-id": position}, {}), ({}, {"starting_after": position})):
        refused = client.get(f"/v1/chat/completions/{response_id}", params={"stream": "true", **query}, headers=headers)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] in ("last-event-id", "starting_after")


def test_a_position_that_nobody_has_reached_is_said(client: httpx.Client) -> None:
    response_id, _ = start_and_leave(client)
    until_complete(client, response_id)
    refused = client.get(f"/v1/chat/completions/{response_id}", params={"stream": "true", "starting_after": "5000"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "starting_after"


def test_a_dropped_socket_resumes_on_a_new_one(stack: Stack) -> None:
    with open_socket(stack) as socket:
        response_id = socket.ask("A long one.", **LASTING)
        before = socket.until_token(response_id, 20)
    with open_socket(stack) as socket:
        socket.resume(response_id, before.sequence_number)
        after = socket.until_ended(response_id)
    assert after.sequence_number == TOKENS
    assert is_scripted(before.text + after.text)
    assert after.terminal is not None
    assert after.terminal.code == "completed"


def test_what_began_on_a_socket_goes_on_over_http_and_the_other_way_round(stack: Stack, client: httpx.Client) -> None:
    with open_socket(stack) as socket:
        response_id = socket.ask("A long one.", **LASTING)
        before = socket.until_token(response_id, 10)
    rest = replay(client, response_id, {"last-event-id": str(before.sequence_number)})
    assert is_scripted(before.text + text_of(rest))
    response_id, seen = start_and_leave(client)
    with open_socket(stack) as socket:
        socket.resume(response_id, seen[-1].id)
        after = socket.until_ended(response_id)
    assert is_scripted(text_of(seen) + after.text)


def test_two_viewers_see_the_same_each_from_where_it_came(stack: Stack) -> None:
    with open_socket(stack) as first, open_socket(stack) as second:
        response_id = first.ask("A long one.", **LASTING)
        first.until_token(response_id, 15)
        second.resume(response_id, 0)
        second.until_token(response_id, 15)
        one, two = first.until_ended(response_id), second.until_ended(response_id)
    assert one.text == two.text
    assert is_scripted(one.text)
    assert one.sequence_number == two.sequence_number == TOKENS
    assert one.terminal is not None
    assert two.terminal is not None
    assert one.terminal.usage == two.terminal.usage


def test_another_tenant_cannot_resume_or_cancel(stack: Stack) -> None:
    with open_socket(stack) as owner, open_socket(stack, "guarded") as other:
        response_id = owner.ask("Mine.", **LASTING)
        owner.until_token(response_id, 5)
        other.resume(response_id, 0)
        assert other.until(ErrorMessage, response_id=response_id).error.code == "response_not_found"
        other.cancel(response_id)
        assert other.until(ErrorMessage, response_id=response_id).error.code == "response_not_found"
        ended = owner.until_ended(response_id).terminal
    assert ended is not None
    assert ended.code == "completed"


# Leaving is not cancelling, unless the request says so


def test_what_is_to_end_with_its_viewer_ends(stack: Stack, client: httpx.Client) -> None:
    with client.stream("POST", "/v1/chat/completions", json=body("Leave me.", stream=True, **ENDLESS)) as answer:
        response_id = answer.headers["x-request-id"]
        next(read_events(answer))

    def cancelled() -> bool:
        return bool(client.get(f"/v1/chat/completions/{response_id}").json()["code"] == "cancelled")

    # To look at it is not to watch it: it ends although somebody asks for its state again and again.
    until(cancelled, "the abandoned response is cancelled", TIMEOUT_S, every_s=0.5)
    until_idle(stack)
    assert (
        client.get(f"/v1/chat/completions/{response_id}").json()["usage"]["completion_tokens"] < ENDLESS["max_tokens"]
    )


def test_who_comes_back_in_time_keeps_the_response_alive(stack: Stack) -> None:
    """Two seconds are its time: who was held up for longer tries once more."""

    def is_kept() -> bool:
        with open_socket(stack) as socket:
            response_id = socket.ask("Do not leave me.", on_disconnect="cancel", max_tokens=500, ignore_eos=True)
            before = socket.until_token(response_id, 3)
        with open_socket(stack) as socket:
            socket.resume(response_id, before.sequence_number)
            after = socket.until_ended(response_id)
        assert is_scripted(before.text + after.text)
        return after.terminal is not None and after.terminal.code == "completed"

    until(is_kept, "who came back in time had all of it", TIMEOUT_S)
