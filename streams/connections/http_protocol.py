"""uvicorn's HTTP connection with bounds: of its head in size and time, of what is pipelined, of how many there are."""

import asyncio
import re
from typing import Any, Final

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from streams.connections.config import BoundedConfig
from streams.connections.lingering import Lingering
from streams.connections.open_connections import CONNECTION, Abortable
from streams.dialects.openai_error import error_object
from streams.ids import mint_request_id
from streams.retry_advice import retry_advice_ms

MAX_HEAD_BYTES: Final = 65_536
MAX_HEADERS: Final = 256
MAX_PIPELINED: Final = 8
KEEP_ALIVE_S = 30.0
_HOST: Final = re.compile(rb"[\w.:%~\[\]-]*", re.ASCII)
"""A name or an address, and a port."""
_INVALID: Final = "invalid_request_error"
_REFUSALS: Final[dict[int, tuple[str, str, str]]] = {
    400: ("invalid_request", "The bytes are no HTTP request.", _INVALID),
    408: ("request_timeout", "The head of the request did not come in time.", _INVALID),
    431: (
        "headers_too_large",
        f"The head of the request is over {MAX_HEAD_BYTES} bytes or {MAX_HEADERS} fields.",
        _INVALID,
    ),
    503: ("overloaded", "Too many connections are open here.", "server_error"),
}


