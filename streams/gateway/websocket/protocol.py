"""uvicorn's WebSocket connection with bounds, a way for frames made beforehand, and a close that arrives.

It reads a few frames in each turn of the event loop, and nothing while a message waits to be understood or the peer
does not take what is written: then neither messages nor pongs can pile up, and nobody waits for a flood of them.
"""

import asyncio
from asyncio.transports import BaseTransport
from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, Final, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame

from streams.connections.lingering import Lingering
from streams.gateway.closing import CloseReason, closing_message
from streams.gateway.server_config import ServerConfig

FRAMES: Final = "sluice.frames"
"""In the scope's `extensions`: the connection, where it can write frames made beforehand."""
MAX_STRANGERS_MESSAGE_BYTES: Final = 16_384
"""Of a peer whose key is not known yet."""
MAX_STRANGERS_FRAGMENTS: Final = 64
MAX_STRANGERS_CONTROL_FRAMES: Final = 32
"""In all, until a key is known: there is nothing yet to be kept alive."""
MAX_FRAGMENTS: Final = 16_384
"""Of one message: they cost time, however small they are."""
FRAGMENT_COST: Final = 1 / 64
"""Of a control frame's."""
PIECE_BYTES: Final = 16_384
FRAMES_A_TURN: Final = 64
"""A ping of six bytes takes five microseconds, and one read may bring 40,000 of them."""
_SMALL, _MEDIUM = 126, 1 << 16
_medium_head = Struct(">HH").pack


def text_frame(payload: bytes) -> bytes:
    """One unfragmented text frame of a server (RFC 6455 §5.2); `payload` is UTF-8."""
    length = len(payload)
    if length < _SMALL:
        return b"\x81%c%b" % (length, payload)
    if length < _MEDIUM:
        return _medium_head(0x817E, length) + payload
    return b"\x81\x7f%b%b" % (length.to_bytes(8, "big"), payload)


class Frames(Protocol):
    """A connection as a socket's session knows it: it takes frames made beforehand."""

    @property
    def takes_frames(self) -> bool: ...

    def write_frame(self, frame: bytes) -> None: ...

    def admit(self) -> None: ...

    def account_to(self, hold: Callable[[int], bool], spend: Callable[[float], bool]) -> None: ...


