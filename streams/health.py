"""The small HTTP server by which every process shows how it is.

- `/livez`: it runs. A process that cannot go on ends by itself, so nobody need kill one for any other reason.
- `/readyz`: 200 when it does its work, else 503 with the reason in a line.
- `/metrics`: for Prometheus.

It may be reached from outside, without a key: it answers GET and HEAD, takes no body, and bounds what a connection may
hold and for how long. Where too many are open, the oldest gives way to the newest, so a probe gets through.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus

from prometheus_client import REGISTRY as DEFAULT_REGISTRY
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 8_192
DEADLINE_S = 5.0
"""From a connection's first byte to the last of its answer."""
_TEXT = "text/plain; charset=utf-8"

Ready = Callable[[], str | None]
"""None when ready, else why not."""


class HealthServer:
    """Serves from a thread of its own until `close`. Raises OSError where it cannot listen."""

    def __init__(self, host: str, port: int, ready: Ready, registry: CollectorRegistry = DEFAULT_REGISTRY) -> None:
        self._ready = ready
        self._registry = registry
        self._listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=MAX_CONNECTIONS
        )
        self.port: int = self._listener.getsockname()[1]
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=DEADLINE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=MAX_HEAD_BYTES)
        await self._stopping.wait()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # who is slow, gone, or no client of HTTP learns nothing
        finally:
            self._open.pop(writer, None)

    def _answer(self, head: str) -> bytes:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        accept = ",".join(
            value.strip() for name, _, value in (f.partition(":") for f in fields) if name.lower() == "accept"
        )
        status, kind, body = (
            self._page(path, accept) if method in ("GET", "HEAD") else _refused(HTTPStatus.METHOD_NOT_ALLOWED)
        )
        opening = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return opening.encode() + (b"" if method == "HEAD" else body)

    def _page(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics":
            encode, kind = choose_encoder(accept)
            return HTTPStatus.OK, kind, encode(self._registry)
        if path == "/livez":
            return HTTPStatus.OK, _TEXT, b"alive"
        if path != "/readyz":
            return _refused(HTTPStatus.NOT_FOUND)
        why = self._ready()
        return (HTTPStatus.OK if why is None else HTTPStatus.SERVICE_UNAVAILABLE), _TEXT, (why or "ready").encode()


def _refused(status: HTTPStatus) -> tuple[HTTPStatus, str, bytes]:
    return status, _TEXT, status.phrase.encode()
