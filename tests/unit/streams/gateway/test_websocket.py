"""Chat frontends over one WebSocket: many responses, resume, cancel, and every refusal as a typed event."""

import asyncio
import json
import socket as socketlib
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from schemas.brownout import Brownout
from schemas.endings import EndingCode
from schemas.websocket import Accepted, Delta, ErrorMessage, Pong, StartedMessage, TerminalMessage
from streams.gateway.fan_out.spans import Span
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.websocket import session
from streams.gateway.websocket.endpoint import origin_allowed
from streams.gateway.websocket.protocol import MAX_STRANGERS_MESSAGE_BYTES, text_frame
from streams.gateway.websocket.watched import Watched
from tests.unit.streams.gateway.gateway_stack import KEY, OTHER_KEY, Stack, until
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.socket_clients import dial, hear, hear_until_terminal, say


async def test_a_request_is_accepted_started_streamed_and_ended(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        accepted = await hear(socket)
        assert isinstance(accepted, Accepted)
        assert accepted.request_id == "r1"
        request = await stack.pipeline.answer(["Par", "is", "."])
        assert request.response_id == accepted.response_id
        seen, text = await hear_until_terminal(socket)
    assert isinstance(seen[0], StartedMessage)
    assert text == "Paris."
    end = seen[-1]
    assert (end.code, end.finish_reason, end.sequence_number, end.error) == ("completed", "stop", 4, None)
    assert (end.usage.completion_tokens, end.usage.prompt_tokens_details) == (3, {"cached_tokens": 1})


async def test_one_socket_carries_many_responses_at_once(stack: Stack) -> None:
    async with dial(stack) as socket:
        for number in range(20):
            await say(socket, type="request", request_id=str(number), body=HELLO)
        await until(lambda: len(stack.pipeline.requests()) == 20, "all are accepted")
        requests = stack.pipeline.requests()
        for request in requests:
            stack.pipeline.start(request)
        for number in range(1, 6):
            for request in requests:
                stack.pipeline.release(request, number, [f"{request.response_id[-4:]}{number} "])
        for request in requests:
            stack.pipeline.end(request, 6)
        texts: dict[str, str] = {}
        ended: set[str] = set()
        while len(ended) < 20:
            message = await hear(socket)
            if isinstance(message, Delta):
                texts[message.response_id] = texts.get(message.response_id, "") + message.text
            elif isinstance(message, TerminalMessage):
                ended.add(message.response_id)
    assert texts == {r.response_id: "".join(f"{r.response_id[-4:]}{n} " for n in range(1, 6)) for r in requests}


async def test_who_watches_the_same_response_sees_the_same_deltas_made_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    delta = Watched.delta

    def count(watched: Watched, span: Span) -> bytes:
        made.append(span.sequence_number)
        return delta(watched, span)

    monkeypatch.setattr(Watched, "delta", count)
    async with dial(stack) as one, dial(stack) as two:
        await say(one, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["a "])
        assert isinstance(await hear(one), Accepted)
        assert isinstance(await hear(one), StartedMessage)
        assert (await hear(one)).text == "a "
        await say(two, type="resume", response_id=request.response_id, starting_after=1)
        await until(lambda: stack.runtime.hub.viewers == 2, "both watch")
        made.clear()
        for number in range(2, 30):
            stack.pipeline.release(request, number, ["word "])
            assert (await hear(one)) == (await hear(two))
        assert made == list(range(2, 30))
        stack.pipeline.end(request, 30)
        assert isinstance(await hear(one), TerminalMessage)
        assert isinstance(await hear(two), TerminalMessage)


@pytest.mark.parametrize("length", [0, 1, 125, 126, 65_535, 65_536, 100_000])
def test_a_frame_made_beforehand_is_the_one_that_the_library_would_make(length: int) -> None:
    payload = b"x" * length
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)


