"""A vector as rows of the kind `embedding` carry it: base64 of its little-endian float32."""

import base64
import sys
from array import array
from collections.abc import Iterable
from typing import Final

NUMBERS_PER_TOKEN: Final = 16
"""Their 85 characters are about what a token of text takes, with all that is said of it, where answers are kept."""


def as_text(vector: Iterable[float]) -> str:
    return base64.b64encode(_turned(array("f", vector)).tobytes()).decode()


def weight_tokens(vectors: int, dimensions: int) -> int:
    """What so many weigh in a queue, where a token of text weighs one. Nobody pays for that."""
    return -(-vectors * dimensions // NUMBERS_PER_TOKEN)


def numbers_of(text: str) -> list[float]:
    """Each the double that its float32 is exactly."""
    return _turned(array("f", base64.b64decode(text))).tolist()


def _turned(numbers: "array[float]") -> "array[float]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
