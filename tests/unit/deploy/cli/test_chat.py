import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from deploy.cli.banner import banner
from deploy.cli.chat import RECONNECT_TIMEOUT_S, Answer, Chat, ChatError, Pauses
from schemas.websocket import Accepted, Delta, ErrorBody, ErrorMessage, TerminalMessage, UsageBody
from tests.servers import proxy_of_the_environment


def delta(first: int, last: int, text: str, kind: str = "content", call: int = 0) -> Delta:
    return Delta.model_validate(
        {
            "response_id": "r", "first_sequence": first, "sequence_number": last, "choice": 0, "kind": kind,
            "call": call, "text": text,
        }
    )  # fmt: skip


def test_deltas_add_up_to_the_text() -> None:
    answer = Answer()
    assert [answer.take(delta(1, 1, "Once")), answer.take(delta(2, 4, " upon a time"))] == ["Once", " upon a time"]
    assert (answer.text, answer.sequence_number, answer.deltas, answer.gaps) == ("Once upon a time", 4, 2, [])


def test_what_comes_again_after_a_resume_is_shown_once() -> None:
    answer = Answer()
    answer.take(delta(1, 3, "one two three"))
    assert answer.take(delta(1, 3, "one two three")) == ""
    assert answer.take(delta(4, 4, " four")) == " four"
    assert answer.text == "one two three four"


def test_a_gap_is_noticed() -> None:
    answer = Answer()
    answer.take(delta(1, 2, "a"))
    answer.take(delta(4, 5, "b"))
    assert answer.gaps == [(2, 4)]


def test_reasoning_counts_but_is_not_part_of_the_text() -> None:
    answer = Answer()
    assert answer.take(delta(1, 5, "hm", kind="reasoning")) == ""
    assert (answer.text, answer.sequence_number) == ("", 5)


def test_a_call_of_a_tool_is_shown_on_a_line_of_its_own_and_is_not_part_of_the_text() -> None:
    answer = Answer()
    deltas = [
        delta(1, 1, "hm", "reasoning"), delta(2, 2, "Wait"), delta(3, 3, "."), delta(4, 4, "get_", "tool_name"),
        delta(5, 5, "weather", "tool_name"), delta(6, 6, '{"city":', "tool_arguments"),
        delta(7, 7, ' "Rome"}', "tool_arguments"), delta(8, 8, "get_time", "tool_name", 1), delta(9, 9, "Done"),
    ]  # fmt: skip
    shown = "".join(answer.take(each) for each in deltas)
    assert shown == 'Wait.\n→ get_weather {"city": "Rome"}\n→ get_time\nDone'
    assert answer.text == "Wait.Done"
    assert Answer().take(delta(1, 1, "f", "tool_name")) == "→ f"


