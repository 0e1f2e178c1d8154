"""Peers that say what they like over TCP, HTTP or not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.unit.streams.gateway.gateway_stack import KEY, Stack

UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


class Silent:
    """A connection that can be aborted."""

    def abort(self) -> None:
        pass


class Named(Silent):
    """Tells `gone` its name when it is aborted."""

    def __init__(self, name: str, gone: list[str]) -> None:
        self._name = name
        self._gone = gone

    def abort(self) -> None:
        self._gone.append(self._name)


class Peer:
    """A TCP connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        """Also to a gateway that has hung up."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def hear_all(self) -> bytes:
        """Everything until the gateway hangs up."""
        told = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while part := await self.reader.read(65_536):
                    told += part
        return told

    async def hear(self, end: bytes = b"\r\n\r\n") -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.readuntil(end)


@asynccontextmanager
async def peer(stack: Stack) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def narrow_peer(stack: Stack) -> AsyncIterator[Peer]:
    """Has room for little, and reads nothing unless asked to."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    narrow.connect(("127.0.0.1", stack.port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=1_024)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def deaf_peer(stack: Stack) -> AsyncIterator[Peer]:
    """An authenticated WebSocket that reads as little as its buffers allow; nothing is read unless asked for."""
    async with narrow_peer(stack) as stranger:
        await upgraded(stranger, b"Authorization: Bearer " + KEY.encode() + b"\r\n")
        yield stranger


@asynccontextmanager
async def saying(stranger: Peer, data: bytes) -> AsyncIterator[asyncio.Future[None]]:
    """Says it while the block runs."""
    task = asyncio.ensure_future(stranger.say(data))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def status_of(told: bytes) -> int:
    assert told.startswith(b"HTTP/1.1 "), told[:80]
    return int(told.split(b" ", 2)[1])


def masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A client's frame, masked with zeros."""
    head = bytes([(0x80 if fin else 0) | opcode])
    if len(payload) < 126:
        return head + bytes([0x80 | len(payload)]) + b"\0\0\0\0" + payload
    return head + b"\xfe" + len(payload).to_bytes(2, "big") + b"\0\0\0\0" + payload


def buffered(stack: Stack) -> int:
    """What the gateway holds to be sent, over all connections."""
    return sum(c.transport.get_write_buffer_size() for c in stack.server.server_state.connections)


async def upgraded(stranger: Peer, headers: bytes = b"") -> None:
    await stranger.say(UPGRADE + headers + b"\r\n")
    assert status_of(await stranger.hear()) == 101
