"""The WebSocket: many responses on one connection, cancels, and what it says to nonsense."""

from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from deploy.local.runner import Stack
from schemas.websocket import Accepted, Closing, ErrorMessage, Pong, TerminalMessage
from streams.settings import MAX_BODY_BYTES
from tests.e2e.sockets import Socket, open_socket
from tests.e2e.stacks import LONG, TIMEOUT_S, api_key, body, gpu_work, is_scripted, until_idle, worker_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_one_socket_carries_many_responses_at_once(stack: Stack) -> None:
    with open_socket(stack) as socket:
        for number in range(40):
            message = {"model": "default", "messages": [{"role": "user", "content": f"Question {number}"}]}
            socket.send({"type": "request", "request_id": str(number), "body": {**message, "max_tokens": 20 + number}})
        for _ in range(40):
            socket.until(TerminalMessage)
    assert len(socket.answers) == 40
    for answer in socket.answers.values():
        assert answer.terminal is not None
        assert answer.terminal.code == "completed"
        assert not answer.gaps
        assert answer.terminal.usage.completion_tokens == answer.sequence_number
        assert is_scripted(answer.text)
        assert answer.started is not None
        assert answer.started.requested_model == "default"


def test_a_cancel_ends_the_response_and_frees_its_memory(stack: Stack, idle: None) -> None:
    with open_socket(stack) as socket:
        response_id = socket.ask("Never mind.", **LONG)
        other = socket.ask("But do tell me this.", request_id="2", max_tokens=200, ignore_eos=True)
        socket.until_token(response_id, 10)
        socket.cancel(response_id)
        ended = socket.until_ended(response_id)
        assert ended.terminal is not None
        assert (ended.terminal.code, ended.terminal.finish_reason) == ("cancelled", "cancelled")
        assert 0 < ended.terminal.usage.completion_tokens < 2_000
        neighbour = socket.until_ended(other)
        assert neighbour.terminal is not None
        assert neighbour.terminal.code == "completed"
        until_idle(stack)
        assert worker_metrics(stack)["sluice_worker_kv_blocks_used"] == 0
        socket.cancel(response_id)  # again: nothing is left to do, and nothing is wrong with it
        socket.send({"type": "ping", "nonce": "still here"})
        assert socket.until(Pong).nonce == "still here"


def test_an_edit_stops_the_answer_and_goes_on_before_it(stack: Stack, idle: None) -> None:
    with open_socket(stack) as socket:
        first = socket.ask("My name is Ada.", store=True, max_tokens=5)
        alone = socket.until_ended(first).terminal
        wrong = socket.ask("Tell me a sotry.", request_id="2", store=True, previous_response_id=first, **LONG)
        socket.until_token(wrong, 10)
        edited = body("What is my name?", max_tokens=5)
        socket.send({"type": "edit", "request_id": "3", "response_id": wrong, "body": edited})
        anew = socket.until_ended(socket.until(Accepted, request_id="3").response_id).terminal
        stopped = socket.until_ended(wrong).terminal
    assert alone is not None
    assert anew is not None
    assert stopped is not None
    assert (stopped.code, anew.code) == ("cancelled", "completed")
    assert anew.usage.prompt_tokens > alone.usage.prompt_tokens, "it was told what was said before"


def test_a_request_id_can_be_used_again_once_its_response_has_ended(stack: Stack) -> None:
    with open_socket(stack) as socket:
        first = socket.ask("One.", **LONG)
        socket.send({"type": "request", "request_id": "1", "body": {}})
        assert socket.until(ErrorMessage, request_id="1").error.param == "request_id"
        socket.cancel(first)
        socket.until_ended(first)
        second = socket.ask("Two.", max_tokens=2)
        assert second != first
        socket.until_ended(second)


def test_refusals_come_as_terminals_with_advice(stack: Stack) -> None:
    with open_socket(stack, "few-tokens") as socket:
        socket.until_ended(socket.ask("Hi", max_tokens=60, ignore_eos=True))
        terminal = socket.until_ended(socket.ask("Hi", max_tokens=60, ignore_eos=True)).terminal
    assert terminal is not None
    assert terminal.code == "rate_limited_tokens"
    assert terminal.error is not None
    assert terminal.error.type == "rate_limit_error"
    assert (terminal.retry_after_ms or 0) > 0
    assert terminal.limits["tokens_limit"] == 100
    assert terminal.usage.completion_tokens == 0


def test_the_key_may_come_as_a_first_message_or_in_the_subprotocol(stack: Stack) -> None:
    key = api_key(stack)
    with connect(stack.websocket_url, compression=None, open_timeout=TIMEOUT_S) as connection:
        socket = Socket(connection)
        socket.send({"type": "auth", "api_key": key})
        socket.until_ended(socket.ask("Hi", max_tokens=2))
    offered = ["sluice.v1", f"sluice.key.{key}"]
    with connect(
        stack.websocket_url,
        compression=None,
        open_timeout=TIMEOUT_S,
        subprotocols=offered,  # type: ignore[arg-type]
    ) as connection:
        assert connection.subprotocol == "sluice.v1"
        socket = Socket(connection)
        socket.until_ended(socket.ask("Hi", max_tokens=2))


def close_code(socket: Socket) -> int | None:
    """How the gateway closes the connection; None when it just goes away."""
    try:
        while True:
            socket.next()
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


