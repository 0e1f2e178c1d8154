"""Which of the requests that a worker has read enters the engine next. Pure: no I/O, no clock.

Lanes are strictly ordered above their floors. A lane that holds less than its floor of a batch of `max_running` answers
goes before those above it. As many as the floor of what a lane has in the engine have the priority of the highest lane
there, so that nobody who came over them is preferred to them. A lane that has nothing there, and of which nothing was
begun for long (`starves_after_ms`), goes before all others once: so no lane starves, also where its floor comes to no
whole slot. Within a lane the tenants share (`fair_queue.py`).

Some slots are kept free (`headroom`), because an answer that runs is not taken back: who comes beside a flood, in a
lane above it or as a tenant that holds little, would wait for one to end. So nothing of lanes in which nobody waits for
first tokens takes them, and no tenant that holds an eighth of the batch or was given much more than others. Where
something is kept free, nothing waits in the engine, in which no tenants share; where nothing is, `buffer` answers do,
so that no batch runs short.

A lane waits for one answer of those below it to end, not for a crowd of them, which one request may ask for: while the
engine holds more than its batch, a lane and those above it have one request wait in it, which the engine takes first.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Literal

from gpu_consumers.core.fair_queue import FairQueue, Queued
from gpu_consumers.core.held import Held
from schemas.request import LANES, Lane
from schemas.worker import LaneQueue
from streams.lane_policy import LANE_POLICIES, LanePolicies

LARGE = 8
"""A tenant is large in a lane when it holds one part in so many of the batch there."""

BURST_TOKENS = 4_096
"""Of service, by which a small tenant may be ahead of who is next, and still take what is kept free: a few requests
that it made just before. Without it these would wait for large ones that may not take it. With no bound, who holds few
slots because its prompts are long would take it for ever."""

Why = Literal["order", "floor", "starving", "headroom"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Answers: of the engine's batch, kept free of it, and waiting in the engine where nothing is kept free."""

    batch: int
    headroom: int = 0
    buffer: int = 0

    @property
    def all(self) -> int:
        """So many slots there are."""
        return self.batch if self.headroom else self.batch + self.buffer

    @property
    def shared(self) -> int:
        """So many are for anybody."""
        return self.all - self.headroom


@dataclass(frozen=True, slots=True)
class Given:
    """A request that has a slot now. `on_floor`: no lane's work is preferred to it in the engine. Of more tokens than
    `told_beyond` the scheduler is to be told.
    """

    item: Queued
    why: Why
    on_floor: bool
    told_beyond: int


class _Lane:
    """What waits of it, shared between tenants and as it came."""

    def __init__(self, floor: int, starves_after_ms: int, *, takes_headroom: bool) -> None:
        self.floor = floor
        self.takes_headroom = takes_headroom
        self.shared = FairQueue()
        self.in_order: OrderedDict[str, Queued] = OrderedDict()
        self.slots = 0
        self._starves_after_ms = starves_after_ms
        self._begun_at_ms = 0

    def add(self, item: Queued, *, front: bool) -> None:
        self.shared.add(item, front=front)
        self.in_order[item.response_id] = item
        if front:
            self.in_order.move_to_end(item.response_id, last=False)
        self.slots += item.slots

    def drop(self, item: Queued) -> None:
        """Of the order; the sharing is told by itself whether it was taken or removed."""
        del self.in_order[item.response_id]
        self.slots -= item.slots

    def begins(self, now_ms: int) -> None:
        self._begun_at_ms = now_ms

    @property
    def oldest(self) -> Queued | None:
        return next(iter(self.in_order.values()), None)

    def starves(self, now_ms: int) -> bool:
        if not self._starves_after_ms or (oldest := self.oldest) is None:
            return False
        return now_ms - max(oldest.queued_at_ms, self._begun_at_ms) >= self._starves_after_ms


