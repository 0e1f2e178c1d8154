"""What is found out about a file before a line of it runs. Pure."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from streams.gateway.batches.core import MAX_ERRORS, Problem
from streams.gateway.batches.lines import BrokenLine, Line, read_line
from streams.gateway.batches.told import not_run

_DIGEST_BYTES: Final = 8
"""Of a custom id: of a million of them two are alike once in thirty million files."""


class Validation:
    """Takes all lines of a file, in order. Lines that are broken end here, and the others may run."""

    def __init__(self, endpoint: str, max_lines: int, id_of: Callable[[int], str]) -> None:
        """`id_of`: the response id of a line."""
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._id_of = id_of
        self._seen: set[int] = set()
        self._broken: set[int] = set()
        self._problems: list[Problem] = []
        self.total = 0

    @property
    def failed(self) -> int:
        return len(self._broken)

    @property
    def has_too_many(self) -> bool:
        return self.total > self._max_lines

    @property
    def ended(self) -> bytes:
        """A bit for each line that will not run."""
        bits = bytearray((self.total + 7) // 8)
        for line in self._broken:
            bits[line >> 3] |= 1 << (line & 7)
        return bytes(bits)

    def add(self, lines: Sequence[Line]) -> bytes:
        """What the file of errors says of those that are broken."""
        told = bytearray()
        for line in lines:
            self.total += 1
            if self.has_too_many:
                break
            try:
                self._take(read_line(line.raw, self._endpoint).custom_id)
            except BrokenLine as broken:
                self._broken.add(line.number)
                if len(self._problems) < MAX_ERRORS:
                    self._problems.append(Problem(code=broken.code, message=broken.message, line=line.number + 1,
                                                  param=broken.param))  # fmt: skip
                told += not_run(
                    self._id_of(line.number), broken.custom_id, broken.code, broken.message, broken.param
                ).text
        return bytes(told)

    def _take(self, custom_id: str) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        number = int.from_bytes(digest, "big")
        if number in self._seen:
            message = "custom_id: an earlier line of the file has the same."
            raise BrokenLine("duplicate_custom_id", message, "custom_id", custom_id)
        self._seen.add(number)

    def problems(self) -> list[Problem]:
        """Why no line of it runs; none where some do. Ask once all lines are there."""
        if self.has_too_many:
            return [Problem(code="too_many_lines", message=f"The file has more than {self._max_lines} lines.")]
        if not self.total:
            return [Problem(code="empty_file", message="The file has no lines.")]
        return self._problems if self.failed == self.total else []
