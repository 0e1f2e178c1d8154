"""The lines of a batch's file: cut from pieces, and read. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, Field

from streams.dialects.batch_line import ASKS, MOST_VALUES_OF_ANY
from streams.dialects.fields import WIRE, asked, validated
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import NeutralRequest, RequestError

MAX_CUSTOM_ID_CHARS: Final = 128
_IN_FILES: Final = "a line's result stands in the batch's files, and is not stored"
_BLANK_LINES: Final = re.compile(rb"\s*\n")


class Line(NamedTuple):
    """`number` counts from 0, over lines that are not blank. `end`: where the next one begins in the file. `raw` None:
    it is longer than a line may be."""

    number: int
    end: int
    raw: bytes | None


class Lines:
    """Cuts a file into lines as its pieces come; holds one line at most. A line that is too long is passed over."""

    def __init__(self, max_line_bytes: int, *, number: int = 0, at: int = 0) -> None:
        """From the line with that number on, which begins there."""
        self._max_line_bytes = max_line_bytes
        self._number = number
        self._at = at
        self._held = bytearray()
        self._is_too_long = False

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Lines that end in it. Take all of them before the next piece."""
        begin = self._behind_blank_lines(piece, 0)
        while (end := piece.find(b"\n", begin)) >= 0:
            self._hold(piece[begin:end])
            self._at += end + 1 - begin
            yield from self._line()
            begin = self._behind_blank_lines(piece, end + 1)
        rest = piece[begin:]
        self._at += len(rest)
        self._hold(rest)

    def _behind_blank_lines(self, piece: bytes, begin: int) -> int:
        """Where the next line begins that is not blank: a file may consist of blank ones, which are passed over at
        once."""
        is_between_lines = not self._held and not self._is_too_long
        if not is_between_lines or len(piece) > self._max_line_bytes:  # of which each may be too long
            return begin
        if (blank := _BLANK_LINES.match(piece, begin)) is None:
            return begin
        self._at += blank.end() - begin
        return blank.end()

    def close(self) -> Iterator[Line]:
        """The last line, where no end of line stands behind it."""
        yield from self._line()

    def _hold(self, data: bytes) -> None:
        if len(self._held) + len(data) > self._max_line_bytes:
            self._is_too_long = True
            self._held.clear()
        elif not self._is_too_long:
            self._held += data

    def _line(self) -> Iterator[Line]:
        raw = None if self._is_too_long else bytes(self._held)
        self._held.clear()
        self._is_too_long = False
        if raw is None or raw.strip():
            yield Line(self._number, self._at, raw)
            self._number += 1


class Asked(NamedTuple):
    """What a line asks for."""

    custom_id: str
    request: NeutralRequest


class BrokenLine(Exception):
    """It cannot run. `custom_id`: its own, as far as it can be read."""

    def __init__(self, code: str, message: str, param: str | None = None, custom_id: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id = custom_id


class _Fields(BaseModel):
    model_config = WIRE

    custom_id: str = Field(min_length=1, max_length=MAX_CUSTOM_ID_CHARS)
    method: str
    url: str
    body: dict[str, Any]


def read_line(raw: bytes | None, endpoint: str) -> Asked:
    """Raises BrokenLine."""
    asks = ASKS[endpoint]
    if raw is None:
        raise BrokenLine("line_too_long", "The line is longer than a request may be.")
    try:
        given = parse_json_object(raw, asks.most_values)
    except RequestError as error:
        why = error.message.replace("The body", "The line", 1)
        raise BrokenLine("invalid_json_line", why) from None
    custom_id = custom_id_in(given)
    try:
        fields = validated(_Fields, asked(_Fields, given))
    except RequestError as error:
        raise BrokenLine(error.code.value, error.message, error.param, custom_id) from None
    if fields.method != "POST":
        raise BrokenLine("invalid_method", "method: only POST is supported.", "method", custom_id)
    if fields.url != endpoint:
        raise BrokenLine("invalid_url", f"url: the batch's endpoint is {endpoint}.", "url", custom_id)
    try:
        return Asked(custom_id, asks.parse(fields.body, _IN_FILES))
    except RequestError as error:
        param = None if error.param is None else f"body.{error.param}"
        raise BrokenLine(error.code.value, error.message, param, custom_id) from None


def custom_id_in(given: dict[str, Any]) -> str:
    """Empty where there is none that can be told."""
    custom_id = given.get("custom_id")
    return custom_id if isinstance(custom_id, str) and len(custom_id) <= MAX_CUSTOM_ID_CHARS else ""


def custom_id_of(raw: bytes | None) -> str:
    """Of a line, whatever else is wrong with it."""
    if raw is None:
        return ""
    try:
        return custom_id_in(parse_json_object(raw, MOST_VALUES_OF_ANY))
    except RequestError:
        return ""