@contextmanager
def gateway(*connections: Callable[[ServerConnection], None]) -> Iterator[str]:
    """One of these for each connection, in their order."""
    stories = iter(connections)
    with serve(lambda socket: next(stories)(socket), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/v1/stream"
        finally:
            server.shutdown()
            thread.join(timeout=60)


REFUSED = ErrorBody(message="Another gateway serves it.", type="server_error", code="replay_unavailable")
TERMINAL = TerminalMessage(
    response_id="r",
    sequence_number=3,
    code="cancelled",
    finish_reason="stop",
    finish_reasons=["stop"],
    model="m",
    usage=UsageBody(
        prompt_tokens=1, completion_tokens=2, total_tokens=3, prompt_tokens_details={}, completion_tokens_details={}
    ),
)


def test_an_interrupt_while_the_connection_is_lost_cancels_the_answer_over_the_next_one() -> None:
    closed = threading.Event()
    heard: list[Any] = []

    def breaks_off(socket: ServerConnection) -> None:
        request_id = json.loads(socket.recv())["request_id"]
        socket.send(Accepted(request_id=request_id, response_id="r").encode())
        socket.send(delta(1, 2, "Once upon").encode())
        socket.close()
        closed.set()

    def cancels(socket: ServerConnection) -> None:
        heard.extend(json.loads(socket.recv()) for _ in range(2))
        socket.send(TERMINAL.encode())

    def interrupted(_text: str) -> None:
        assert closed.wait(60)
        raise KeyboardInterrupt

    with gateway(breaks_off, cancels) as url, Chat(url, "key") as chat:
        answer = chat.ask({"messages": []}, interrupted)
    assert (answer.text, answer.terminal) == ("Once upon", TERMINAL)
    assert heard == [
        {"type": "resume", "response_id": "r", "starting_after": 2},
        {"type": "cancel", "response_id": "r"},
    ]


def test_who_is_refused_waits_as_advised_longer_each_time_and_goes_on_over_a_new_connection() -> None:
    waited_s: list[float] = []
    refusals = [ErrorMessage(error=REFUSED, response_id="r", retry_after_ms=2_000, resumable=True)] * 2

    def begins(socket: ServerConnection) -> None:
        request_id = json.loads(socket.recv())["request_id"]
        socket.send(Accepted(request_id=request_id, response_id="r").encode())
        socket.send(delta(1, 2, "Once upon").encode())
        socket.send(ErrorMessage(error=REFUSED, response_id="r", resumable=True).encode())
        with suppress(ConnectionClosed):
            socket.recv()

    def refuses(socket: ServerConnection) -> None:
        assert json.loads(socket.recv()) == {"type": "resume", "response_id": "r", "starting_after": 2}
        socket.send(refusals.pop().encode())
        with suppress(ConnectionClosed):
            socket.recv()

    def goes_on(socket: ServerConnection) -> None:
        socket.recv()
        socket.send(delta(3, 3, " a time").encode())
        socket.send(TERMINAL.encode())

    with gateway(begins, refuses, refuses, goes_on) as url, Chat(url, "key", sleep=waited_s.append) as chat:
        answer = chat.ask({"messages": []})
    assert (answer.text, answer.terminal, answer.resumed) == ("Once upon a time", TERMINAL, 3)
    assert waited_s[0] < 1 < 2 <= waited_s[1]
    assert waited_s[2] >= 2


def test_a_chat_bears_its_key_past_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(socket: ServerConnection) -> None:
        request_id = json.loads(socket.recv())["request_id"]
        socket.send(ErrorMessage(error=REFUSED, request_id=request_id).encode())

    with (
        gateway(refuses) as url,
        proxy_of_the_environment(monkeypatch) as told,
        suppress(ChatError),
        Chat(url, "key") as chat,
    ):
        assert chat.ask({"messages": []}).error is not None
    assert told == []


def test_pauses_grow_are_never_in_step_and_end_when_nothing_new_comes() -> None:
    pauses = Pauses()
    now_s, waits_s = 1_000.0, []
    while (wait_s := pauses.next_s(now_s, None, 0)) is not None:
        waits_s.append(wait_s)
        now_s += wait_s
    assert waits_s[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert RECONNECT_TIMEOUT_S < sum(waits_s) < RECONNECT_TIMEOUT_S + 10
    pauses.went_on()
    assert pauses.next_s(now_s, None, 0) == 0.25
    assert pauses.next_s(now_s, 3_000, 0) == 3.0
    assert pauses.next_s(now_s, None, 1) == 1.5


STATUS = {
    "gateway": "http://127.0.0.1:8080", "gateways": ["http://127.0.0.1:8080"], "api_key": "sk-sluice-x",
    "tenant": "demo", "data": "/home/me/a stack",
}  # fmt: skip


def test_the_banner_shows_the_address_the_key_and_three_commands() -> None:
    shown = banner(STATUS, Path("/home/me/a stack"))
    assert "http://127.0.0.1:8080/" in shown
    assert "curl -N http://127.0.0.1:8080/v1/chat/completions -H 'Authorization: Bearer sk-sluice-x'" in shown
    assert 'sluice chat "' in shown
    assert 'deploy/examples/producer.py "' in shown
    assert "--data" not in shown


def test_the_banner_shows_every_gateway_where_there_are_several() -> None:
    others = ["http://127.0.0.1:8081", "http://127.0.0.1:8082"]
    assert "Gateways" not in banner(STATUS, Path("/home/me/a stack"))
    shown = banner({**STATUS, "gateways": [STATUS["gateway"], *others]}, Path("/home/me/a stack"))
    assert all(each in shown for each in others)


def test_commands_for_another_folder_name_it() -> None:
    shown = banner(STATUS, Path("/srv/sluice/.data"))
    for command in ("sluice chat", "deploy/examples/producer.py", "sluice status"):
        assert f"{command} --data '/home/me/a stack'" in shown


def test_what_goes_on_by_itself_is_not_said_to_end_with_the_terminal() -> None:
    assert "Ctrl-C" in banner(STATUS, Path("/srv/sluice/.data"))
    shown = banner(STATUS, Path("/srv/sluice/.data"), detached=True)
    assert "Ctrl-C" not in shown
    assert "sluice down --data '/home/me/a stack'" in shown
