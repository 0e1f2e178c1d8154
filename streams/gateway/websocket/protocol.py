"""uvicorn's WebSocket connection with two things added: a way for frames made beforehand, and a close that arrives."""

from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig

from streams.gateway.closing import CloseReason, closing_message

FRAMES: Final = "sluice.frames"
"""In the scope's `extensions`: the connection, where it can write frames made beforehand."""
LINGER_S: Final = 2.0
QUIET_S: Final = 0.1
_SMALL, _MEDIUM = 126, 1 << 16


def text_frame(payload: bytes) -> bytes:
    """One unfragmented text frame of a server (RFC 6455 §5.2); `payload` is UTF-8."""
    length = len(payload)
    if length < _SMALL:
        return b"\x81%c%b" % (length, payload)
    if length < _MEDIUM:
        return b"\x81\x7e%b%b" % (length.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), payload)


class StreamProtocol(WebSocketsSansIOProtocol):
    """What it refuses to read it reads away for a while: a socket closed with unread bytes resets the connection, and
    the client loses the frame that says why."""

    _lingers = _was_read = False

    def handle_connect(self, event: object) -> None:
        super().handle_connect(event)  # type: ignore[arg-type]
        if self.response.status_code == 101:
            self.scope["extensions"][FRAMES] = self  # type: ignore[assignment]

    @property
    def takes_frames(self) -> bool:
        """False when the connection is closing or its buffer is full: use ASGI's `send`, which raises or waits."""
        return not (self.close_sent or self.disconnected) and self.writable.is_set()

    def write_frame(self, frame: bytes) -> None:
        """Hands one whole frame to the transport, beside what `send` writes; only while `takes_frames`."""
        self.transport.write(frame)

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            self._was_read = True
        else:
            super().data_received(data)

    def handle_parser_exception(self) -> None:
        if isinstance(self.conn.parser_exc, PayloadTooBig) and not self.close_sent:
            # The close frame waits in `conn` already; what says it in our own words goes before it.
            self.transport.write(text_frame(closing_message(CloseReason.TOO_LARGE).encode().encode()))
        close = self.conn.close_sent
        assert close is not None, "a parser that fails has made a close frame"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(part for part in self.conn.data_to_send() if part))
        self.close_sent = self.disconnected = self._lingers = True
        self.writable.set()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self._linger(self.loop.time() + LINGER_S)

    def _linger(self, deadline_s: float) -> None:
        """Closes once the client is quiet and has been told, and without mercy at the deadline."""
        self._was_read = False
        self.close_timer = self.loop.call_later(QUIET_S, self._close_when_quiet, deadline_s)

    def _close_when_quiet(self, deadline_s: float) -> None:
        if self.transport.is_closing():
            return
        if self.loop.time() >= deadline_s:
            self.transport.abort()
        elif self._was_read or self.transport.get_write_buffer_size():
            self._linger(deadline_s)
        else:
            self.transport.close()
