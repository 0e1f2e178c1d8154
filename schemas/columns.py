"""What the columns of `Frame` and `Release` owe to those who walk them row by row."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.logprobs import RowLogprobs, are_logprobs

MAX_CALLS = 131_072
"""Of one choice: as many as it may have tokens."""
_OF_NO_TOOL = ("content", "reasoning", "embedding")


def check_lengths(rows: int, columns: Sequence[Sequence[Any]]) -> None:
    """Raises ValueError unless every column has as many rows."""
    if any(len(column) != rows for column in columns):
        raise ValueError("columns differ in length")


def check_rows(
    scopes: Sequence[Any], scope: list[int], first_sequence: list[int], text: list[str], text_ends: list[list[int]]
) -> None:
    """Raises ValueError unless every row has a scope and a number, and its text can be cut after each of its tokens."""
    check_scopes(scopes, scope, first_sequence)
    for row, ends in zip(text, text_ends, strict=True):
        if not can_be_cut(row, ends):
            raise ValueError("text_ends does not describe text")


def check_scopes(scopes: Sequence[Any], scope: list[int], first_sequence: list[int]) -> None:
    """Raises ValueError unless every row has a scope and a number."""
    if not scope:
        return
    if not (min(scope) >= 0 and max(scope) < len(scopes)):
        raise ValueError("scope index out of range")
    if min(first_sequence) < 1:
        raise ValueError("first_sequence starts at 1")


def are_calls(kind: Sequence[str], call: Sequence[int] | None) -> bool:
    """Whether every row may have its call: none but a tool's has one beyond 0."""
    return call is None or all(map(is_call, kind, call))


def is_call(kind: str, call: int) -> bool:
    return 0 <= call < MAX_CALLS and (not call or kind not in _OF_NO_TOOL)


def can_be_cut(text: str, text_ends: list[int]) -> bool:
    """Whether `text_ends` says where each token's text ends, and the last one ends all of it."""
    if not text_ends:
        return not text
    return text_ends[-1] == len(text) and (len(text_ends) == 1 or text_ends == sorted(text_ends))


def unusable_rows(
    scopes: Sequence[Any],
    scope: list[int],
    first_sequence: list[int],
    token_ids: list[list[int]],
    kind: Sequence[str],
    text: list[str],
    text_ends: list[list[int]],
    call: Iterable[int],
    logprobs: Sequence[RowLogprobs],
) -> list[int]:
    """Rows without a scope or a number, of a call that cannot be, or whose text or probabilities cannot be cut after
    each token.
    """
    return [
        index
        for index, (own_scope, first, tokens, own_kind, row, ends, own_call, likely) in enumerate(
            zip(scope, first_sequence, token_ids, kind, text, text_ends, call, logprobs, strict=True)
        )
        if not 0 <= own_scope < len(scopes)
        or first < 1
        or len(tokens) != len(ends)
        or not can_be_cut(row, ends)
        or not is_call(own_kind, own_call)
        or not are_logprobs(likely, tokens)
    ]