class StreamProtocol(Lingering, WebSocketsSansIOProtocol):
    """One connection, from its handshake on."""

    config: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = b""
        self._next_turn: asyncio.Handle | None = None
        self._is_late: asyncio.TimerHandle | None = None
        """Runs while no key is known."""
        self._is_before_frame = self._is_full = False
        self._joined = bytearray()
        self._fragments = 0
        self._max_fragments = MAX_STRANGERS_FRAGMENTS
        self._delivered_bytes = 0
        self._hold: Callable[[int], bool] | None = None
        self._strangers_left: float = MAX_STRANGERS_CONTROL_FRAMES
        self._spend: Callable[[float], bool] = self._spend_as_stranger
        self.conn.max_message_size = min(self.config.ws_max_size, MAX_STRANGERS_MESSAGE_BYTES)
        self._at_eof = self.conn.reader.at_eof
        self.conn.reader.at_eof = self._begin_frame  # type: ignore[method-assign]

    def admit(self) -> None:
        """The peer's key is known: it stays, and its messages may be as large as any. Idempotent."""
        self._forget_lateness()
        self.config.open_connections.admit(self.transport)
        self.conn.max_message_size = self.config.ws_max_size
        self._max_fragments = MAX_FRAGMENTS

    def account_to(self, hold: Callable[[int], bool], spend: Callable[[float], bool]) -> None:
        """`hold` takes how many bytes of messages are held, and says whether they may be; `spend` how many control
        frames came, and whether so many may."""
        self._hold = hold
        self._spend = spend

    def _spend_as_stranger(self, amount: float) -> bool:
        self._strangers_left -= amount
        return self._strangers_left >= 0

    # The connection

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        # However slowly it reads what it is told, or says who it is.
        self._is_late = self.loop.call_later(self.config.strangers_timeout_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.open_connections.closed(self.transport)
        self._forget_lateness()
        self._unread = b""
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._hold is not None:
            self._hold(0)
        super().connection_lost(exc)

    def _forget_lateness(self) -> None:
        if self._is_late is not None:
            self._is_late.cancel()

    def handle_connect(self, event: object) -> None:
        super().handle_connect(event)  # type: ignore[arg-type]
        if self.response.status_code == 101:
            self.scope["extensions"][FRAMES] = self  # type: ignore[assignment]
        else:
            self.config.metrics.refused.labels("handshake_failed").inc()

    def _refuse_handshake(self) -> None:
        """The library has told nobody: uvicorn sends only what an event asks for."""
        self.config.metrics.refused.labels("handshake_failed").inc()
        answer = b"".join(part for part in self.conn.data_to_send() if part)
        self.transport.write(answer or b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.handshake_complete = self.close_sent = True
        self.linger()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application has said goodbye; what still waits to be read may be the peer's."""
        super().on_task_complete(task)
        self._go_on()

    # Frames made beforehand

    @property
    def takes_frames(self) -> bool:
        """False when the connection is closing or its buffer is full: use ASGI's `send`, which raises or waits."""
        return not (self.close_sent or self.disconnected or self._is_full)

    def write_frame(self, frame: bytes) -> None:
        """Hands one whole frame to the transport, beside what `send` writes; only while `takes_frames`."""
        self.transport.write(frame)

    # Reading

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self.read_away()
        else:
            self._unread = self._unread + data if self._unread else data
            if self._next_turn is None:
                self._read_on()

    async def receive(self) -> Any:
        if self.queue.empty():
            self._delivered_bytes = 0  # Whoever asks for the next message is done with the last one.
            self._account()
        message = await super().receive()
        self._go_on()
        return message

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_full = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_full = False
        self._go_on()

    def _read_on(self) -> None:
        """Understands what has come, as much as one turn of the loop may be kept for."""
        self._next_turn = None
        for _ in range(FRAMES_A_TURN):
            if not (self._has_more and self._may_read):
                break
            self._step()
        self._go_on()

    def _go_on(self) -> None:
        """In the loop's next turn with what is left; without anything left the transport may bring more."""
        if self.lingers or self.transport.is_closing():
            self._unread = b""
        elif self._may_read and not self._has_more:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
            if self._may_read and self._next_turn is None:
                self._next_turn = self.loop.call_soon(self._read_on)

    def _step(self) -> None:
        """One frame, or a piece of one."""
        piece = b""
        if not self._parser_has_more:
            piece, self._unread = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
        super().data_received(piece)
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            self._refuse_handshake()
        if not self._account():
            self._refuse_message(CloseReason.RATE_LIMITED_BYTES)

    def _begin_frame(self) -> Generator[None, None, bool]:
        """In place of the reader's `at_eof`, with which the library's parser begins every frame: it would parse all
        that it has, and tell only then."""
        self._is_before_frame = True
        yield
        self._is_before_frame = False
        return (yield from self._at_eof())

    @property
    def _has_more(self) -> bool:
        return bool(self._unread) or self._parser_has_more

    @property
    def _parser_has_more(self) -> bool:
        """Without being fed."""
        return self._is_before_frame and bool(self.conn.reader.buffer)

    def _account(self) -> bool:
        """Whether what is held of messages may be. A piece always may: others of its tenant have used up the share, and
        a ping must not cost a socket its streams.
        """
        held_bytes = self._delivered_bytes + len(self._joined) + len(self.conn.reader.buffer)
        return self._hold is None or self.lingers or self._hold(held_bytes) or held_bytes <= PIECE_BYTES

    @property
    def _may_read(self) -> bool:
        """A client that was told of its end is heard until it has answered."""
        if self.lingers or self.transport.is_closing():
            return False
        return self.close_sent or (not self.read_paused and self.writable.is_set())

    def handle_ping(self) -> None:
        if self._may_cost(1):
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._may_cost(1):
            super().handle_pong(event)

    def _may_cost(self, amount: float) -> bool:
        """Says goodbye if not."""
        if not (may_cost := self._spend(amount)):
            self._refuse_message(CloseReason.RATE_LIMITED_MESSAGES)
        return may_cost

    def handle_text(self, event: Frame) -> None:
        self._begin_message("text", event)

    def handle_bytes(self, event: Frame) -> None:
        self._begin_message("bytes", event)

    def _begin_message(self, kind: str, event: Frame) -> None:
        self.curr_msg_data_type = kind  # type: ignore[assignment]
        if event.fin:
            self._deliver(bytes(event.data))
        else:
            self._joined, self._fragments = bytearray(event.data), 1

    def handle_cont(self, event: Frame) -> None:
        """Fragments cost their bytes, not an object each."""
        if self.lingers or self.close_sent:
            return
        self._joined += event.data
        self._fragments += 1
        if self._fragments > self._max_fragments:
            self._refuse_message(CloseReason.TOO_LARGE)
        elif self._may_cost(FRAGMENT_COST) and event.fin:
            joined, self._joined = bytes(self._joined), bytearray()
            self._deliver(joined)

    def _deliver(self, message: bytes) -> None:
        self._delivered_bytes += len(message)
        self.frames = [message]
        self.send_receive_event_to_app()

    # Closing

    def handle_parser_exception(self) -> None:
        if isinstance(self.conn.parser_exc, PayloadTooBig):
            self._refuse_message(CloseReason.TOO_LARGE)
        else:
            self._end()

    def _refuse_message(self, reason: CloseReason) -> None:
        closing = closing_message(reason)
        if not self.close_sent:
            # A close frame of the library's own waits in `conn`; what says it in our own words goes before it.
            self.transport.write(text_frame(closing.encode().encode()))
        if self.conn.close_sent is None:
            self.conn.fail(closing.code, closing.reason)
        self._end()

    def _end(self) -> None:
        close = self.conn.close_sent
        assert close is not None, "a parser that fails has made a close frame"
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(part for part in self.conn.data_to_send() if part))
        self.close_sent = self.disconnected = True
        self._joined = bytearray()
        self.writable.set()
        self.read_paused = False
        self.linger()
