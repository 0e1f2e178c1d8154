"""A client that does not read is bounded, cut off by name, and delays nobody."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Container, MutableMapping
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from streams.gateway.fan_out.hub import Hub, Sweep
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import RedisHistory
from streams.gateway.http import whole
from streams.gateway.http.dialects.chat_events import ChatEvents
from streams.gateway.http.dialects.openai import EventsForm
from streams.gateway.http.sse import SseResponse
from streams.gateway.websocket.deaf_peers import DeafPeers
from streams.gateway.websocket.session import Socket
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.raw_peers import buffered, narrow_peer

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "on_disconnect": "continue"}
CHARS, RECORDS = 50_000, 200


def deaf_socket(stack: Stack) -> socket.socket:
    """Connected, with the smallest receive buffer; whoever holds it will not read."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.connect(("127.0.0.1", stack.port))
    return deaf


async def test_a_deaf_sse_client_is_cut_off_while_another_viewer_gets_everything(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "deaf", viewer_stall_ms=1_000, viewer_lag_bytes=100_000)
    async with serving(settings, memory_log(settings)) as stack:
        deaf = deaf_socket(stack)
        body = json.dumps({**HELLO, "stream": True}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        deaf.sendall(head.encode() + body)
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        async with connect(
            stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None, max_size=None
        ) as reader:
            await reader.send(json.dumps({"type": "resume", "response_id": request.response_id}))
            await until(lambda: stack.runtime.hub.viewers == 2, "both are watching")
            received = 0
            for number in range(1, RECORDS + 1):
                stack.pipeline.release(request, number, ["x" * CHARS])
                while received < number * CHARS:
                    async with asyncio.timeout(60):
                        message = json.loads(await reader.recv())
                    received += len(message.get("text", ""))
                stream = stack.runtime.hub.get(request.response_id)
                assert stream is not None
                kept = sum(len(span.text) for span in stream.spans[: max(0, stream.spans_kept - stream.trimmed)])
                assert kept <= 100_000, "a slow viewer holds no more than its bound"
            await until(lambda: stack.runtime.hub.viewers == 1, "the deaf viewer is given up")
            stack.pipeline.end(request, RECORDS + 1)
            async with asyncio.timeout(60):
                assert json.loads(await reader.recv())["type"] == "terminal"
        await until(lambda: not stack.server.server_state.connections, "its connection is given up too")
        deaf.close()


async def test_a_deaf_websocket_is_cut_off(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "deafws", viewer_stall_ms=300)
    async with serving(settings, memory_log(settings)) as stack:
        deaf = deaf_socket(stack)
        async with asyncio.timeout(60):
            client = await connect(
                stack.websocket_url, sock=deaf, additional_headers={"x-api-key": KEY}, proxy=None, max_queue=1
            )
        await client.send(json.dumps({"type": "request", "request_id": "1", "body": HELLO}))
        request = await stack.pipeline.next_request()
        client.transport.pause_reading()
        stack.pipeline.start(request)
        for number in range(1, RECORDS + 1):
            stack.pipeline.release(request, number, ["x" * CHARS])
        await until(lambda: stack.runtime.hub.released_tokens == RECORDS, "the gateway has read everything")
        await until(lambda: stack.runtime.hub.viewers == 0, "the deaf viewer is given up")
        await until(lambda: not stack.server.server_state.connections, "and so is its connection")
        client.transport.abort()


async def test_who_waits_for_history_keeps_its_socket_and_all_its_responses(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = gateway_settings(redis_url, "patient", viewer_stall_ms=1_000)
    sweeps, may_read = 0, asyncio.Event()
    sweep, read = Hub.sweep, RedisHistory.read

    def counted(hub: Hub, now_ms: int, owned: Container[int]) -> Sweep:
        nonlocal sweeps
        sweeps += 1
        return sweep(hub, now_ms, owned)

    async def late(*arguments: Any, **options: Any) -> Replay:
        await may_read.wait()
        return await read(*arguments, **options)

    async with (
        serving(settings, memory_log(settings)) as stack,
        connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None) as first,
        connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None) as second,
        asyncio.timeout(60),
    ):
        await first.send(json.dumps({"type": "request", "request_id": "1", "body": HELLO}))
        old = await stack.pipeline.next_request()
        await second.send(json.dumps({"type": "request", "request_id": "1", "body": HELLO}))
        live = await stack.pipeline.next_request()
        for request in (old, live):
            stack.pipeline.start(request)
            stack.pipeline.release(request, 1, ["one "])
        await heard(first, "one ")
        await heard(second, "one ")
        hub = stack.runtime.hub
        await until(lambda: (stream := hub.get(old.response_id)) and stream.trimmed, "its beginning stands in history")
        monkeypatch.setattr(RedisHistory, "read", late)
        monkeypatch.setattr(Hub, "sweep", counted)
        await second.send(json.dumps({"type": "resume", "response_id": old.response_id}))
        await until(lambda: (stream := hub.get(old.response_id)) and len(stream.viewers) == 2, "it waits for history")
        stack.pipeline.release(old, 2, ["two "])
        await until(lambda: sweeps >= 4, "it has waited for longer than a slow viewer may")
        stack.pipeline.release(live, 2, ["two "])
        await heard(second, "two ")
        may_read.set()
        texts = await heard(second, "two ")
        assert "".join(texts) == "one two "