def test_a_wrong_key_closes_the_socket(stack: Stack) -> None:
    with connect(
        stack.websocket_url,
        compression=None,
        additional_headers={"Authorization": "Bearer sk-sluice-of-nobody"},
        open_timeout=TIMEOUT_S,
    ) as connection:
        socket = Socket(connection)
        said = socket.until(Closing)
        assert (said.code, said.reason, said.resumable) == (4401, "unauthenticated", False)
        assert close_code(socket) == 4401


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{not json", "invalid_request", None),
        ("[1, 2]", "invalid_request", None),
        ('{"type": "ping", "nonce": NaN}', "invalid_request", None),
        ('{"type": "ping", "type": "ping"}', "invalid_request", None),
        ('{"a":' * 10_000 + "1" + "}" * 10_000, "invalid_request", None),
        ("{}", "invalid_request", "type"),
        ('{"type": "dance"}', "invalid_request", "type"),
        ('{"type": "ping", "nonce": 5}', "invalid_request", "nonce"),
        ('{"type": "ping", "louder": true}', "unsupported_parameter", "louder"),
        ('{"type": "cancel"}', "invalid_request", "response_id"),
        ('{"type": "cancel", "response_id": "resp_of_nobody"}', "response_not_found", "response_id"),
        ('{"type": "resume", "response_id": "r", "starting_after": -1}', "invalid_request", "starting_after"),
        ('{"type": "edit", "response_id": "resp_of_nobody"}', "invalid_request", "request_id"),
        ('{"type": "edit", "request_id": "1", "response_id": "resp_of_nobody", "body": {}}', "response_not_found",
         "response_id"),
        ('{"type": "tool_result"}', "invalid_request", "request_id"),
        ('{"type": "tool_result", "request_id": "1", "response_id": "r", "results": [], "body": {}}',
         "invalid_request", "results"),
        ('{"type": "tool_result", "request_id": "1", "response_id": "r", "body": {"messages": []},'
         ' "results": [{"tool_call_id": "c", "content": ""}]}', "invalid_request", "body.messages"),
        ('{"type": "tool_result", "request_id": "1", "response_id": "r", "body": {"model": "default"},'
         ' "results": [{"tool_call_id": "c", "content": ""}]}',
         "previous_response_not_found", "previous_response_id"),
        ('{"type": "request", "request_id": "1", "body": []}', "invalid_request", "body"),
        ('{"type": "request", "request_id": "1", "body": {"stream": false}}', "invalid_request", "body.stream"),
        ('{"type": "request", "request_id": "1", "body": {"model": "default"}}', "invalid_request", "messages"),
    ],
)  # fmt: skip
def test_nonsense_is_answered_and_the_socket_lives_on(
    stack: Stack, idle: None, text: str, code: str, param: str | None
) -> None:
    before = gpu_work(stack)
    with open_socket(stack) as socket:
        socket.connection.send(text)
        refused = socket.until(ErrorMessage)
        assert (refused.error.code, refused.error.param) == (code, param)
        assert refused.error.message
        assert gpu_work(stack) == before
        socket.until_ended(socket.ask("And now something sensible.", request_id="2", max_tokens=2))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**9}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
        ({"mood": "good"}, "mood"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
    ],
)
def test_a_wrong_body_names_its_field_and_its_request(
    stack: Stack, idle: None, fields: dict[str, object], param: str
) -> None:
    before = gpu_work(stack)
    with open_socket(stack) as socket:
        request = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], **fields}
        socket.send({"type": "request", "request_id": "mine", "body": request})
        refused = socket.until(ErrorMessage, request_id="mine")
    assert refused.error.param == param
    assert refused.error.type == "invalid_request_error"
    assert gpu_work(stack) == before


def test_what_admission_refuses_ends_the_response_and_names_the_field(stack: Stack, idle: None) -> None:
    before = gpu_work(stack)
    with open_socket(stack) as socket:
        unknown = socket.until_ended(socket.ask("Hi", model="no-such-model")).terminal
        too_long = socket.until_ended(socket.ask("word " * 20_000)).terminal
    assert unknown is not None
    assert unknown.error is not None
    assert (unknown.error.code, unknown.error.param) == ("model_not_found", "model")
    assert too_long is not None
    assert too_long.error is not None
    assert (too_long.error.code, too_long.error.param) == ("context_length_exceeded", "messages")
    assert gpu_work(stack) == before


def test_binary_frames_close_the_socket(stack: Stack) -> None:
    with open_socket(stack) as socket:
        socket.connection.send(b"\x00\x01\x02")
        assert socket.until(Closing).reason == "not_text"
        assert close_code(socket) == 1003


def test_a_message_beyond_every_bound_closes_the_socket(stack: Stack) -> None:
    with open_socket(stack) as socket:

        def in_two_pieces() -> Iterator[str]:
            """The second is sent when all of the first is read: what a closed socket has not read resets it, and the
            gateway's answer with it."""
            yield '{"type": "ping", "nonce": "' + "x" * (MAX_BODY_BYTES - 1_000)
            assert socket.connection.ping().wait(TIMEOUT_S)
            yield "x" * 5_000

        socket.connection.send(in_two_pieces())
        assert close_code(socket) == 1009


def test_who_talks_nothing_but_nonsense_is_shown_the_door(stack: Stack) -> None:
    with open_socket(stack) as socket:
        for _ in range(20):
            socket.connection.send("nonsense")
        assert socket.until(Closing).reason == "too_many_errors"
        assert close_code(socket) == 1008
