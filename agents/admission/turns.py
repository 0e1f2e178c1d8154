"""Who begins next, and how often."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from agents.admission.in_order import NotBegun

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]
FINEST_S = 0.001
OTHERS_EVERY = 8
"""One of so many turns is for the ranks behind the first that waits, these by turns."""


class Pace:
    """Spaces events evenly: at most `per_second`, without a burst."""

    def __init__(self, per_second: float) -> None:
        self._interval_s = 1 / per_second
        self._next_s = 0.0

    def wait_s(self, now_s: float, weight: float = 1.0) -> float:
        """How long the next event has to wait. Counts it as started then, and as `weight` of them."""
        start_s = max(self._next_s, now_s)
        self._next_s = start_s + self._interval_s * weight
        return start_s - now_s


class FairOrder(Generic[T]):
    """Who is next: holders share by weight, however much each of them brings (start-time fair queueing)."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[tuple[float, T]]] = {}
        self._served: dict[Hashable, float] = {}
        self._now = 0.0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def put(self, holder: Hashable, weight: float, item: T) -> None:
        self._served[holder] = max(self._served.get(holder, 0.0), self._now)
        self._lines.setdefault(holder, deque()).append((weight, item))

    def take(self) -> tuple[float, T]:
        """With its weight. Raises ValueError when there is none."""
        holder = min(self._lines, key=self._served.__getitem__)
        weight, item = self._lines[holder].popleft()
        self._now = self._served[holder]
        self._served[holder] += weight
        self._took(holder)
        return weight, item

    def take_last(self) -> tuple[float, T]:
        """What came last of whoever has most, as if it had not come. Raises ValueError when there is none."""
        holder = max(self._lines, key=lambda each: len(self._lines[each]))
        weight, item = self._lines[holder].pop()
        self._took(holder)
        return weight, item

    def _took(self, holder: Hashable) -> None:
        if not self._lines[holder]:
            del self._lines[holder]
        if not self._lines:
            # Nobody waited: nobody owes anything.
            self._served.clear()
            self._now = 0.0

    def keep(self, is_wanted: Callable[[T], bool]) -> None:
        """Whatever else waits is forgotten, as if it had not come."""
        for holder, line in [*self._lines.items()]:
            kept = deque((weight, item) for weight, item in line if is_wanted(item))
            if kept:
                self._lines[holder] = kept
            else:
                del self._lines[holder]


def is_others_turn(taken: int) -> bool:
    """Behind so many turns."""
    return taken % OTHERS_EVERY == OTHERS_EVERY - 1


def whose_turn(ranks: Sequence[T], taken: int) -> T:
    """Of those that wait, the first first."""
    if len(ranks) > 1 and is_others_turn(taken):
        return ranks[1 + taken // OTHERS_EVERY % (len(ranks) - 1)]
    return ranks[0]


class RankOrder(Generic[T]):
    """Who is next: by rank, the lowest number first, and in each rank as in `FairOrder`."""

    def __init__(self) -> None:
        self._ranks: dict[int, FairOrder[T]] = {}
        self._taken = 0

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def put(self, rank: int, holder: Hashable, weight: float, item: T) -> None:
        self._ranks.setdefault(rank, FairOrder()).put(holder, weight, item)

    def take(self) -> tuple[float, T]:
        """With its weight. Raises IndexError when there is none."""
        rank = whose_turn(sorted(self._ranks), self._taken)
        self._taken += 1
        taken = self._ranks[rank].take()
        if not self._ranks[rank]:
            del self._ranks[rank]
        return taken


class Turns:
    """Lets work begin at a pace, by rank, the holders of each by turns. Used from one event loop.

    `on_next` is told, while anybody waits, in how many seconds the next turn is given.
    """

    def __init__(
        self,
        per_second: float,
        clock_s: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        on_next: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._pace = Pace(per_second)
        self._clock_s = clock_s
        self._sleep = sleep
        self._on_next = on_next
        self._waiting: RankOrder[asyncio.Future[None]] = RankOrder()
        self._giving: asyncio.Task[None] | None = None
        self._is_closed = False

    async def wait(self, holder: Hashable, weight: float = 1.0, rank: int = 0) -> None:
        """Returns when it is this one's turn. Raises NotBegun once it is closed."""
        if self._is_closed:
            raise NotBegun
        turn = asyncio.get_running_loop().create_future()
        self._waiting.put(rank, holder, weight, turn)
        if self._giving is None:
            self._giving = asyncio.create_task(self._give())
        await turn

    def close(self) -> None:
        """No turn is given any more."""
        self._is_closed = True
        while self._waiting:
            _, turn = self._waiting.take()
            if not turn.done():
                turn.set_exception(NotBegun())

    async def _give(self) -> None:
        try:
            wait_s = self._pace.wait_s(self._clock_s(), 0)
            while self._waiting:
                self._on_next(wait_s)
                # No timer is finer than that; what is not waited now adds up.
                await self._sleep(wait_s if wait_s >= FINEST_S else 0)
                if not self._waiting:
                    return
                weight, turn = self._waiting.take()
                self._pace.wait_s(self._clock_s(), weight)
                if not turn.done():
                    turn.set_result(None)
                wait_s = self._pace.wait_s(self._clock_s(), 0)
        finally:
            self._giving = None
