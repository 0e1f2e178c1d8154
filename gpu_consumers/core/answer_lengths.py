"""How long answers get, learned from those that have ended, of each tenant by itself. Pure: no I/O, no clock.

A tenant's lengths are counted in steps of a fifth (four to a doubling), and what is old weighs less: counts are halved
now and then. So a tenant takes 80 numbers, however many answers it has had, and so many tenants are known at most.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

MAX_TENANTS_KNOWN = 1_024
"""Beyond these whose answers ended longest ago is forgotten, and taken to be as all are."""
ENOUGH = 8
"""Of so many something is learned."""
FIRST_GUESS_TOKENS = 1_024
"""Where nothing is: seldom less than an answer comes to, and no reason to let nobody else in."""
_HALVED_AT = 512
_STEPS = sorted({int(2 ** (step / 4)) for step in range(4 * 20 + 1)})
"""Lengths in tokens; the last one stands for all beyond it."""


class _Lengths:
    """Counts by step."""

    def __init__(self) -> None:
        self._counts = [0] * len(_STEPS)
        self._longer = [0] * (len(_STEPS) + 1)
        """How many reach each step, and none beyond the last."""

    def add(self, tokens: int) -> None:
        self._counts[min(bisect_left(_STEPS, tokens), len(_STEPS) - 1)] += 1
        if sum(self._counts) >= _HALVED_AT:
            self._counts = [count // 2 for count in self._counts]
        self._longer = [0, *accumulate(reversed(self._counts))][::-1]

    def surviving(self, so_far: int, after: Sequence[int]) -> list[float] | None:
        """As `AnswerLengths.surviving`; None: too few got so long."""
        longer = self._longer
        all_of_them = longer[bisect_right(_STEPS, so_far)]
        if all_of_them < ENOUGH:
            return None
        return [longer[bisect_right(_STEPS, so_far + tokens)] / all_of_them for tokens in after]


class AnswerLengths:
    def __init__(self) -> None:
        self._all = _Lengths()
        self._of: OrderedDict[str, _Lengths] = OrderedDict()

    def ended(self, tenant_id: str, tokens: int) -> None:
        """An answer of its has come to so many."""
        own = self._of.get(tenant_id)
        if own is None:
            own = self._of[tenant_id] = _Lengths()
            if len(self._of) > MAX_TENANTS_KNOWN:
                self._of.popitem(last=False)
        self._of.move_to_end(tenant_id)
        own.add(tokens)
        self._all.add(tokens)

    def surviving(self, tenant_id: str, so_far: int, after: Sequence[int]) -> list[float]:
        """How likely an answer that has so many tokens, and has not ended, gets longer than `after` so many more."""
        for lengths in (self._of.get(tenant_id), self._all):
            if lengths is not None and (found := lengths.surviving(so_far, after)) is not None:
                return found
        guess = max(FIRST_GUESS_TOKENS - so_far, so_far // 2 + 1)
        return [float(tokens < guess) for tokens in after]
