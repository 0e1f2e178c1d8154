"""How clients that nobody here wrote read an event stream."""

import json
from typing import Any

from openai._streaming import SSEDecoder


class Stripping:
    """As `vllm bench serve` and sglang's benchmark read: pieces of the body are stripped, and so is `data: `."""

    def __init__(self) -> None:
        self._buffer = ""
        self.read: list[Any] = []

    def feed(self, piece: bytes) -> None:
        stripped = piece.strip()
        if not stripped:
            return
        self._buffer += stripped.decode()
        messages = []
        while "\n\n" in self._buffer:
            message, self._buffer = self._buffer.split("\n\n", 1)
            messages.append(message)
        if self._buffer.startswith("data: "):
            messages.append(self._buffer)
            self._buffer = ""
        for message in messages:
            if not message.startswith(":"):
                data = message.removeprefix("data: ")
                self.read.append(data if data == "[DONE]" else json.loads(data))


class Lines:
    """As guidellm, go-openai and most scripts read: line by line, what begins with `data:`."""

    def __init__(self) -> None:
        self._buffer = b""
        self.read: list[Any] = []

    def feed(self, piece: bytes) -> None:
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                self.read.append("[DONE]" if data == b"[DONE]" else json.loads(data))


class Decoder:
    """As openai's package and httpx-sse read: an empty line ends an event, and one with an id is one without data."""

    def __init__(self) -> None:
        self._buffer = b""
        self._decoder = SSEDecoder()
        self.read: list[Any] = []
        self.ids: list[str | None] = []

    def feed(self, piece: bytes) -> None:
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            if (event := self._decoder.decode(line.decode())) is not None:
                self.read.append("[DONE]" if event.data == "[DONE]" else event.json())
                self.ids.append(event.id)
