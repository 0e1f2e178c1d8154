"""The ASGI endpoint of `/v1/stream`: who may connect, and the sockets that are open."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from streams.gateway.closing import CloseReason, closing_message
from streams.gateway.errors import ApiError
from streams.gateway.places import PLACE
from streams.gateway.request_headers import handshake_key_of, traceparent_of
from streams.gateway.service.keys import Principal
from streams.gateway.service.service import Gateway
from streams.gateway.websocket.protocol import FRAMES
from streams.gateway.websocket.session import Socket

SUBPROTOCOL = "sluice.v1"


def origin_allowed(origin: str | None, hosts: Collection[str], allowed_origins: Collection[str]) -> bool:
    """Programs send no `Origin`; pages of the gateway itself may always connect. `*` allows every page.

    `hosts`: as what the client and its proxy know the gateway. A page can set neither.

    Keys are never in cookies, so another site's page has nothing of its visitor's to use.
    """
    if origin is None or "*" in allowed_origins or origin in allowed_origins:
        return True
    return origin.partition("://")[2] in hosts


class StreamEndpoint:
    """The ASGI endpoint of `/v1/stream`."""

    def __init__(self, gateway: Gateway, allowed_origins: Collection[str] = ()) -> None:
        self._gateway = gateway
        self._allowed_origins = allowed_origins
        self._open: dict[Socket, asyncio.Future[None]] = {}

    def close_unless(self, stands: Callable[[Principal], bool]) -> None:
        """Sockets whose key stands no longer are told so, and closed."""
        for socket in list(self._open):
            socket.key.close_unless(stands)

    async def go_away(self, timeout_s: float) -> None:
        """Every socket is told that the gateway stops; returns when they know, or do not take it in time."""
        for socket in list(self._open):
            socket.go_away()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        event = await receive()
        if event["type"] != "websocket.connect":
            return
        offered: list[str] = scope["subprotocols"]
        hosts = [headers[name] for name in ("host", "x-forwarded-host") if name in headers]
        api_key = handshake_key_of(scope)
        frames = scope.get("extensions", {}).get(FRAMES)
        if frames is not None:
            with suppress(ApiError):  # The socket says so, once it is one.
                self._gateway.authenticate(api_key)
                frames.admit()  # Before its first message can come.
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if SUBPROTOCOL in offered else None})
        if not origin_allowed(headers.get("origin"), hosts, self._allowed_origins):
            closing = closing_message(CloseReason.ORIGIN_REFUSED)
            await send({"type": "websocket.send", "text": closing.encode()})
            await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
            return
        socket = Socket(self._gateway, receive, send, traceparent_of(headers), frames, scope[PLACE])
        if self._gateway.stopping:
            socket.go_away()
        ended = self._open[socket] = asyncio.get_running_loop().create_future()
        try:
            await socket.run(api_key)
        finally:
            del self._open[socket]
            ended.set_result(None)
