"""A plain client of `/v1/stream` that keeps what it is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel
from websockets.sync.client import ClientConnection, connect

from deploy.cli.chat import Answer
from deploy.local.runner import Stack
from schemas.websocket import (
    SERVER_MESSAGE,
    Accepted,
    Delta,
    ErrorMessage,
    StartedMessage,
    TerminalMessage,
)
from tests.e2e.stacks import TIMEOUT_S, api_key, body

M = TypeVar("M", bound=BaseModel)


class Socket:
    """One connection. `answers` holds what came, by response id."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.answers: dict[str, Answer] = {}

    def send(self, message: dict[str, Any]) -> None:
        self.connection.send(json.dumps(message))

    def ask(self, text: str, request_id: str = "1", **fields: Any) -> str:
        """Sends a request and returns its response id."""
        self.send({"type": "request", "request_id": request_id, "body": body(text, **fields)})
        return self.until(Accepted, request_id=request_id).response_id

    def resume(self, response_id: str, starting_after: int) -> None:
        self.answers.setdefault(response_id, Answer(response_id)).sequence_number = starting_after
        self.send({"type": "resume", "response_id": response_id, "starting_after": starting_after})

    def cancel(self, response_id: str) -> None:
        self.send({"type": "cancel", "response_id": response_id})

    def next(self) -> BaseModel:
        """The next message; an answer's are noted."""
        message = SERVER_MESSAGE.validate_json(self.connection.recv(timeout=TIMEOUT_S))
        match message:
            case StartedMessage():
                self._answer(message.response_id).started = message
            case Delta():
                assert message.first_sequence <= message.sequence_number
                assert "\ufffd" not in message.text
                answer = self._answer(message.response_id)
                assert message.sequence_number > answer.sequence_number, "nothing is told twice"
                answer.take(message)
            case TerminalMessage():
                self._answer(message.response_id).terminal = message
        return message

    def _answer(self, response_id: str) -> Answer:
        return self.answers.setdefault(response_id, Answer(response_id))

    def until(self, kind: type[M], **fields: Any) -> M:
        """The next message of this kind with these fields."""
        while True:
            message = self.next()
            if isinstance(message, kind) and all(getattr(message, name) == value for name, value in fields.items()):
                return message

    def until_token(self, response_id: str, number: int) -> Answer:
        """The answer once it has at least so many tokens."""
        while self._answer(response_id).sequence_number < number:
            self.next()
        return self.answers[response_id]

    def until_ended(self, response_id: str) -> Answer:
        answer = self._answer(response_id)
        while answer.terminal is None:
            message = self.next()
            assert not (isinstance(message, ErrorMessage) and message.response_id == response_id), message
        assert not answer.gaps
        assert answer.terminal.sequence_number == answer.sequence_number + 1
        return answer


@contextmanager
def open_socket(stack: Stack, tenant: str = "demo") -> Iterator[Socket]:
    headers = {"Authorization": f"Bearer {api_key(stack, tenant)}"}
    with connect(
        stack.websocket_url, additional_headers=headers, compression=None, open_timeout=TIMEOUT_S, max_size=None
    ) as connection:
        yield Socket(connection)
