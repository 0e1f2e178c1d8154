"""Blocks of an engine's memory over the tokens to come: what is expected, and how far it may be off. Pure.

Time is counted in tokens, since all answers in an engine grow by one at each of its steps, and in spans that get longer
with their distance. Of each request stands in a span what it is expected to hold in there: its blocks at the end of the
span, times how likely it is still there at the beginning. Answers end apart from each other, so variances add up as
well: of many the sum is known well, of few it is not, and nobody holds more than if none of them had ended.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from math import ceil, sqrt
from statistics import NormalDist

SPANS = [0, 32, 64, *(2**n * k for n in range(6, 19) for k in (2, 3))]
"""Tokens from now, where each begins. The last one does not end."""
_ENDS = [*(end for _, end in pairwise(SPANS)), 2**62]

Row = list[tuple[int, int, int]]
"""By span: expected blocks, their variance, and the most that they may be. It ends where the request surely has."""


def spans_within(tokens: int) -> list[int]:
    """The beginnings of those that come before so many tokens; of the first in any case."""
    return SPANS[: max(bisect_left(SPANS, tokens), 1)]


def row_of(chances: Sequence[float], own_tokens: int, most_more: int, shared: int, answers: int, size: int) -> Row:
    """Of `answers` that have `own_tokens` each in blocks of `size`, and `shared` blocks together. They get `most_more`
    longer at most, and in each span `chances` says how likely they are there at its beginning.
    """
    row = []
    for chance, end in zip(chances, _ENDS, strict=False):
        if not chance:
            break
        blocks = shared + answers * -(-(own_tokens + (end if end < most_more else most_more)) // size)
        expected = blocks if chance == 1 else int(chance * blocks) + 1
        row.append((expected, expected * (blocks - expected), blocks))
    return row


def joined(row: Row, other: Row) -> Row:
    """Of both requests together."""
    return [(a + x, b + y, c + z) for (a, b, c), (x, y, z) in zip_longest(row, other, fillvalue=(0, 0, 0))]


def sigmas_of(foresight: float) -> float:
    """By how many standard deviations a sum may exceed what is expected, so as to be larger with no greater chance than
    is left to `foresight`.
    """
    return max(NormalDist().inv_cdf(foresight), 0.0) if 0 < foresight < 1 else 0.0


class Load:
    """The sum of some rows."""

    def __init__(self, sigmas: float) -> None:
        self._sigmas = sigmas
        self.expected = [0] * len(SPANS)
        self._variance = [0] * len(SPANS)
        self._most = [0] * len(SPANS)

    def add(self, row: Row, times: int = 1) -> None:
        sums, variances, most_of_all = self.expected, self._variance, self._most
        for span, (expected, variance, most) in enumerate(row):
            sums[span] += times * expected
            variances[span] += times * variance
            most_of_all[span] += times * most

    def __sub__(self, part: "Load") -> "Load":
        """Without some of its rows."""
        left = Load(self._sigmas)
        left.add([*zip(self.expected, self._variance, self._most, strict=True)])
        left.add([*zip(part.expected, part._variance, part._most, strict=True)], -1)
        return left

    def has_room(self, row: Row, limit: int, without: Sequence[int]) -> bool:
        """Beside it, and without so many blocks in each span."""
        most_of_all = self._most
        for span, (expected, variance, most) in enumerate(row):
            beyond = most + most_of_all[span] - limit - without[span]
            if beyond > 0:
                ended = most + most_of_all[span] - expected - self.expected[span]
                if ended - self._sigmas * sqrt(variance + self._variance[span]) < beyond:
                    return False
        return True

    def peak(self, without: Sequence[int]) -> int:
        """The most blocks in any span."""
        return max(
            min(most, ceil(expected + self._sigmas * sqrt(variance))) - less
            for expected, variance, most, less in zip(self.expected, self._variance, self._most, without, strict=True)
        )