class Scheduler:
    """Holds what waits. Every request is in it at most once."""

    def __init__(self, sizes: Sizes, policies: LanePolicies = LANE_POLICIES) -> None:
        self._sizes = sizes
        self._large = max(sizes.batch // LARGE, 1)
        self._lanes = {
            lane: _Lane(
                int(policy.floor * sizes.batch), policy.starves_after_ms, takes_headroom=policy.waits_for_first_tokens
            )
            for lane in LANES
            for policy in [policies.of(lane)]
        }
        self._items: dict[str, Queued] = {}
        self._queued_tokens = 0
        self._tokens_of: Counter[str] = Counter()
        self._slots_of: Counter[str] = Counter()
        self._left: Counter[Lane] = Counter()
        self._left_tokens: Counter[Lane] = Counter()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._items

    def add(self, item: Queued, *, front: bool = False) -> None:
        """`front` is for one that had been taken and must not lose its place among those of its tenant. Raises
        ValueError for a known id.
        """
        if item.response_id in self._items:
            raise ValueError(f"{item.response_id} is queued")
        self._items[item.response_id] = item
        self._lanes[item.lane].add(item, front=front)
        self._queued_tokens += item.tokens
        self._tokens_of[item.tenant_id] += item.tokens
        self._slots_of[item.tenant_id] += item.slots

    def take(self, held: Held, now_ms: int) -> Given | None:
        """Removes the next request that has a slot, where there is one: `held` says what is taken.

        While there is room for one of its answers a request has room, however many it asks for: else it would wait
        until an engine is empty, or for ever.
        """
        if not self._items:
            return None
        if held.total < self._sizes.all:
            for lane, queue in self._lanes.items():
                has = held.of_lane[lane]
                if has < queue.floor and (item := queue.shared.peek()) is not None:
                    return self._give(item, "floor", held, now_ms)
                if not has and queue.starves(now_ms) and (item := queue.shared.peek()) is not None:
                    return self._give(item, "starving", held, now_ms)
        return self._take_in_order(held, now_ms)

    def _take_in_order(self, held: Held, now_ms: int) -> Given | None:
        """The highest lane in which somebody waits decides for all: above their floors lower ones have nothing then."""
        sizes = self._sizes
        above = silent = 0
        for lane, queue in self._lanes.items():
            above += held.of_lane[lane]
            silent += held.silent[lane]
            if (item := queue.shared.peek()) is not None:
                break
        else:
            return None
        is_crowded = held.total > sizes.batch and above < sizes.shared and not silent
        if held.total < sizes.shared or is_crowded:
            return self._give(item, "order", held, now_ms)
        if not queue.takes_headroom or held.total >= sizes.all:
            return None

        def is_small(tenant_id: str) -> bool:
            return held.of_tenant(lane, tenant_id) < self._large

        small = queue.shared.peek_near(is_small, BURST_TOKENS)
        return None if small is None else self._give(small, "headroom", held, now_ms)

    def take_first(self) -> Queued | None:
        """Removes and returns the oldest of the highest lane, whatever is held."""
        for queue in self._lanes.values():
            if (item := queue.oldest) is not None:
                return self.remove(item.response_id)
        return None

    def remove(self, response_id: str, *, is_moved: bool = False) -> Queued | None:
        """None when it does not wait. What is moved goes on waiting elsewhere, and has not left."""
        item = self._items.get(response_id)
        if item is not None:
            self._lanes[item.lane].shared.remove(item)
            self._discard(item)
            if not is_moved:
                self._has_left(item)
        return item

    def grown(self, lane: Lane, response_id: str, output: int) -> int:
        """The answers of a request in the engine have so many tokens by now. Returns as `Given.told_beyond`."""
        return self._lanes[lane].shared.grown(response_id, output)

    def left(self, lane: Lane, response_id: str, output: int | None) -> None:
        """It has left the engine with so many tokens; None: it has not been in it."""
        self._lanes[lane].shared.left(response_id, output)

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
        return sum(queue.slots for queue in self._lanes.values())

    def waiting(self) -> dict[Lane, int]:
        return {lane: len(queue.in_order) for lane, queue in self._lanes.items()}

    def queues(self) -> dict[Lane, LaneQueue]:
        return {
            lane: LaneQueue(waiting=waiting, left=self._left[lane], left_tokens=self._left_tokens[lane])
            for lane, waiting in self.waiting().items()
        }

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        """Age of the request of each lane that came first; 0 for an empty lane."""
        oldest = {lane: queue.oldest for lane, queue in self._lanes.items()}
        return {lane: 0 if item is None else max(now_ms - item.queued_at_ms, 0) for lane, item in oldest.items()}

    def _give(self, item: Queued, why: Why, held: Held, now_ms: int) -> Given:
        queue = self._lanes[item.lane]
        on_floor = why == "starving" or held.on_floor[item.lane] < queue.floor
        told_beyond = queue.shared.take(item)
        queue.begins(now_ms)
        self._discard(item)
        self._has_left(item)
        return Given(item, why, on_floor, told_beyond)

    def _discard(self, item: Queued) -> None:
        del self._items[item.response_id]
        self._lanes[item.lane].drop(item)
        self._queued_tokens -= item.tokens
        self._tokens_of[item.tenant_id] -= item.tokens
        self._slots_of[item.tenant_id] -= item.slots

    def _has_left(self, item: Queued) -> None:
        self._left[item.lane] += 1
        self._left_tokens[item.lane] += item.tokens
