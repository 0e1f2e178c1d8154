"""A parser for answers in the Hermes format, which needs no model: what the simulated engine says is read by it.

    <think>Reasoning, where that is looked for.</think>Text.
    <tool_call>
    {"name": "of a tool", "arguments": {"any": "JSON"}}
    </tool_call>

As in vLLM's parser of that name, text behind the first call is left out.
"""

import json
from typing import Final

from gpu_consumers.parsing.port import Piece
from gpu_consumers.parsing.stops import may_begin
from schemas.generated import Kind

THINK: Final = "<think>"
END_THINK: Final = "</think>"
CALL: Final = "<tool_call>"
END_CALL: Final = "</tool_call>"


class HermesParser:
    """A `TokenParser`. A marker counts wherever it stands, also in a string of a call's arguments."""

    def __init__(self, *, reasoning: bool, calls: bool) -> None:
        self._call_marker = (CALL,) if calls else ()
        self._awaited: tuple[str, ...] = (THINK, *self._call_marker) if reasoning else self._call_marker
        self._kind: Kind | None = "content"
        self._undecided = ""
        self._calls = 0
        self._call: _Call | None = None

    def feed(self, token_id: int, text: str, *, is_last: bool) -> list[Piece]:
        self._undecided += text
        pieces: list[Piece] = []
        while True:
            told, marker = self._up_to_marker(is_last)
            if self._call is not None:
                pieces += self._call.read(told)
            elif told and self._kind is not None:
                pieces.append(Piece(self._kind, 0, told))
            if not marker:
                return pieces
            self._pass(marker)

    def _up_to_marker(self, is_last: bool) -> tuple[str, str]:
        """What stands before an awaited marker, and that marker, if one follows; not what may yet become one."""
        text = self._undecided
        if "<" not in text:
            self._undecided = ""
            return text, ""
        found = [(at, marker) for marker in self._awaited if (at := text.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            self._undecided = text[at + len(marker) :]
            return text[:at], marker
        end = len(text)
        if not is_last:
            end = min((may_begin(text, marker) for marker in self._awaited), default=end)
        self._undecided = text[end:]
        return text[:end], ""

    def _pass(self, marker: str) -> None:
        if marker == THINK:
            self._kind, self._awaited = "reasoning", (END_THINK,)
        elif marker == END_THINK:
            self._kind, self._awaited = "content", self._call_marker
        elif marker == CALL:
            self._kind, self._awaited = None, (END_CALL,)
            self._call = _Call(self._calls)
        elif self._call is not None:
            self._calls += self._call.is_named
            self._call, self._awaited = None, (CALL,)


class _Call:
    """The JSON object of a call: its name and its arguments are told as they are written, the name first."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key = ""
        self._value = ""
        self._name = ""
        self._arguments = ""
        self.is_named = False

    def read(self, text: str) -> list[Piece]:
        if self._is_within_argument(text):
            return [Piece("tool_arguments", self._number, text)]
        for char in text:
            self._take(char)
        if self._key == '"arguments"':
            self._end_value()
        pieces = []
        if self._name and not self.is_named:
            self.is_named = True
            pieces.append(Piece("tool_name", self._number, self._name))
        if self._arguments and self.is_named:
            pieces.append(Piece("tool_arguments", self._number, self._arguments))
            self._arguments = ""
        return pieces

    def _is_within_argument(self, text: str) -> bool:
        """Whether it goes on with a string there, and no more, as nearly every token of long arguments does."""
        is_within = self.is_named and self._in_string and not self._escaped and self._key == '"arguments"'
        return is_within and bool(text) and '"' not in text and "\\" not in text

    def _take(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif self._depth == 0:
            self._depth = int(char == "{")
            return
        elif self._depth == 1 and (char in ":,}" or char.isspace()):
            self._between(char)
            return
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        self._value += char

    def _between(self, char: str) -> None:
        """Outside of keys and values."""
        if char == ":" and not self._key:
            self._key, self._value = self._value, ""
        elif char in ",}":
            self._end_value()
            self._key = ""
            self._depth -= char == "}"

    def _end_value(self) -> None:
        """Or what has come of it, if it is that of the arguments."""
        if self._key == '"arguments"':
            self._arguments += self._value
        elif self._key == '"name"' and not self._name:
            self._name = _string(self._value)
        self._value = ""


def _string(literal: str) -> str:
    try:
        value = json.loads(literal)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
