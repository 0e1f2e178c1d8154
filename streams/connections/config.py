"""uvicorn's settings, with the bounds that connections obey."""

import uvicorn
from prometheus_client import Counter

from streams.connections.open_connections import OpenConnections


class BoundedConfig(uvicorn.Config):
    """With the bounds that every connection obeys."""

    open_connections: OpenConnections
    head_timeout_s: float
    refused: Counter
    """By code."""
