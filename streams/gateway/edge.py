"""The ASGI application of a gateway: which surface serves a connection, and how many are served at once."""

from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.endings import EndingCode
from streams.dialects.openai_error import error_object
from streams.gateway.closing import CLOSINGS, CloseReason, closing_message
from streams.gateway.http.answers import error_response
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.service.refusals import retry_advice_ms

OPERATORS_PATHS = frozenset(("/health", "/healthz", "/readyz", "/metrics"))
"""Answered also by a full gateway: it is in good health."""


class Edge:
    """`/v1/stream` on WebSocket, everything else over HTTP; at most `max_connections` requests and sockets at once.

    uvicorn's own bound counts no WebSockets, and refuses the health paths too.
    """

    def __init__(self, http: ASGIApp, stream: ASGIApp, metrics: GatewayMetrics, *, max_connections: int) -> None:
        self._http = http
        self._stream = stream
        self._metrics = metrics
        self._max_connections = max_connections
        self.connections = 0
        """Served now; operators' paths are not counted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_socket = scope["type"] == "websocket"
        app = self._stream if is_socket and scope["path"] == "/v1/stream" else self._http
        if not is_socket and scope["path"] in OPERATORS_PATHS:
            await app(scope, receive, send)
        elif self.connections >= self._max_connections:
            self._metrics.refused.labels(EndingCode.OVERLOADED.value).inc()
            await (_refuse_socket(receive, send) if is_socket else _refuse_request(scope, receive, send))
        else:
            self.connections += 1
            try:
                await app(scope, receive, send)
            finally:
                self.connections -= 1


async def _refuse_request(scope: Scope, receive: Receive, send: Send) -> None:
    message = CLOSINGS[CloseReason.OVERLOADED].message
    body = error_object(EndingCode.OVERLOADED.value, message, "server_error")
    answer = error_response(503, body, headers={"connection": "close"}, retry_after_ms=retry_advice_ms())
    await answer(scope, receive, send)


async def _refuse_socket(receive: Receive, send: Send) -> None:
    """Accepts first: a page cannot see why a handshake failed."""
    if (await receive())["type"] != "websocket.connect":
        return
    closing = closing_message(CloseReason.OVERLOADED)
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": closing.encode()})
    await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
