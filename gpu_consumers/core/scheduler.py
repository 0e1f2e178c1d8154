"""Which of the requests that a worker has read enters the engine next. Pure: no I/O, no clock.

Lanes are strictly ordered; within a lane first come, first served. The order within a lane is `_LaneQueue`'s business
alone: fairness between tenants will stand there.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from schemas.request import LANES, Lane


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that waits. `tokens` is what it may cost: prompt plus bounded output; `slots` is how many it takes."""

    response_id: str
    lane: Lane
    tokens: int
    queued_at_ms: int
    slots: int = 1
    tenant_id: str = ""


class _LaneQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: OrderedDict[str, Queued] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Queued, *, front: bool) -> None:
        self._queue[item.response_id] = item
        if front:
            self._queue.move_to_end(item.response_id, last=False)

    def peek(self) -> Queued | None:
        return next(iter(self._queue.values()), None)

    def remove(self, response_id: str) -> None:
        del self._queue[response_id]


class Scheduler:
    """Holds what waits. Every request is in it at most once."""

    def __init__(self) -> None:
        self._lanes = {lane: _LaneQueue() for lane in LANES}
        self._items: dict[str, Queued] = {}
        self._queued_tokens = 0
        self._queued_slots = 0
        self._tokens_of: Counter[str] = Counter()
        self._slots_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._items

    def add(self, item: Queued, *, front: bool = False) -> None:
        """`front` is for one that had been taken and must not lose its place. Raises ValueError for a known id."""
        if item.response_id in self._items:
            raise ValueError(f"{item.response_id} is queued")
        self._items[item.response_id] = item
        self._lanes[item.lane].add(item, front=front)
        self._queued_tokens += item.tokens
        self._queued_slots += item.slots
        self._tokens_of[item.tenant_id] += item.tokens
        self._slots_of[item.tenant_id] += item.slots

    def take(self, slots: int, held: Mapping[Lane, int]) -> list[Queued]:
        """Removes and returns the next requests: each lane's while it and those above it hold fewer than `slots`, of
        which so many are `held`.

        What lower lanes hold does not count: the engine itself lets higher ones go first. The last of a lane may take
        more than there are: else it would wait until an engine is empty, or for ever.
        """
        taken: list[Queued] = []
        held_so_far = 0
        for lane in LANES:
            held_so_far += held.get(lane, 0)
            queue = self._lanes[lane]
            while held_so_far < slots and (head := queue.peek()) is not None:
                self._discard(head)
                taken.append(head)
                held_so_far += head.slots
        return taken

    def remove(self, response_id: str) -> Queued | None:
        """None when it does not wait."""
        item = self._items.get(response_id)
        if item is not None:
            self._discard(item)
        return item

    def waiting_ids(self) -> list[str]:
        """Of every request, as they came."""
        return list(self._items)

    @property
    def queued_tokens(self) -> int:
        return self._queued_tokens

    @property
    def tokens_of(self) -> Counter[str]:
        """Those of each tenant that has some."""
        return +self._tokens_of

    @property
    def slots_of(self) -> Counter[str]:
        return +self._slots_of

    @property
    def queued_slots(self) -> int:
        """That what waits will take."""
        return self._queued_slots

    def waiting(self) -> dict[Lane, int]:
        return {lane: len(queue) for lane, queue in self._lanes.items()}

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        """Age of the request that each lane would give next; 0 for an empty lane."""
        heads = {lane: queue.peek() for lane, queue in self._lanes.items()}
        return {lane: 0 if head is None else max(now_ms - head.queued_at_ms, 0) for lane, head in heads.items()}

    def _discard(self, item: Queued) -> None:
        del self._items[item.response_id]
        self._lanes[item.lane].remove(item.response_id)
        self._queued_tokens -= item.tokens
        self._queued_slots -= item.slots
        self._tokens_of[item.tenant_id] -= item.tokens
        self._slots_of[item.tenant_id] -= item.slots
