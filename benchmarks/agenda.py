"""What is to happen in virtual time."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TypeVar

Stepping = TypeVar("Stepping")


class Agenda:
    """What is to be done, and when: of two for the same time first what was put in first."""

    def __init__(self) -> None:
        self._order = count()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []

    def at(self, at_s: float, do: Callable[[float], None]) -> None:
        """`do` is told what time it is then."""
        heappush(self._due, (at_s, next(self._order), do))

    @property
    def next_s(self) -> float:
        """Infinite where nothing is to be done."""
        return self._due[0][0] if self._due else inf

    def do_due(self, now_s: float) -> None:
        """All that is due by now, what comes up meanwhile as well."""
        while self.next_s <= now_s:
            heappop(self._due)[2](now_s)

    def run(
        self,
        until_s: float,
        workers: Sequence[Stepping],
        due_s: Callable[[Stepping], float | None],
        step: Callable[[Stepping, float], None],
    ) -> None:
        """Time goes on from one thing to the next, of the agenda or of a worker, until then.

        A worker takes its step when that is due (None: it has none), before what the agenda has for the same time.
        What is done may add to `workers`.
        """
        now_s = 0.0
        while now_s < until_s:
            dues_s = [inf if (each_s := due_s(worker)) is None else each_s for worker in workers]
            now_s = max(min([self.next_s, *dues_s]), now_s)
            if now_s == inf:
                return
            for worker, worker_due_s in zip(workers, dues_s, strict=True):
                if worker_due_s <= now_s:
                    step(worker, now_s)
            self.do_due(now_s)
