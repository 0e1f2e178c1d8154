"""How likely a model found the tokens that it chose, and what else it might have said."""

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

MAX_TOP_LOGPROBS: Final = 20
MIN_LOGPROB: Final = -9_999.0
"""In the place of minus infinity, which JSON has no word for; OpenAI's."""
MAX_TOKEN_BYTES: Final = 1_024

Alternative = tuple[
    Annotated[str, Field(max_length=MAX_TOKEN_BYTES, pattern=r"^[\x00-\xff]*$")],
    Annotated[float, Field(ge=MIN_LOGPROB, le=0, allow_inf_nan=False)],
]
"""A token and the natural logarithm of its probability. The token is its bytes, each as the character of that number
(Latin-1), because a token may be part of a character.
"""
TokenLogprobs = Annotated[list[Alternative], Field(min_length=1, max_length=1 + MAX_TOP_LOGPROBS)]
"""Of one token: first itself, then the likeliest at its place, in descending order, as many as were asked for; itself
is among these again where it is one of them.
"""
RowLogprobs = list[TokenLogprobs] | None
"""Of a row: one entry per token; None where nobody asked."""


def are_logprobs(logprobs: RowLogprobs, tokens: Sequence[object]) -> bool:
    """Whether a row of these tokens may have them."""
    return logprobs is None or len(logprobs) == len(tokens)


def are_all_logprobs(column: Sequence[RowLogprobs], tokens: Sequence[Sequence[object]]) -> bool:
    """Of all rows; of rows that have none in next to no time."""
    return column.count(None) == len(column) or all(map(are_logprobs, column, tokens))