async def test_a_refusal_is_a_terminal_with_code_advice_and_error(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        stack.pipeline.end(await stack.pipeline.next_request(), 1, EndingCode.RATE_LIMITED_TOKENS, limits={"a": 1})
        seen, text = await hear_until_terminal(socket)
    end = seen[-1]
    assert (end.code, text, end.limits) == ("rate_limited_tokens", "", {"a": 1})
    assert end.error.code == "rate_limited_tokens"
    assert end.retry_after_ms >= 1_000


async def test_who_is_given_less_is_told_at_the_start_and_the_end(stack: Stack) -> None:
    cut = Brownout(level=1, max_tokens=2)
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request, brownout=cut, lowered_from="standard")
        stack.pipeline.release(request, 1, ["one ", "two"])
        stack.pipeline.end(request, 3, finish_reasons=["length"], brownout=cut)
        seen, _ = await hear_until_terminal(socket)
        await say(socket, type="request", request_id="r2", body=HELLO)
        await stack.pipeline.answer(["as ", "ever"])
        others, _ = await hear_until_terminal(socket)
    told = [message.brownout for message in seen if isinstance(message, StartedMessage | TerminalMessage)]
    assert told == [cut, cut]
    assert [message.lowered_from for message in seen if isinstance(message, StartedMessage)] == ["standard"]
    assert seen[-1].finish_reason == "length"
    assert not any({"brownout", "lowered_from"} & set(message.model_dump()) for message in others)


async def test_a_dropped_socket_resumes_where_it_stopped(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body={**HELLO, "on_disconnect": "continue"})
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["one ", "two "])
        while not isinstance(message := await hear(socket), Delta):
            pass
        seen = message.sequence_number
    stack.pipeline.release(request, 3, ["three ", "four "])
    await until(lambda: stack.runtime.hub.released_tokens == 4, "tokens arrive meanwhile")
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=request.response_id, starting_after=seen)
        stack.pipeline.release(request, 5, ["five"])
        stack.pipeline.end(request, 6)
        _, rest = await hear_until_terminal(socket)
    words = ["one ", "two ", "three ", "four ", "five"]
    assert rest == "".join(words[seen:])
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=request.response_id, starting_after=1)
        assert (await hear_until_terminal(socket))[1] == "two three four five"


