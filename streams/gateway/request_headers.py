"""What both transports read from a request's headers."""

import re
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from schemas.endings import EndingCode
from streams.gateway.errors import ApiError
from streams.tracing.context import parse_traceparent

_IDEMPOTENCY_KEY: Final = re.compile("[ -~]{1,255}")
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


def idempotency_key_of(headers: Headers) -> str | None:
    """Of `Idempotency-Key`, if there is one. Raises ApiError 400."""
    given = headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) == 1 and _IDEMPOTENCY_KEY.fullmatch(given[0]):
        return given[0]
    message = "Idempotency-Key must be one header of 1 to 255 printable ASCII characters."
    raise ApiError(400, EndingCode.INVALID_REQUEST.value, message, param="Idempotency-Key")
