"""The ASGI application of a gateway: which surface serves a connection, how many are served at once, whose pages may
ask, and what every answer over HTTP has."""

from collections.abc import Collection, MutableMapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.endings import EndingCode
from streams.gateway.closing import CLOSINGS, CloseReason, closing_message
from streams.gateway.errors import ApiError
from streams.gateway.http.answers import api_error_response
from streams.gateway.request_headers import api_key_of
from streams.gateway.service.refusals import unavailable
from streams.gateway.service.service import Gateway
from streams.ids import mint_request_id

OPERATORS_PATHS = frozenset(("/health", "/healthz", "/readyz"))
"""Answered also by a full gateway: it is in good health."""
EXPOSED_HEADERS = (
    "x-request-id", "retry-after", "retry-after-ms", "x-should-retry",
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)  # fmt: skip
"""What pages of other origins may read."""


class Edge:
    """`/v1/stream` on WebSocket, everything else over HTTP; at most `max_connections` requests and sockets at once.

    uvicorn's own bound counts no WebSockets, and refuses the health paths too.
    """

    def __init__(
        self, http: ASGIApp, stream: ASGIApp, gateway: Gateway, *, max_connections: int,
        allowed_origins: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._http = http
        self._stream = stream
        self._gateway = gateway
        self._max_connections = max_connections
        self._answer: ASGIApp = self._serve_request
        if allowed_origins:
            self._answer = CORSMiddleware(
                self._serve_request, allow_origins=allowed_origins, allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["*"], expose_headers=EXPOSED_HEADERS,
            )  # fmt: skip
        self.connections = 0
        """Served now; operators' paths are not counted."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        else:
            await self._answer(scope, receive, _Answer(send, is_head=scope["method"] == "HEAD"))

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "path": path, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        if path in OPERATORS_PATHS:
            await self._http(scope, receive, send)
            return
        with ExitStack() as served:
            try:
                if self.connections >= self._max_connections:
                    raise unavailable(CLOSINGS[CloseReason.OVERLOADED].message, EndingCode.OVERLOADED.value)
                served.enter_context(self._share_of(Headers(scope=scope)))
            except ApiError as error:
                self._gateway.metrics.refused.labels(error.code).inc()
                # A body on its way is read away by the connection, for a while: a client that is cut off while it sends
                # never reads why. One that waits to be told whether to send would send nothing.
                waits = "expect" in Headers(scope=scope)
                await api_error_response(error, closes=waits)(scope, receive, send)
                return
            self.connections += 1
            served.callback(self._served)
            await self._http(scope, receive, send)

    def _served(self) -> None:
        self.connections -= 1

    def _share_of(self, headers: Headers) -> AbstractContextManager[None]:
        """Counts the request among its tenant's, before its body is read; enter it. Raises ApiError 429."""
        try:
            tenant_id = self._gateway.authenticate(api_key_of(headers)).tenant.tenant_id
        except ApiError:
            return nullcontext()  # The route says what is wrong with the key, if it asks for one.
        self._gateway.shares.spend_request(tenant_id)
        return self._gateway.shares.connection(tenant_id)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.connections >= self._max_connections:
            self._gateway.metrics.refused.labels(EndingCode.OVERLOADED.value).inc()
            await _refuse_socket(receive, send)
            return
        self.connections += 1
        try:
            await (self._stream if scope["path"] == "/v1/stream" else self._http)(scope, receive, send)
        finally:
            self.connections -= 1


class _Answer:
    """An answer on its way: it has an id, and a body only if it was asked for one."""

    __slots__ = ("_has_ended", "_is_head", "_send")

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self._has_ended = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self._has_ended:
            return
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            if all(name.lower() != b"x-request-id" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"x-request-id", mint_request_id().encode())]}
        await self._send(message)
        if self._is_head and message["type"] == "http.response.start":
            self._has_ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse_socket(receive: Receive, send: Send) -> None:
    """Accepts first: a page cannot see why a handshake failed."""
    if (await receive())["type"] != "websocket.connect":
        return
    closing = closing_message(CloseReason.OVERLOADED)
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": closing.encode()})
    await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