class _Refused(Exception):
    """Raised within the parser."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class HttpProtocol(Lingering, HttpToolsProtocol):
    """A peer holds no more than a head, a part of a body and a few requests, and none of them for ever."""

    config: BoundedConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handshake: Abortable | None = None
        """As what it was counted until now."""
        self._in_head = False
        self._in_body = False
        """Or in what follows it."""
        self._field_bytes = 0
        """Received in pieces that brought neither a body's bytes nor the end of anything: of a head or a trailer."""
        self._advances = 0
        self._ignores_upgrade = False
        self._http_version = b"1.1"
        self._is_stranger = True
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken_bytes: int | None = None
        """What a peer that closes was yet to take when it was last looked at."""

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if self.handshake is not None:
            self.config.open_connections.closed(self.handshake)  # From here on it counts as what it is.
        if self.config.open_connections.opened(transport, address):
            self._set_deadline(self.config.head_timeout_s)
        elif self.scheme == "https":
            self._count(503)
            transport.abort()
        else:
            self._refuse(503)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.open_connections.closed(self.transport)
        self._clear_deadline()
        super().connection_lost(exc)

    def _set_deadline(self, timeout_s: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(timeout_s, self._is_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def deadline_s(self) -> float | None:
        """When the loop's clock says that it is late; None while it answers who showed a key."""
        return None if self._deadline is None else self._deadline.when()

    def _is_late(self) -> None:
        self._deadline = None
        if self.lingers:
            return
        if self._is_answering or (self._is_stranger and self.transport.get_write_buffer_size()):
            self.transport.abort()  # Closing would wait until the peer has taken all.
        elif self._in_head and not self.transport.is_closing():
            self._refuse(408)
            self.linger()
        else:
            self._close_once_taken()

    def _close_once_taken(self) -> None:
        """Who takes less than half of what is left in each such time is cut off: it would be kept for ever."""
        left_bytes = self.transport.get_write_buffer_size()
        if self._untaken_bytes is not None and left_bytes > self._untaken_bytes // 2:
            self.transport.abort()
            return
        self._untaken_bytes = left_bytes
        self.transport.close()
        if left_bytes:
            self._set_deadline(KEEP_ALIVE_S)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Reading

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self.read_away()
            return
        advances = self._advances
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._end(cause.status if isinstance(cause, _Refused) else 400)
            return
        if advances == self._advances:
            # In a piece that also brought something else the parser does not tell what belongs to which.
            self._field_bytes += len(data)
            if self._field_bytes > MAX_HEAD_BYTES:
                self._end(431)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._ignores_upgrade:
                self.handle_websocket_upgrade()
                return
            # The parser has left HTTP; a fresh one reads the same request without its wish.
            rest = data[upgrade.args[0] :]
        else:
            return
        self._ignores_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(self._head_without_upgrade() + rest)

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.scope["method"].encode(), self.url, self._http_version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(t for t in tokens if t.lower() not in (b"upgrade", b"http2-settings"))
            if name != b"upgrade" and value:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # The parser's callbacks

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Refused(503)
        super().on_message_begin()
        self._in_head, self._field_bytes = True, 0
        if not self._is_answering:
            self._set_deadline(self.config.head_timeout_s)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            return  # A trailer is no part of the head (RFC 9110 §6.5.1), and nothing here asks for one.
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            raise _Refused(431)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            raise _Refused(431)
        self._refuse_unless_one_host()
        self._in_head, self._in_body = False, True
        self._advance()
        is_websocket = self.parser.should_upgrade() and self._should_upgrade()
        if self.parser.get_method() == b"CONNECT" or (is_websocket and self._is_answering):
            raise _Refused(400)  # What is being answered would wait for a connection that is no longer its own.
        if self.parser.should_upgrade() and not is_websocket:
            # RFC 9110 §7.8 lets a server ignore the wish. (The parser would take the body for the other protocol.)
            self.scope["method"] = self.parser.get_method().decode("ascii")
            self._http_version = self.parser.get_http_version().encode()
            self._ignores_upgrade = True
            return
        previous = self.cycle
        if is_websocket:
            self._clear_deadline()
        elif not self._is_answering:
            self._begin_answer()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]
        super().on_headers_complete()
        if self.cycle is not previous and self.scope["http_version"] == "1.0":
            _end_with_the_connection(self.cycle)

    def _refuse_unless_one_host(self) -> None:
        """RFC 9112 §3.2: who stands before this server may go by another one of them. Raises _Refused."""
        hosts = [value for name, value in self.headers if name == b"host"]
        is_missing = not hosts and self.parser.get_http_version() == "1.1"
        if is_missing or len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)):
            raise _Refused(400)

    def _advance(self) -> None:
        self._advances += 1
        self._field_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._advance()
        if not self._ignores_upgrade:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._advance()
        self._in_body = False
        if not self._ignores_upgrade:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own: any byte would put it off.
        self.config.open_connections.is_idle(self.transport)
        if self.transport.is_closing():
            if not self._is_stranger:
                self._close_once_taken()
            return
        if self._is_answering:
            self._begin_answer()
        else:
            # Also for a body that goes on after its answer.
            timeout_s = self.config.head_timeout_s if self._in_head else KEEP_ALIVE_S
            if self._is_stranger and self.deadline_s is not None:
                timeout_s = min(timeout_s, self.deadline_s - self.loop.time())  # It may not have taken the answer yet.
            self._set_deadline(timeout_s)

    # Answering

    def _begin_answer(self) -> None:
        """To a stranger, until it is admitted."""
        self._set_deadline(self.config.strangers_timeout_s)

    def admit(self) -> None:
        """The request that is being answered showed a key that is known."""
        self._is_stranger = False
        self._clear_deadline()
        self.config.open_connections.admit(self.transport)

    # Refusing

    def _end(self, status: int) -> None:
        """Nothing more is read. What is being answered would be mixed up with a refusal: it just ends."""
        if self.transport.is_closing():
            return
        self._clear_deadline()
        has_begun = self._is_answering and (self.pipeline or self._in_head or self.cycle.response_started)
        has_begun = has_begun or (self._in_body and self.cycle is not None and self.cycle.response_complete)
        for cycle in (self.cycle, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        if has_begun:
            self._count(status)
            self.transport.close()
        else:
            self._refuse(status)
            self.linger()

    def _refuse(self, status: int) -> None:
        self._count(status)
        code, message, kind = _REFUSALS[status]
        body = orjson.dumps(error_object(code, message, kind))
        headers = {
            "content-type": "application/json", "content-length": str(len(body)), "connection": "close",
            "x-request-id": mint_request_id(),
        }  # fmt: skip
        if status == 503:
            advice_ms = retry_advice_ms()
            headers |= {"retry-after-ms": str(advice_ms), "retry-after": str(-(-advice_ms // 1_000))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(STATUS_LINE[status] + head.encode() + b"\r\n" + body)

    def _count(self, status: int) -> None:
        self.config.refused.labels(_REFUSALS[status][0]).inc()


def _end_with_the_connection(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: a body of unknown length ends where the connection does."""
    send = cycle.send
    is_bare = False

    async def send_bare(message: Any) -> None:
        nonlocal is_bare
        if message["type"] == "http.response.start":
            is_bare = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_bare:
                cycle.chunked_encoding = False
        elif is_bare:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_bare  # type: ignore[method-assign]
