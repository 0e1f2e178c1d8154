"""What the columns of `Frame` and `Release` owe to those who walk them row by row."""

from collections.abc import Sequence
from typing import Any


def check_lengths(rows: int, columns: Sequence[Sequence[Any]]) -> None:
    """Raises ValueError unless every column has as many rows."""
    if any(len(column) != rows for column in columns):
        raise ValueError("columns differ in length")


def check_rows(
    scopes: Sequence[Any], scope: list[int], first_sequence: list[int], text: list[str], text_ends: list[list[int]]
) -> None:
    """Raises ValueError unless every row has a scope and a number, and its text can be cut after each of its tokens."""
    if not scope:
        return
    if not (min(scope) >= 0 and max(scope) < len(scopes)):
        raise ValueError("scope index out of range")
    if min(first_sequence) < 1:
        raise ValueError("first_sequence starts at 1")
    for row, ends in zip(text, text_ends, strict=True):
        if (ends[-1] if ends else 0) != len(row):
            raise ValueError("text_ends does not describe text")
        if len(ends) > 1 and ends != sorted(ends):
            raise ValueError("text_ends decreases")
