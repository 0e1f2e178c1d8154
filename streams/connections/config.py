"""uvicorn's settings, with the bounds that connections obey."""

import uvicorn
from prometheus_client import Counter

from streams.connections.open_connections import OpenConnections


class BoundedConfig(uvicorn.Config):
    """With the bounds that every connection obeys."""

    open_connections: OpenConnections
    head_timeout_s: float
    strangers_timeout_s: float = 30.0
    """For an answer to who shows no key, from its request's head to its last byte; for a WebSocket, to show one."""
    refused: Counter
    """By code."""
