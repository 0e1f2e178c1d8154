"""A chat over the WebSocket `/v1/stream`: one question after another; a lost connection is taken up where it broke."""

import random
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from schemas.websocket import (
    SERVER_MESSAGE,
    Accepted,
    CancelMessage,
    Delta,
    ErrorMessage,
    RequestMessage,
    ResumeMessage,
    StartedMessage,
    TerminalMessage,
)

OPEN_TIMEOUT_S = 10.0
QUIET_TIMEOUT_S = 120.0
RECONNECT_TIMEOUT_S = 30.0
"""Without anything new of the answer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0

OnText = Callable[[str], None]


class ChatError(Exception):
    """The gateway refused or cannot be reached, in one line."""


@dataclass
class Answer:
    """What came back. `error` is a refusal before, or instead of, a terminal. `deltas` counts messages, not tokens."""

    response_id: str = ""
    text: str = ""
    deltas: int = 0
    sequence_number: int = 0
    started: StartedMessage | None = None
    terminal: TerminalMessage | None = None
    error: ErrorMessage | None = None
    resumed: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    _shown: tuple[str, int, int] | None = None
    """Kind, choice and call of what was shown last."""

    @property
    def ended(self) -> bool:
        return self.terminal is not None or self.error is not None

    def take(self, delta: Delta) -> str:
        """What a delta shows that goes on from what is known; empty for one seen before."""
        if delta.sequence_number <= self.sequence_number:
            return ""
        if delta.first_sequence != self.sequence_number + 1:
            self.gaps.append((self.sequence_number, delta.first_sequence))
        self.sequence_number = delta.sequence_number
        self.deltas += 1
        if delta.kind == "reasoning":
            return ""
        if delta.kind == "content":
            self.text += delta.text
        return self._lead(delta) + delta.text

    def _lead(self, delta: Delta) -> str:
        """A call of a tool has a line of its own, and its arguments stand behind its name."""
        before, self._shown = self._shown, (delta.kind, delta.choice, delta.call)
        if before == self._shown:
            return ""
        if delta.kind == "tool_arguments":
            return " "
        is_called = delta.kind == "tool_name"
        begins_line = before is not None and (is_called or before[0] != "content")
        return ("\n" if begins_line else "") + ("→ " if is_called else "")


class Pauses:
    """How long to wait before each next attempt to go on: longer each time, at least as advised, and never in step.

    Pure; `chance` is from 0 to 1.
    """

    def __init__(self) -> None:
        self._attempts = 0
        self._since_s: float | None = None

    def next_s(self, now_s: float, advised_ms: int | None, chance: float) -> float | None:
        """None when nothing new has come for too long."""
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > RECONNECT_TIMEOUT_S:
            return None
        longer_s = min(FIRST_PAUSE_S * (1 << min(self._attempts, 16)), LONGEST_PAUSE_S)
        self._attempts += 1
        return max(longer_s, (advised_ms or 0) / 1_000) * (1 + chance / 2)

    def went_on(self) -> None:
        """Something new has come."""
        self._attempts, self._since_s = 0, None


class Chat:
    """One socket. Used from one thread. Raises ChatError."""

    def __init__(self, url: str, api_key: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url = url
        self._api_key = api_key
        self._sleep = sleep
        self._pauses = Pauses()
        self._socket: ClientConnection | None = None
        self._connection = ExitStack()

    def __enter__(self) -> Self:
        self._connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()

    def _connect(self) -> ClientConnection:
        headers = {"Authorization": f"Bearer {self._api_key}"}
        self._connection.close()
        try:
            self._socket = self._connection.enter_context(
                # A proxy of the environment would be told the key.
                connect(
                    self._url,
                    additional_headers=headers,
                    compression=None,
                    open_timeout=OPEN_TIMEOUT_S,
                    max_size=None,
                    proxy=None,
                )
            )
        except InvalidStatus as error:
            raise ChatError(f"the gateway answered with status {error.response.status_code}") from None
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise ChatError(f"{self._url}: {error}") from None
        return self._socket

    def _send(self, message: BaseModel) -> None:
        assert self._socket is not None, "the chat was entered"
        self._socket.send(message.model_dump_json())

    def ask(self, body: dict[str, Any], on_text: OnText = lambda _text: None) -> Answer:
        """Asks, and returns when the answer has ended. `on_text` gets each piece as it comes.

        Ctrl-C cancels it, once there is a connection; a second one before that ends the wait with KeyboardInterrupt.
        """
        request_id = uuid.uuid4().hex
        answer = Answer()
        try:
            self._send(RequestMessage(type="request", request_id=request_id, body=body))
        except ConnectionClosed:
            self._connect()
            self._send(RequestMessage(type="request", request_id=request_id, body=body))
        lost = unwanted = False
        while not answer.ended:
            try:
                if lost:
                    self._resume(answer)
                    lost = False
                if unwanted:
                    self._send(CancelMessage(type="cancel", response_id=answer.response_id))
                    unwanted = False
                self._read(answer, request_id, on_text)
            except ConnectionClosed as error:
                if not answer.response_id:
                    raise ChatError(f"the connection was lost before the request was accepted: {error}") from None
                lost = True
            except KeyboardInterrupt:
                if not answer.response_id or unwanted:
                    raise
                unwanted = True
        return answer

    def _resume(self, answer: Answer, advised_ms: int | None = None) -> None:
        """Over a new connection: behind one address there may be other gateways."""
        why = "the gateway asks to come again"
        while True:
            pause_s = self._pauses.next_s(time.monotonic(), advised_ms, random.random())  # noqa: S311
            if pause_s is None:
                raise ChatError(f"the answer was lost, and not to be had again: {why}")
            self._sleep(pause_s)
            try:
                self._connect()
                self._send(
                    ResumeMessage(type="resume", response_id=answer.response_id, starting_after=answer.sequence_number)
                )
            except (ChatError, ConnectionClosed) as error:
                why, advised_ms = str(error), None
            else:
                answer.resumed += 1
                return

    def _read(self, answer: Answer, request_id: str, on_text: OnText) -> None:
        assert self._socket is not None, "the chat was entered"
        try:
            raw = self._socket.recv(timeout=QUIET_TIMEOUT_S)
        except TimeoutError:
            raise ChatError(f"nothing came for {QUIET_TIMEOUT_S:g} s") from None
        message = SERVER_MESSAGE.validate_json(raw)
        match message:
            case Accepted() if message.request_id == request_id:
                answer.response_id = message.response_id
            case StartedMessage() if message.response_id == answer.response_id:
                answer.started = message
            case Delta() if message.response_id == answer.response_id:
                self._pauses.went_on()
                on_text(answer.take(message))
            case TerminalMessage() if message.response_id == answer.response_id:
                answer.terminal = message
            case ErrorMessage() if message.request_id == request_id or message.response_id == answer.response_id:
                if message.resumable and answer.response_id:
                    self._resume(answer, message.retry_after_ms)
                else:
                    answer.error = message
            case _:
                pass  # of another response, or news about the socket itself
