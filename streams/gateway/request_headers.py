"""What both transports read from a request's headers."""

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from streams.tracing.context import parse_traceparent

KEY_SUBPROTOCOL: Final = "sluice.key."
"""What a subprotocol begins with that is a key, or a token."""


def api_key_of(headers: Mapping[str, str]) -> str | None:
    """From `Authorization: Bearer` or `x-api-key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def handshake_key_of(scope: Scope) -> str | None:
    """Of a WebSocket: from its headers, or from a subprotocol, which is all that a page can set."""
    offered = (n.removeprefix(KEY_SUBPROTOCOL) for n in scope["subprotocols"] if n.startswith(KEY_SUBPROTOCOL))
    return api_key_of(Headers(scope=scope)) or next(offered, None)


def traceparent_of(headers: Mapping[str, str]) -> str:
    """The W3C trace context, or empty when it is not well formed."""
    given = headers.get("traceparent", "")
    return given if parse_traceparent(given) else ""
