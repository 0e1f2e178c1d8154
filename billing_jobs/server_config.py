"""uvicorn as billing uses it."""

from starlette.types import ASGIApp

from billing_jobs.metrics import BillingMetrics
from streams.connections.config import BoundedConfig
from streams.connections.http_protocol import HttpProtocol
from streams.connections.open_connections import OpenConnections

MAX_CONNECTIONS = 256
MAX_CONNECTIONS_PER_PEER = 128
HEAD_TIMEOUT_S = 10.0


class ServerConfig(BoundedConfig):
    """Who has no password holds no more than a head, for a while."""

    def __init__(self, app: ASGIApp, host: str, port: int, metrics: BillingMetrics) -> None:
        super().__init__(
            app, host=host, port=port, http=HttpProtocol, ws="none", log_config=None, access_log=False,
            server_header=False, timeout_graceful_shutdown=5,
        )  # fmt: skip
        self.open_connections = OpenConnections(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_PEER)
        self.head_timeout_s = HEAD_TIMEOUT_S
        self.refused = metrics.refused
