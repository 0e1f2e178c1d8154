"""uvicorn as a gateway uses it, with the bounds that its connections obey."""

import asyncio
import resource
import ssl
from pathlib import Path

from starlette.types import ASGIApp

from streams.connections.config import BoundedConfig
from streams.connections.open_connections import OpenConnections
from streams.gateway.metrics import GatewayMetrics
from streams.settings import GatewaySettings

DRAIN_TIMEOUT_S = 10
OTHER_DESCRIPTORS = 256
"""Left for the log, Redis and files when descriptors are fewer than connections may be."""


class ServerConfig(BoundedConfig):
    """Measured best here: sans-I/O WebSockets, no deflate (which also rules out deflate bombs)."""

    def __init__(
        self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics,
        *, http: type[asyncio.Protocol], websocket: type[asyncio.Protocol],
    ) -> None:  # fmt: skip
        self.tls = None
        """Not uvicorn's: `TlsListener` listens with it."""
        if settings.tls_certificate_file is not None and settings.tls_key_file is not None:
            self.tls = _tls_context(settings.tls_certificate_file, settings.tls_key_file)
        super().__init__(
            app,
            host=settings.host,
            port=settings.port,
            http=http,
            ws=websocket,
            ws_per_message_deflate=False,
            ws_max_size=settings.max_body_bytes,
            backlog=4_096,
            timeout_graceful_shutdown=DRAIN_TIMEOUT_S,
            forwarded_allow_ips=settings.trusted_proxies,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
        )
        self.metrics = metrics
        self.refused = metrics.refused
        self.head_timeout_s = settings.head_timeout_ms / 1_000
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = min(settings.max_open_connections, max(1, descriptors - OTHER_DESCRIPTORS))
        self.open_connections = OpenConnections(most, settings.max_connections_per_peer, settings.trusted_proxies)


def _tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Of a server that talks HTTP/1.1. Raises OSError when certificate and key do not belong together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])
    # A ticket comes after the handshake, and helps only at the gateway that gave it. Of clients that read it in one
    # thread while they write in another (`websockets.sync` before Python 3.13) one in a hundred lost its connection.
    context.num_tickets = 0
    return context
