"""What the calls of an answer may hold: parsers and clients look at all of it again with every token."""

import re
from collections.abc import Sequence

from gpu_consumers.parsing.port import Piece
from schemas.request import MAX_TOOL_CALLS

MAX_ARGUMENTS_CHARS = 65_536
MAX_ARGUMENTS_DEPTH = 64
MAX_SILENT_CHARS = 65_536
"""Of text that completes nothing: a parser that waits for the end of something looks through all of it again."""

_CLOSING = frozenset("}/")
"""What ends a call that has no arguments has one of them, as formats go: an object of JSON, or an element."""
_STRUCTURE = re.compile(r'\\(?:.|\Z)|["{}\[\]]', re.DOTALL)


class CallBounds:
    """Of one choice; `exceeded` once a piece was beyond them."""

    def __init__(self) -> None:
        self._arguments: dict[int, _Arguments] = {}
        self._silent_chars = 0
        self._last: Piece | None = None
        self._is_closed = False
        self.exceeded = False

    @property
    def are_within_call(self) -> bool:
        """Whether what was told last is of a call that is not whole."""
        if self._last is None or self._last.kind not in ("tool_name", "tool_arguments"):
            return False
        arguments = self._arguments.get(self._last.call)
        return not (self._is_closed if arguments is None else arguments.are_whole)

    def within(self, text: str, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Those of the pieces that are, of a token that adds `text`: none behind the first that is not."""
        if not pieces:
            self._silent_chars += len(text)
            self.exceeded = self._silent_chars > MAX_SILENT_CHARS
            self._note_closing(text)
            return pieces
        self._silent_chars = 0
        for index, piece in enumerate(pieces):
            if not self._holds(piece):
                self.exceeded = True
                return pieces[:index]
        if (last := pieces[-1]).kind == "tool_name":
            self._is_closed = False
            self._note_closing(text.rpartition(last.text)[2])
        return pieces

    def _note_closing(self, text: str) -> None:
        """In text that says nothing, where it follows on a name."""
        if self._last is not None and self._last.kind == "tool_name" and not _CLOSING.isdisjoint(text):
            self._is_closed = True

    def _holds(self, piece: Piece) -> bool:
        self._last = piece
        if piece.kind == "tool_arguments":
            return self._arguments.setdefault(piece.call, _Arguments()).hold(piece.text)
        return piece.call < MAX_TOOL_CALLS


class _Arguments:
    """JSON that comes in parts."""

    def __init__(self) -> None:
        self._chars = 0
        self._depth = 0
        self._in_string = False
        self._escape = ""

    @property
    def are_whole(self) -> bool:
        return self._chars > 0 and self._depth <= 0 and not self._in_string

    def hold(self, text: str) -> bool:
        """Takes the next part. False: they are too long with it, or nested too deep."""
        self._chars += len(text)
        deepest = self._depth
        marks = _STRUCTURE.findall(self._escape + text)
        self._escape = "\\" if marks and marks[-1] == "\\" else ""
        for mark in marks:
            if mark == '"':
                self._in_string = not self._in_string
            elif len(mark) == 1 and not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                deepest = max(deepest, self._depth)
        return self._chars <= MAX_ARGUMENTS_CHARS and deepest <= MAX_ARGUMENTS_DEPTH
