"""`multipart/form-data` (RFC 7578) as it comes, piece by piece: what is held of it is a head, or less than a boundary.

Pure. Heads are read here, in one pass: they come from strangers, and Python's package for mail takes four times as long
for twice as much, and fails in ways of its own.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

MAX_HEAD_BYTES: Final = 8_192
MAX_PADDING_BYTES: Final = 256
MAX_PREAMBLE_BYTES: Final = 65_536
MAX_CONTENT_TYPE_CHARS: Final = 300
MAX_PARAMETERS: Final = 16
"""Of one header."""
_BOUNDARY: Final = re.compile(rb"[ -~]{1,70}")
# Where something behind may still fail, nothing of it matches in two ways: it takes one pass.
_PARAMETER: Final = re.compile(r'\s*;[\s;]*([^\s;="]+)(?:\s*=\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^;"]*)))?')


class Malformed(Exception):
    """It is no form."""


class PartBegins(NamedTuple):
    """A field of the form; with a `filename` a file."""

    name: str
    filename: str | None


class PartEnds(NamedTuple):
    """All of the part has come."""


Event = PartBegins | bytes | PartEnds


class _State(Enum):
    PREAMBLE = auto()
    DELIMITER = auto()
    HEAD = auto()
    CONTENT = auto()
    END = auto()


def boundary_in(content_type: str) -> bytes | None:
    """None where it is no form."""
    if len(content_type) > MAX_CONTENT_TYPE_CHARS:
        return None
    try:
        value, parameters = _parameters(content_type)
    except Malformed:
        return None
    boundary = parameters.get("boundary", "").rstrip().encode("latin-1", "replace")
    return boundary if value == "multipart/form-data" and _BOUNDARY.fullmatch(boundary) else None


class Multipart:
    """`feed` what comes, and take its events before what comes next; `has_ended` once the form is complete."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._state = _State.PREAMBLE
        self._held = bytearray(b"\r\n")  # as if a line ended before the first delimiter
        self._passed_bytes = 0

    @property
    def has_ended(self) -> bool:
        return self._state is _State.END

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Raises Malformed."""
        self._held += piece
        is_stuck = False
        while not is_stuck:
            match self._state:
                case _State.PREAMBLE | _State.CONTENT:
                    is_stuck = yield from self._content()
                case _State.DELIMITER:
                    is_stuck = self._behind_delimiter()
                case _State.HEAD:
                    is_stuck = yield from self._head()
                case _State.END:
                    self._held.clear()  # An epilogue says nothing.
                    is_stuck = True

    def _content(self) -> Generator[Event, None, bool]:
        """Whether more must come."""
        held, is_part = self._held, self._state is _State.CONTENT
        end = held.find(self._delimiter)
        known = end if end >= 0 else max(0, len(held) - len(self._delimiter) + 1)
        if known and is_part:
            yield bytes(held[:known])
        elif known:
            self._passed_bytes += known
            if self._passed_bytes > MAX_PREAMBLE_BYTES:
                raise Malformed("no part begins")
        del held[:known]
        if end < 0:
            return True
        del held[: len(self._delimiter)]
        self._state = _State.DELIMITER
        if is_part:
            yield PartEnds()
        return False

    def _behind_delimiter(self) -> bool:
        held = self._held
        if held[:2] == b"--":
            self._state = _State.END
            return False
        end = held.find(b"\r\n")
        if end < 0:
            if len(held) > MAX_PADDING_BYTES:
                raise Malformed("a boundary's line does not end")
            return True
        if held[:end].strip(b" \t"):
            raise Malformed("something stands behind a boundary")
        del held[:end]  # The line's end stays: a head without a field is that and one more.
        self._state = _State.HEAD
        return False

    def _head(self) -> Generator[Event, None, bool]:
        """Whether more must come."""
        held = self._held
        end = held.find(b"\r\n\r\n")
        if end < 0:
            if len(held) > MAX_HEAD_BYTES:
                raise Malformed("the head of a part is too long")
            return True
        begins = _part_of(bytes(held[2:end]))
        del held[: end + 4]
        self._state = _State.CONTENT
        yield begins
        return False


def _part_of(head: bytes) -> PartBegins:
    if len(head) > MAX_HEAD_BYTES:
        raise Malformed("the head of a part is too long")
    for line in head.decode(errors="replace").split("\r\n"):
        header, _, value = line.partition(":")
        if header.strip().lower() == "content-disposition":
            kind, parameters = _parameters(value)
            name = _text(parameters, "name")
            if kind != "form-data" or name is None:
                break
            return PartBegins(name, _text(parameters, "filename"))
    raise Malformed("a part has no name")


def _parameters(header: str) -> tuple[str, dict[str, str]]:
    """A header's value, in small letters, and its parameters by their names; of several of one name the first."""
    value, parameters = header.partition(";")[0], dict[str, str]()
    at = len(value)
    for _ in range(MAX_PARAMETERS):
        if (found := _PARAMETER.match(header, at)) is None:
            break
        at = found.end()
        name, quoted, bare = found.groups()
        text = (bare or "").strip() if quoted is None else quoted.replace("\\\\", "\\").replace('\\"', '"')
        parameters.setdefault(name.lower(), text)
    if header[at:].strip(" \t;"):
        raise Malformed("a header's parameters cannot be read, or are too many")
    return value.strip().lower(), parameters


def _text(parameters: Mapping[str, str], name: str) -> str | None:
    """Browsers and OpenAI's packages write quotes and ends of lines as `%22`, `%0D` and `%0A`."""
    if (extended := _extended(parameters.get(f"{name}*", ""))) is not None:
        return extended
    text = parameters.get(name)
    if text is not None:
        for written, meant in (("%22", '"'), ("%0D", "\r"), ("%0A", "\n")):
            text = text.replace(written, meant)
    return text


def _extended(text: str) -> str | None:
    """As RFC 8187 has it; None where it is none that can be read, which is as if it were not there."""
    parts = text.split("'", 2)
    if len(parts) < 3 or parts[0].lower() not in ("utf-8", "iso-8859-1"):
        return None
    return unquote_to_bytes(parts[2]).decode(parts[0], "replace")
