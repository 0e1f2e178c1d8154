"""A chat over the WebSocket `/v1/stream`: one question after another; a lost connection is taken up where it broke."""

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
RECONNECT_PAUSE_S = 0.5

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

    @property
    def ended(self) -> bool:
        return self.terminal is not None or self.error is not None

    def take(self, delta: Delta) -> str:
        """The text of a delta that goes on from what is known; empty for one seen before."""
        if delta.sequence_number <= self.sequence_number:
            return ""
        if delta.first_sequence != self.sequence_number + 1:
            self.gaps.append((self.sequence_number, delta.first_sequence))
        self.sequence_number = delta.sequence_number
        self.deltas += 1
        if delta.kind != "content":
            return ""
        self.text += delta.text
        return delta.text


class Chat:
    """One socket. Used from one thread. Raises ChatError."""

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url
        self._api_key = api_key
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
                connect(
                    self._url, additional_headers=headers, compression=None, open_timeout=OPEN_TIMEOUT_S, max_size=None
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

    def _resume(self, answer: Answer) -> None:
        deadline_s = time.monotonic() + RECONNECT_TIMEOUT_S
        while True:
            try:
                self._connect()
                self._send(
                    ResumeMessage(type="resume", response_id=answer.response_id, starting_after=answer.sequence_number)
                )
            except (ChatError, ConnectionClosed) as error:
                if time.monotonic() > deadline_s:
                    raise ChatError(f"the connection was lost, and not to be had again: {error}") from None
                time.sleep(RECONNECT_PAUSE_S)
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
                on_text(answer.take(message))
            case TerminalMessage() if message.response_id == answer.response_id:
                answer.terminal = message
            case ErrorMessage() if message.request_id == request_id or message.response_id == answer.response_id:
                if message.resumable and answer.response_id:
                    self._resume(answer)
                else:
                    answer.error = message
            case _:
                pass  # of another response, or news about the socket itself
