"""From the vectors of a request, which an engine may finish in any order, to its rows. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from gpu_consumers.engines.beyond import Beyond
from gpu_consumers.engines.port import EngineDelta, EngineRequest
from schemas.vectors import as_text

MAX_ROW_CHARS: Final = 32_768
"""Of the vectors of one row, as far as one does not have more by itself."""
MAX_STEP_CHARS: Final = 1_000_000
"""Of the rows that are handed on at once, which leave in one record: far below what that may have."""
NO_TEXT: Final = "it generates no text"
"""What an engine that embeds says to who asks for some."""


def cut(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """A vector of length 1 that is cut to `dimensions` has length 1 again."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    vector = vector[:dimensions]
    length = math.hypot(*vector) or 1.0
    return [number / length for number in vector]


class Vectors:
    """Of one request. They are told once all are there: who is lost before has told none, and may begin anew."""

    def __init__(self, request: EngineRequest) -> None:
        self._request_id = request.request_id
        self._dimensions = request.dimensions
        self._texts = [""] * len(request.input_ends)
        self._missing = len(self._texts)
        self._accepted = request.accepted

    @property
    def are_complete(self) -> bool:
        return not self._missing

    def put(self, index: int, vector: Sequence[float]) -> None:
        """Of each input once."""
        self._texts[index] = as_text(cut(vector, self._dimensions))
        self._missing -= 1

    def rows(self) -> list[EngineDelta]:
        """In the order of the inputs, all that are not accepted; the last row finishes the request."""
        rows: list[EngineDelta] = []
        begin = 0
        while begin < len(self._texts):
            ends: list[int] = []
            chars = 0
            while chars < MAX_ROW_CHARS and begin + len(ends) < len(self._texts):
                chars += len(self._texts[begin + len(ends)])
                ends.append(chars)
            text = "".join(self._texts[begin : begin + len(ends)])
            begin += len(ends)
            rows.append(EngineDelta(self._request_id, 0, [0] * len(ends), text, ends, kind="embedding"))
        rows[-1].finish = "stop"
        if (accepted := self._accepted) is None:
            return rows
        # An engine embeds all inputs anew: they are few, and nobody knows which took long.
        return Beyond(accepted.tokens, sum(accepted.chars)).among(rows)


def next_step(rows: list[EngineDelta]) -> tuple[list[EngineDelta], list[EngineDelta]]:
    """Those that are handed on now, and those that wait for the next turn of the loop."""
    chars = 0
    for count, row in enumerate(rows, 1):
        chars += len(row.text)
        if chars >= MAX_STEP_CHARS:
            return rows[:count], rows[count:]
    return rows, []