async def test_cancel_reaches_control_and_ends_with_the_terminal(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        await say(socket, type="cancel", response_id=request.response_id)
        await until(stack.pipeline.cancels, "the cancel is on the log")
        stack.pipeline.end(request, 1, EndingCode.CANCELLED)
        seen, _ = await hear_until_terminal(socket)
    assert (seen[-1].code, seen[-1].error.code) == ("cancelled", "cancelled")


async def test_a_cancel_of_what_has_ended_is_told_how_it_ended(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        answering = asyncio.ensure_future(stack.pipeline.answer(["Hi"]))
        seen, _ = await hear_until_terminal(socket)
        request = await answering
        for _ in range(2):
            await say(socket, type="cancel", response_id=request.response_id)
            assert await hear(socket) == seen[-1]
    async with dial(stack) as socket:
        await say(socket, type="cancel", response_id=request.response_id)
        assert await hear(socket) == seen[-1], "also on a socket that never had it"
    assert stack.pipeline.cancels() == []


@pytest.mark.usefixtures("leases_of_a_second")
async def test_a_client_that_closes_cancels_by_default(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        stack.pipeline.start(await stack.pipeline.next_request())
        await hear(socket)
    await until(stack.pipeline.cancels, "the response is cancelled")
    assert stack.pipeline.cancels()[0].reason == "disconnect"


async def test_ping_is_answered(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="ping", nonce="n1")
        assert await hear(socket) == Pong(nonce="n1")


@pytest.mark.parametrize("way", ["header", "x-api-key", "subprotocol", "message"])
async def test_the_key_comes_by_header_subprotocol_or_first_message(stack: Stack, way: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "header": {},
        "x-api-key": {"additional_headers": {"x-api-key": KEY}},
        "subprotocol": {"additional_headers": {}, "subprotocols": ["sluice.v1", f"sluice.key.{KEY}"]},
        "message": {"additional_headers": {}},
    }
    async with dial(stack, **ways[way]) as socket:
        assert socket.subprotocol == ("sluice.v1" if way == "subprotocol" else None)
        if way == "message":
            await say(socket, type="auth", api_key=KEY)
        await say(socket, type="ping")
        assert isinstance(await hear(socket), Pong)


@pytest.mark.parametrize(
    ("options", "first", "code", "reason"),
    [
        ({"additional_headers": {"authorization": "Bearer wrong"}}, None, 4401, "unauthenticated"),
        ({"additional_headers": {}}, '{"type":"auth","api_key":"wrong"}', 4401, "unauthenticated"),
        ({"additional_headers": {}}, '{"type":"ping"}', 4401, "unauthenticated"),
        ({}, b"\x00\x01", 1003, "not_text"),
    ],
    ids=["bad header", "bad message", "no key first", "binary"],
)
async def test_a_socket_is_closed_with_a_named_reason(
    stack: Stack, options: dict[str, Any], first: str | bytes | None, code: int, reason: str
) -> None:
    async with dial(stack, **options) as socket:
        if first is not None:
            await socket.send(first)
        closing = await hear(socket)
        assert (closing.type, closing.code, closing.reason) == ("closing", code, reason)
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        assert (socket.close_code, socket.close_reason) == (code, reason)


async def test_a_large_message_without_a_key_is_closed_unparsed(stack: Stack) -> None:
    large = json.dumps({"type": "auth", "api_key": KEY, "padding": "x" * MAX_STRANGERS_MESSAGE_BYTES})
    async with dial(stack, additional_headers={}) as socket:
        await socket.send(large)
        assert (await hear(socket)).reason == "too_large"
    async with dial(stack) as socket:
        await socket.send(large)
        assert isinstance(await hear(socket), ErrorMessage), "a known client may send as much as it may ask for"


async def test_no_key_in_time_closes(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AUTH_TIMEOUT_S", 0.05)
    async with dial(stack, additional_headers={}) as socket:
        assert (await hear(socket)).reason == "auth_timeout"


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_request", None),
        ("[1]", "invalid_request", None),
        ('{"type":"ping","type":"ping"}', "invalid_request", None),
        ('{"type":' * 5_000 + "1" + "}" * 5_000, "invalid_request", None),
        ("{}", "invalid_request", "type"),
        ('{"type":"shout"}', "invalid_request", "type"),
        ('{"type":"request","request_id":"a"}', "invalid_request", "body"),
        ('{"type":"request","request_id":7,"body":{}}', "invalid_request", "request_id"),
        ('{"type":"request","request_id":"a","body":{},"extra":1}', "unsupported_parameter", "extra"),
        (json.dumps({"type": "request", "request_id": "a", "body": {**HELLO, "n": 129}}), "invalid_request", "n"),
        (
            json.dumps({"type": "request", "request_id": "a", "body": {**HELLO, "stream": False}}),
            "invalid_request", "body.stream",
        ),
        ('{"type":"resume","response_id":"x","starting_after":-1}', "invalid_request", "starting_after"),
        ('{"type":"resume","response_id":"../etc"}', "response_not_found", "response_id"),
        ('{"type":"cancel","response_id":"resp_a-1_b"}', "response_not_found", "response_id"),
        (json.dumps({"type": "auth", "api_key": KEY}), "invalid_request", "type"),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
async def test_a_bad_message_gets_an_error_and_the_socket_lives(
    stack: Stack, message: str, code: str, param: str | None
) -> None:
    async with dial(stack) as socket:
        await socket.send(message)
        answer = await hear(socket)
        assert isinstance(answer, ErrorMessage)
        assert (answer.error.code, answer.error.param) == (code, param)
        await say(socket, type="ping")
        assert isinstance(await hear(socket), Pong)
    assert stack.pipeline.requests() == []


async def test_a_flood_of_nonsense_closes_the_socket(stack: Stack) -> None:
    async with dial(stack) as socket:
        for _ in range(50):
            await socket.send("nonsense")
        kinds = [message.type async for message in _all(socket)]
    assert kinds[-1] == "closing"
    assert kinds.count("error") == session.MAX_ERRORS
    assert socket.close_reason == "too_many_errors"


async def _all(socket: ClientConnection) -> Any:
    try:
        while True:
            yield await hear(socket)
    except ConnectionClosed:
        return


async def test_too_large_a_message_closes_with_1009_and_disturbs_nobody(stack: Stack) -> None:
    async with dial(stack) as other, dial(stack) as socket:
        await socket.send(" " * 5_000_000)
        closing = await hear(socket)
        assert (closing.code, closing.reason, closing.resumable) == (1009, "too_large", True)
        with pytest.raises(ConnectionClosed):
            await hear(socket)
        assert socket.close_code == 1009
        await say(other, type="ping")
        assert isinstance(await hear(other), Pong)


def _close_frames(stack: Stack, opening: bytes, more: bytes, times: int) -> list[tuple[int, bytes]]:
    """Sends `opening` and then `more` again and again without reading; returns the frames that came back."""
    with socketlib.create_connection(("127.0.0.1", stack.port), timeout=60) as raw:
        raw.sendall(
            b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += raw.recv(1)
        raw.sendall(opening)
        for _ in range(times):
            raw.sendall(more)
        told = b""
        while part := raw.recv(65_536):
            told += part
    frames = []
    while told:
        size, start = (told[1], 2) if told[1] < 126 else (int.from_bytes(told[2:4], "big"), 4)
        frames.append((told[0], told[start : start + size]))
        told = told[start + size :]
    return frames


async def test_who_sends_too_much_without_reading_is_told_so_instead_of_being_reset(stack: Stack) -> None:
    """The frame says 1 GB; some of it is on its way before the client looks at what the gateway says."""
    opening = b"\x81\xff" + (10**9).to_bytes(8, "big") + b"mask"
    closing, close = await asyncio.to_thread(_close_frames, stack, opening, b" " * 1_000_000, 20)
    assert json.loads(closing[1])["reason"] == "too_large"
    assert close[0] == 0x88
    assert int.from_bytes(close[1][:2], "big") == 1009


async def test_a_request_id_is_taken_until_its_response_has_ended(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="same", body=HELLO)
        assert isinstance(await hear(socket), Accepted)
        await say(socket, type="request", request_id="same", body=HELLO)
        refused = await hear(socket)
        assert (refused.request_id, refused.error.param) == ("same", "request_id")
        await stack.pipeline.answer(["x"])
        await hear_until_terminal(socket)
        await say(socket, type="request", request_id="same", body=HELLO)
        assert isinstance(await hear(socket), Accepted)


async def test_another_tenant_cannot_watch_or_cancel(stack: Stack) -> None:
    async with dial(stack) as socket, dial(stack, additional_headers={"x-api-key": OTHER_KEY}) as stranger:
        await say(socket, type="request", request_id="r1", body=HELLO)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for kind in ("resume", "cancel"):
            await say(stranger, type=kind, response_id=request.response_id)
            assert (await hear(stranger)).error.code == "response_not_found"
        assert stack.pipeline.cancels() == []


async def test_a_stopping_gateway_says_so_and_the_stream_can_be_resumed(stack: Stack) -> None:
    async with dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body=HELLO)
        stack.pipeline.start(await stack.pipeline.next_request())
        while not isinstance(await hear(socket), StartedMessage):
            pass
        await stack.runtime.stop()
        messages = [message async for message in _all(socket)]
    assert [m.type for m in messages] == ["error", "closing"]
    assert (messages[0].error.code, messages[0].resumable) == ("going_away", True)
    assert socket.close_code == 1001


async def test_who_asks_a_gateway_that_stops_is_told_to_ask_elsewhere(stack: Stack) -> None:
    """Before its turn among those who leave: refused, it would ask again at the same gateway."""
    async with dial(stack) as socket:
        await say(socket, type="ping", nonce="1")
        await hear(socket)
        await stack.runtime.gateway.dismiss()
        await say(socket, type="ping", nonce="2")
        assert (await hear(socket)).type == "pong", "it serves on"
        await say(socket, type="request", request_id="r1", body=HELLO)
        messages = [message async for message in _all(socket)]
    assert ([message.type for message in messages], socket.close_code) == (["closing"], 1001)
    assert stack.pipeline.requests() == []


async def test_every_socket_is_told_when_the_process_stops(stack: Stack) -> None:
    async with dial(stack) as watching, dial(stack) as idle, dial(stack, additional_headers={}) as nobody:
        await say(watching, type="request", request_id="r1", body=HELLO)
        stack.pipeline.start(await stack.pipeline.next_request())
        while not isinstance(await hear(watching), StartedMessage):
            pass
        stack.server.stop_soon()
        async with asyncio.timeout(60):
            told = [[message async for message in _all(socket)] for socket in (watching, idle, nobody)]
    assert [[m.type for m in messages] for messages in told] == [["error", "closing"], ["closing"], ["closing"]]
    assert {messages[-1].reason for messages in told} == {"going_away"}
    assert {socket.close_code for socket in (watching, idle, nobody)} == {1001}


def test_pages_of_other_origins_can_be_kept_out() -> None:
    allowed = {"https://chat.example"}
    assert origin_allowed(None, ["gw:8080", "chat.example.org"], allowed)
    assert origin_allowed("https://chat.example", ["gw:8080", "chat.example.org"], allowed)
    assert origin_allowed("http://gw:8080", ["gw:8080", "chat.example.org"], allowed)
    assert not origin_allowed("https://evil.example", ["gw:8080", "chat.example.org"], allowed)
    assert not origin_allowed("null", ["gw:8080", "chat.example.org"], allowed)
    assert not origin_allowed("https://evil.example", ["gw:8080", "chat.example.org"], ())
    assert origin_allowed("https://evil.example", ["gw:8080", "chat.example.org"], ["*"])
    assert origin_allowed("https://chat.example.org", ["gw:8080", "chat.example.org"], ())


@pytest.mark.parametrize("is_transient", [True, False])
async def test_a_refused_resume_says_whether_to_come_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, is_transient: bool
) -> None:
    async def late(*_: Any, **__: Any) -> None:
        raise HistoryUnavailable("late", is_transient=is_transient)

    monkeypatch.setattr(History, "read", late)
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=stack.settings.response_ids.mint(0), starting_after=3)
        refused = await hear(socket)
    assert isinstance(refused, ErrorMessage)
    assert refused.error.code == "replay_unavailable"
    assert (refused.resumable, refused.retry_after_ms is not None) == (is_transient, is_transient)


@pytest.mark.parametrize("how", ["header", "message"])
@pytest.mark.parametrize("kind", ["request", "resume", "cancel"])
async def test_a_revoked_key_ends_with_its_next_message_on_an_open_socket(stack: Stack, how: str, kind: str) -> None:
    async with dial(stack, **({} if how == "header" else {"additional_headers": {}})) as socket:
        if how == "message":
            await say(socket, type="auth", api_key=KEY)
        await say(socket, type="ping", nonce="1")
        assert await hear(socket) == Pong(nonce="1")
        stack.directory.revoked.add(KEY)
        body = {"request_id": "r1", "body": HELLO} if kind == "request" else {"response_id": "resp_x"}
        with suppress(ConnectionClosed):  # It may have closed by itself.
            await say(socket, type=kind, **body)
        assert (await hear(socket)).reason == "unauthenticated"
        with pytest.raises(ConnectionClosed) as closed:
            await hear(socket)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4401
    assert stack.pipeline.requests() == []