async def heard(socket: ClientConnection, last: str) -> list[str]:
    """The texts up to one that ends with `last`."""
    texts: list[str] = []
    while not (texts and texts[-1].endswith(last)):
        message = json.loads(await socket.recv())
        assert message["type"] not in ("error", "closing"), message
        if message["type"] == "delta":
            texts.append(message["text"])
    return texts


async def test_a_deaf_client_of_a_whole_answer_is_cut_off(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "deafwhole", viewer_stall_ms=300)
    async with serving(settings, memory_log(settings)) as stack:
        response_id = await ended_response(stack)
        deaf = deaf_socket(stack)
        path = f"/v1/chat/completions/{response_id}"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        await until(lambda: stack.server.server_state.connections, "it is connected")
        await until(lambda: not stack.server.server_state.connections, "it is given up")
        deaf.close()


@pytest.mark.parametrize("ending", ["", "Connection: close\r\n"], ids=["kept", "closed"])
async def test_who_takes_a_little_of_what_was_answered_is_cut_off_too(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """It counts as nobody's any more, and would be kept for as long as a peer goes on so."""
    monkeypatch.setattr("streams.connections.http_protocol.KEEP_ALIVE_S", 0.2)
    monkeypatch.setattr(whole, "PIECE_BYTES", 100_000_000)  # No answer is sent as it is read.
    settings = gateway_settings(redis_url, "slowtaker", viewer_stall_ms=600_000)
    body = json.dumps({"prompt": "𒀀" * 250_000, "return_token_strs": True}).encode()
    head = (
        f"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{ending}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    async with serving(settings, memory_log(settings)) as stack, narrow_peer(stack) as slow:
        await slow.say(head.encode() + body)
        await until(lambda: buffered(stack) > 1_000_000, "it is answered")
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while stack.server.server_state.connections:
                    await slow.reader.read(1_024)
                    await asyncio.sleep(0.01)
        await until(lambda: not stack.server.server_state.connections, "its connection is given up")


def test_a_peer_is_deaf_that_takes_nothing_for_the_stall_time() -> None:
    peers: DeafPeers[str] = DeafPeers(stall_s=2.0)
    assert peers.judge([("slow", 0), ("deaf", 9)], 0.0) == []
    assert peers.judge([("slow", 1), ("deaf", 9)], 1.0) == []
    assert peers.judge([("slow", 1), ("deaf", 9), ("new", 0)], 2.0) == ["deaf"]
    assert peers.judge([("slow", 2), ("new", 0)], 3.0) == []
    assert peers.judge([("slow", 3), ("deaf", 9)], 4.0) == [], "who is new, or was away, begins anew"


async def ended_response(stack: Stack) -> str:
    """The id of a long response that has left memory: only history has it."""
    async with connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None, max_size=None) as reader:
        await reader.send(json.dumps({"type": "request", "request_id": "1", "body": HELLO}))
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for number in range(1, RECORDS + 1):
            stack.pipeline.release(request, number, ["x" * CHARS])
        stack.pipeline.end(request, RECORDS + 1)
        async with asyncio.timeout(60):
            while json.loads(await reader.recv())["type"] != "terminal":
                pass
    await until(lambda: stack.runtime.hub.get(request.response_id) is None, "the response leaves memory")
    return request.response_id


async def never(_message: object) -> None:
    """The send of a server whose client does not read."""
    await asyncio.Event().wait()


async def test_a_replay_to_a_deaf_sse_client_ends(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "deafreplay", viewer_stall_ms=100)
    async with serving(settings, memory_log(settings)) as stack:
        response_id = await ended_response(stack)
        gateway = stack.runtime.gateway
        follower = await gateway.resume(gateway.authenticate(KEY), response_id, 0)
        assert follower.viewer is None
        sent: list[str] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message["type"])
            if message["type"] == "http.response.body":
                await never(message)

        async def stays() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        released: list[None] = []
        response = SseResponse(
            follower, ChatEvents(response_id, 0, "tiny", EventsForm(include_usage=False)), first=None, headers={},
            metrics=gateway.metrics, queues=gateway.queues, release=lambda: released.append(None), stall_s=0.1,
        )  # fmt: skip
        async with asyncio.timeout(60):
            await response({"type": "http"}, stays, send)
        assert (sent, released) == (["http.response.start", "http.response.body"], [None])


async def test_a_replay_to_a_deaf_websocket_ends(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "deafreplayws", viewer_stall_ms=100)
    async with serving(settings, memory_log(settings)) as stack:
        response_id = await ended_response(stack)
        inbox = [{"type": "websocket.receive", "text": json.dumps({"type": "resume", "response_id": response_id})}]
        spans = 0

        async def receive() -> MutableMapping[str, Any]:
            if not inbox:
                await asyncio.Event().wait()
            return inbox.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal spans
            if '"type":"delta"' in message["text"]:
                spans += 1
                await never(message)

        async with asyncio.timeout(60):
            await Socket(stack.runtime.gateway, receive, send, "").run(KEY)
        assert spans == 1
