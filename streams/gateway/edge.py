"""The ASGI application of a gateway: which surface serves a connection, how many are served at once, whose pages may
ask, and what every answer over HTTP has."""

from collections.abc import Collection, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from streams.connections.open_connections import admit
from streams.gateway.closing import CloseReason, closing_message
from streams.gateway.errors import ApiError
from streams.gateway.http.answers import api_error_response
from streams.gateway.http.dialects.by_path import dialect_of, id_headers_of
from streams.gateway.places import PLACE, Places
from streams.gateway.request_headers import api_key_of, handshake_key_of
from streams.gateway.service.service import Gateway
from streams.ids import mint_request_id

OPERATORS_PATHS = frozenset(("/health", "/healthz", "/readyz"))
"""Answered also by a full gateway: it is in good health."""
EXPOSED_HEADERS = (
    "x-request-id", "request-id", "traceparent", "retry-after", "retry-after-ms", "x-should-retry",
    "x-queue-before", "x-queue-wait-ms", "x-queue-lowered-from", "x-brownout-level", "x-brownout-max-tokens",
    "x-sluice-fallback-from", "x-sluice-fallback-reason",
    *(
        header
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
        for header in (f"x-ratelimit-{what}-{kind}", f"anthropic-ratelimit-{kind}-{what}")
    ),
)  # fmt: skip
"""What pages of other origins may read."""


class Edge:
    """`/v1/stream` on WebSocket, everything else over HTTP; at most `max_connections` requests and sockets at once, and
    `max_strangers` of who shows no key beside them.

    uvicorn's own bound counts no WebSockets, and refuses the health paths too.
    """

    def __init__(
        self, http: ASGIApp, stream: ASGIApp, gateway: Gateway, *, max_connections: int, max_strangers: int,
        allowed_origins: Collection[str] = (),
    ) -> None:  # fmt: skip
        self._http = http
        self._stream = stream
        self._gateway = gateway
        self._places = Places(max_connections, max_strangers)
        self._answer: ASGIApp = self._serve_request
        if allowed_origins:
            self._answer = CORSMiddleware(
                self._serve_request, allow_origins=allowed_origins, allow_methods=["GET", "HEAD", "POST", "DELETE"],
                allow_headers=["*"], expose_headers=EXPOSED_HEADERS,
            )  # fmt: skip

    @property
    def connections(self) -> int:
        """Served now; operators' paths are not counted."""
        return self._places.taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        else:
            is_head, id_headers = scope["method"] == "HEAD", id_headers_of(scope["path"])
            await self._answer(scope, receive, _Answer(send, is_head=is_head, id_headers=id_headers))

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        scope = {**scope, "path": path, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        if path in OPERATORS_PATHS:
            await self._http(scope, receive, send)
            return
        with ExitStack() as served:
            tenant_id = self._tenant_of(api_key_of(Headers(scope=scope)))
            if tenant_id is not None:
                admit(scope)
            try:
                served.enter_context(self._places.take(is_admitted=tenant_id is not None))
                if tenant_id is not None:
                    # Counted among its tenant's before its body is read.
                    self._gateway.shares.spend_request(tenant_id)
                    served.enter_context(self._gateway.shares.connection(tenant_id))
            except ApiError as error:
                self._gateway.metrics.refused.labels(error.code).inc()
                # A body on its way is read away by the connection, for a while: a client that is cut off while it sends
                # never reads why. One that waits to be told whether to send would send nothing.
                waits = "expect" in Headers(scope=scope)
                await api_error_response(error, dialect_of(path), closes=waits)(scope, receive, send)
                return
            await self._http(scope, receive, send)

    def _tenant_of(self, api_key: str | None) -> str | None:
        try:
            return self._gateway.authenticate(api_key).tenant.tenant_id
        except ApiError:
            return None  # The route says what is wrong with the key, if it asks for one.

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            place = self._places.take(is_admitted=self._tenant_of(handshake_key_of(scope)) is not None)
        except ApiError as error:
            self._gateway.metrics.refused.labels(error.code).inc()
            await _refuse_socket(receive, send)
            return
        with place:
            served = self._stream if scope["path"] == "/v1/stream" else self._http
            await served({**scope, PLACE: place}, receive, send)


class _Answer:
    """An answer on its way: it has an id, and a body only if it was asked for one."""

    __slots__ = ("_has_ended", "_id_headers", "_is_head", "_send")

    def __init__(self, send: Send, *, is_head: bool, id_headers: Sequence[bytes]) -> None:
        self._send = send
        self._is_head = is_head
        self._id_headers = id_headers
        self._has_ended = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if self._has_ended:
            return
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            present = {name.lower(): value for name, value in headers}
            request_id = present.get(b"x-request-id") or mint_request_id().encode()
            missing = [(name, request_id) for name in self._id_headers if name not in present]
            message = {**message, "headers": [*headers, *missing]}
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
