"""What clients put on the wire, byte for byte, and what comes back: upgrades, old versions, expectations."""

import asyncio
import json
from typing import Any

import pytest

from streams.connections.http_protocol import HttpProtocol
from streams.gateway.http import body as bodies
from tests.unit.streams.gateway.gateway_stack import KEY, Stack

HELLO: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}


def chat(*headers: str, version: str = "1.1", body: bytes | None = None, **fields: Any) -> tuple[bytes, bytes]:
    """Head and body of a chat."""
    body = json.dumps({**HELLO, **fields}).encode() if body is None else body
    lines = [
        f"POST /v1/chat/completions HTTP/{version}", "Host: x", f"Authorization: Bearer {KEY}",
        "Content-Type: application/json", *headers,
    ]  # fmt: skip
    if not any(h.lower().startswith("content-length") for h in headers):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body


async def exchange(stack: Stack, data: bytes, *, pieces: int = 1) -> bytes:
    """Everything that comes back until the gateway hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    try:
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await writer.drain()
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("connection", ["Upgrade, HTTP2-Settings, close", "close, upgrade"])
async def test_a_wish_for_http_2_is_ignored_and_the_body_is_kept(stack: Stack, connection: str, pieces: int) -> None:
    """The JDK's client wishes for it by default."""
    answering = asyncio.ensure_future(stack.pipeline.answer(["Paris"]))
    head, body = chat(f"Connection: {connection}", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    told = await exchange(stack, head + body, pieces=pieces)
    await answering
    assert told.startswith(b"HTTP/1.1 200"), told
    assert b"Paris" in told


async def test_a_wish_for_http_2_leaves_the_connection_open_for_more(stack: Stack) -> None:
    upgrade = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (await exchange(stack, upgrade * 2 + last)).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_of_http_1_0_gets_no_chunks(stack: Stack, stream: bool) -> None:
    answering = asyncio.ensure_future(stack.pipeline.answer(["Par", "is"]))
    head, body = chat(version="1.0", stream=stream)
    told = await exchange(stack, head + body)
    await answering
    answer, _, content = told.partition(b"\r\n\r\n")
    assert b"chunked" not in answer.lower()
    assert b"connection: close" in answer.lower()
    if stream:
        assert content.endswith(b"data: [DONE]\n\n")
        assert all(line.partition(b":")[0] in (b"", b"data", b"id", b"retry") for line in content.splitlines())
    else:
        assert json.loads(content)["choices"][0]["message"]["content"] == "Paris"


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent(stack: Stack) -> None:
    head, _ = chat("Expect: 100-continue", "Content-Length: 50000000", body=b"")
    told = await exchange(stack, head)
    assert told.startswith(b"HTTP/1.1 413"), told


@pytest.mark.parametrize(
    ("length", "begun", "status", "retries"),
    [(50_000_000, b"{", 413, "false"), (50_000_000, b"", 413, "false"), (1_000, b"{", 408, "true")],
)
async def test_a_body_that_is_too_large_stays_so_however_slowly_it_comes(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, length: int, begun: bytes, status: int, retries: str
) -> None:
    """Clients send again what was only late."""
    monkeypatch.setattr(bodies, "BODY_TIMEOUT_S", 0.1)
    head, _ = chat(f"Content-Length: {length}", body=b"")
    told = await exchange(stack, head + begun)
    assert told.startswith(b"HTTP/1.1 %d" % status), told
    assert f"\r\nx-should-retry: {retries}\r\n".encode() in told
    assert (b"\r\nretry-after:" in told) == (retries == "true")


async def test_a_body_that_may_come_is_asked_for(stack: Stack) -> None:
    answering = asyncio.ensure_future(stack.pipeline.answer(["Paris"]))
    head, body = chat("Expect: 100-continue", "Connection: close")
    told = await exchange(stack, head + body)
    await answering
    assert told.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200"), told


async def test_an_idle_connection_is_kept_for_half_a_minute(stack: Stack) -> None:
    """Pools of clients keep theirs, and find out about one that was closed only when they send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(60):
        await reader.readuntil(b"ok")
    [connection] = stack.server.server_state.connections
    assert isinstance(connection, HttpProtocol)
    assert connection.timeout_keep_alive_task is None, "one deadline is enough"
    assert connection.deadline_s is not None
    assert 0 < connection.deadline_s - asyncio.get_running_loop().time() <= 30
    writer.close()
    await writer.wait_closed()
