"""Listening with TLS. The server's own listener would hold whoever never shakes hands uncounted, and for a minute."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from streams.connections.http_protocol import HttpProtocol
from streams.connections.open_connections import OpenConnections
from streams.gateway.metrics import GatewayMetrics

ACCEPT_AGAIN_S: Final = 0.1

_log = structlog.get_logger()


class Handshake:
    """A connection until its peer has shaken hands; it counts from the moment it was accepted."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()


class TlsListener:
    """What uvicorn expects of a server that listens; `protocol` makes one protocol for each connection."""

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, protocol: Callable[[], HttpProtocol],
        counted: OpenConnections, metrics: GatewayMetrics, *, handshake_timeout_s: float,
    ) -> None:  # fmt: skip
        self.sockets = [listener]
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._counted = counted
        self._metrics = metrics
        self._handshake_timeout_s = handshake_timeout_s
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                peer, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                _log.warning("connection_not_accepted", why=str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            peer.setblocking(False)
            handshake = Handshake()
            if not self._counted.opened(handshake, address[0]):
                self._metrics.refused.labels("overloaded").inc()
                peer.close()
                continue
            task = handshake.task = self._loop.create_task(self._shake_hands(handshake, peer))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, handshake: Handshake, peer: socket.socket) -> None:
        def protocol() -> HttpProtocol:
            made = self._protocol()
            made.handshake = handshake
            return made

        try:
            await self._loop.connect_accepted_socket(
                protocol, peer, ssl=self._context, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except OSError:
            self._metrics.refused.labels("handshake_failed").inc()
        finally:
            self._counted.closed(handshake)

    def close(self) -> None:
        """Accepts nobody any more; who has not shaken hands yet is hung up on."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        await asyncio.wait((self._accepting, *self._handshakes))
