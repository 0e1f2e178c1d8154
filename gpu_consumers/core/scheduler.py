"""Which of the requests that a worker has read enters the engine next. Pure: no I/O, no clock.

Lanes are strictly ordered above their floors. A lane that holds less than its floor of a batch of `max_running` answers
goes before those above it. As many as the floor of what a lane has in the engine have the priority of the highest lane
there, so that nobody who came over them is preferred to them. A lane that has nothing there, and of which nothing was
begun for long (`starves_after_ms`), goes before all others once: so no lane starves, also where its floor comes to no
whole slot. Within a lane the tenants share (`fair_queue.py`).

Some slots are kept free (`headroom`), because an answer that somebody reads is not taken back: who comes beside a
flood, in a lane above it or as a tenant that holds little, would wait for one to end. So nothing of lanes in which
nobody waits for first tokens takes them, and no tenant that holds an eighth of the batch or was given much more than
others. Where something is kept free, nothing waits in the engine, in which no tenants share; where nothing is, `buffer`
answers do, so that no batch runs short. Where what is kept free is not enough, an answer of a lane in which nobody
waits for first tokens is paused for who is next above it: it leaves the engine at once, and goes on when it has a slot
again (`pausing.py`).

A lane waits for one answer of those below it to end, not for a crowd of them, which one request may ask for: while the
engine holds more than its batch, a lane and those above it have one request wait in it, which the engine takes first.

Who is next needs room in the engine's memory too (`capacity.py`). A large prompt that has none at its turn is passed by
those that are not large, of its lane and of those below. When it has been for long (`large_waits_ms`), it has what
becomes free, beside a part of the memory for the others, and goes before all others as soon as it fits. Nobody passes
one that is not large: so of either kind nobody waits for ever.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gpu_consumers.core.capacity import Capacity
from gpu_consumers.core.fair_queue import FairQueue, Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.pausing import Pausing
from gpu_consumers.core.pool_shares import Service
from gpu_consumers.engines.port import EngineStats
from schemas.request import LANES, Lane
from schemas.worker import MAX_TENANTS, LaneQueue, OfTenantsByLane
from streams.lane_policy import LANE_POLICIES, LanePolicies

LARGE = 8
"""A tenant is large in a lane when it holds one part in so many of the batch there."""

BURST_TOKENS = 4_096
"""Of service, by which a small tenant may be ahead of who is next, and still take what is kept free: a few requests
that it made just before. Without it these would wait for large ones that may not take it. With no bound, who holds few
slots because its prompts are long would take it for ever."""

Why = Literal["order", "floor", "starving", "headroom", "room", "pause"]


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
    `told_beyond` the scheduler is to be told. `instead_of`: a response whose answer leaves the engine for it, at once.
    """

    item: Queued
    why: Why
    on_floor: bool
    told_beyond: int
    instead_of: str = ""


class _Lane:
    """What waits of it, shared between tenants and as it came."""

    def __init__(self, floor: int, starves_after_ms: int, *, takes_headroom: bool) -> None:
        self.floor = floor
        self.takes_headroom = takes_headroom
        self.shared = FairQueue()
        self.in_order: OrderedDict[str, Queued] = OrderedDict()
        self.slots = 0
        self.lacks_room_since_ms: int | None = None
        """A large one of it, at its turn. Who is next when that one is cancelled goes on with its wait: those that come
        and leave again hold up no other.
        """
        self._starves_after_ms = starves_after_ms
        self._begun_at_ms = 0
        self._begun_last = "", 0
        """What was begun last, and when something was before that."""

    def add(self, item: Queued, *, front: bool, is_large: bool) -> None:
        self.shared.add(item, front=front, is_large=is_large)
        self.in_order[item.response_id] = item
        if front:
            self.in_order.move_to_end(item.response_id, last=False)
        self.slots += item.slots

    def drop(self, item: Queued) -> None:
        """Of the order; the sharing is told by itself whether it was taken or removed."""
        del self.in_order[item.response_id]
        self.slots -= item.slots

    def begins(self, item: Queued, now_ms: int) -> None:
        self._begun_last = item.response_id, self._begun_at_ms
        self._begun_at_ms = now_ms

    def never_entered(self, response_id: str) -> None:
        """It had a slot, but was another's, or is taken over first: that was no turn of the lane's."""
        if self._begun_last[0] == response_id:
            self._begun_at_ms = self._begun_last[1]

    @property
    def oldest(self) -> Queued | None:
        return next(iter(self.in_order.values()), None)

    def starves(self, now_ms: int) -> bool:
        if not self._starves_after_ms or (oldest := self.oldest) is None:
            return False
        since_ms = max(oldest.queued_at_ms - oldest.queued_before_ms, self._begun_at_ms)
        return now_ms - since_ms >= self._starves_after_ms


class Scheduler:
    """Holds what waits. Every request is in it at most once. `memory` is the engine's; by default nothing is known of
    it, and all has room.
    """

    def __init__(self, sizes: Sizes, policies: LanePolicies = LANE_POLICIES, memory: Capacity | None = None) -> None:
        self._sizes = sizes
        self._memory = Capacity() if memory is None else memory
        self._large = max(sizes.batch // LARGE, 1)
        self._lanes = {
            lane: _Lane(
                int(policy.floor * sizes.batch), policy.starves_after_ms, takes_headroom=policy.waits_for_first_tokens
            )
            for lane in LANES
            for policy in [policies.of(lane)]
        }
        self._pausing = Pausing(frozenset(lane for lane in LANES if not policies.of(lane).waits_for_first_tokens))
        self._items: dict[str, Queued] = {}
        self._queued_tokens = 0
        self._tokens_of: Counter[str] = Counter()
        self._slots_of: Counter[str] = Counter()
        self._left: Counter[Lane] = Counter()
        self._left_tokens: Counter[Lane] = Counter()
        self._spilled: Counter[Lane] = Counter()
        self._spilled_tokens: Counter[Lane] = Counter()

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
        self._lanes[item.lane].add(item, front=front, is_large=self._memory.is_large(item))
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
        large = self._waited_for(now_ms)
        if held.total < self._sizes.all:
            if large is not None and self._memory.fits(large, large):
                return self._give(large, "room", held, now_ms)
            # What strict order gives by itself is not a floor's doing.
            by_floor: Why = "order" if held.total < self._sizes.shared else "floor"
            for lane, queue in self._lanes.items():
                has = held.of_lane[lane]
                why: Why | None = by_floor if has < queue.floor else None
                if queue.in_order:
                    by_floor = "floor"
                if why is None and not has and queue.starves(now_ms):
                    why = "starving"
                if why is None or not queue.in_order:
                    continue
                if (item := queue.shared.peek(self._room_in(queue, large, now_ms))) is not None:
                    return self._give(item, why, held, now_ms)
                if queue.shared.has_short:
                    return None
        return self._take_in_order(held, large, now_ms) or self._take_instead(held, large, now_ms)

    def _take_in_order(self, held: Held, large: Queued | None, now_ms: int) -> Given | None:
        """The highest lane in which somebody waits decides for all, above their floors; but where only large ones do,
        and have no room, the next one.
        """
        sizes = self._sizes
        above = silent = 0
        for lane, queue in self._lanes.items():
            above += held.of_lane[lane]
            silent += held.silent[lane]
            if not queue.in_order:
                continue
            has_room = self._room_in(queue, large, now_ms)
            is_crowded = held.total > sizes.batch and above < sizes.shared and not silent
            if held.total < sizes.shared or is_crowded:
                if (item := queue.shared.peek(has_room)) is not None:
                    return self._give(item, "order", held, now_ms)
            elif not queue.takes_headroom or held.total >= sizes.all:
                return None
            elif (item := self._small(lane, held, has_room)) is not None:
                return self._give(item, "headroom", held, now_ms)
            if queue.shared.has_short or queue.lacks_room_since_ms is None:
                return None
        return None

    def _take_instead(self, held: Held, large: Queued | None, now_ms: int) -> Given | None:
        """As `_take_in_order`, in the place of an answer that is paused. Where nothing is kept free others wait in the
        engine, and would have it.
        """
        if not self._sizes.headroom or held.total > self._sizes.all:
            return None
        for lane, queue in self._lanes.items():
            if not queue.in_order:
                continue
            if not queue.takes_headroom or (paused := self._pausing.for_lane(lane)) is None:
                return None
            with self._memory.without(paused):
                item = queue.shared.peek(self._room_in(queue, large, now_ms))
                return None if item is None else replace(self._give(item, "pause", held, now_ms), instead_of=paused)
        return None

    def _small(self, lane: Lane, held: Held, has_room: Callable[[Queued], bool]) -> Queued | None:
        """Of a tenant that may take what is kept free."""

        def is_small(tenant_id: str) -> bool:
            return held.of_tenant(lane, tenant_id) < self._large

        return self._lanes[lane].shared.peek_near(is_small, BURST_TOKENS, has_room)

    # Room in the memory

    def engine_tells(self, stats: EngineStats, now_ms: int) -> None:
        """Often: what becomes of its memory."""
        if not self._memory.engine_tells(stats, now_ms):
            return
        for queue in self._lanes.values():
            for item in queue.in_order.values():
                queue.shared.remove(item)
                queue.shared.add(item, is_large=self._memory.is_large(item))

    def _waited_for(self, now_ms: int) -> Queued | None:
        """The large one to which others leave room."""
        since_ms = now_ms - self._memory.policy.large_waits_ms
        large: Queued | None = None
        for queue in self._lanes.values():
            lacks_ms = queue.lacks_room_since_ms
            if lacks_ms is None:
                continue
            if (first := queue.shared.peek_large()) is None:
                queue.lacks_room_since_ms = None
            elif lacks_ms <= since_ms:
                since_ms, large = lacks_ms - 1, first
        return large

    def _room_in(self, queue: _Lane, large: Queued | None, now_ms: int) -> Callable[[Queued], bool]:
        """Whether somebody of this lane fits. A large one that does not is waited for from now on."""

        def has_room(item: Queued) -> bool:
            if self._memory.fits(item, large):
                return True
            if queue.lacks_room_since_ms is None and self._memory.is_large(item):
                queue.lacks_room_since_ms = now_ms
            return False

        return has_room

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

    def give_away(self, response_id: str) -> None:
        """It has left, and is counted where it goes."""
        item = self._items[response_id]
        self.remove(response_id)
        self._spilled[item.lane] += 1
        self._spilled_tokens[item.lane] += item.tokens

    def grown(self, lane: Lane, response_id: str, output: int) -> int:
        """The answers of a request in the engine have so many tokens by now. Returns as `Given.told_beyond`."""
        self._pausing.said(response_id)
        return min(self._lanes[lane].shared.grown(response_id, output), self._memory.grown(response_id, output))

    def left(self, lane: Lane, response_id: str, output: int | None, *, goes_on: bool = False) -> None:
        """It has left the engine with so many tokens, for good unless it `goes_on`; None: it has not been in it."""
        queue = self._lanes[lane]
        self._pausing.left(response_id)
        queue.shared.left(response_id, output, goes_on=goes_on)
        self._memory.left(response_id, output, goes_on=goes_on)
        if output is None:
            queue.never_entered(response_id)

    def waiting_ids(self) -> list[str]:
        """Of every request, as they came."""
        return list(self._items)

    def waiting_in(self, lane: Lane) -> list[str]:
        """As `waiting_ids`, of one lane."""
        return list(self._lanes[lane].in_order)

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

    def _queue_of(self, lane: Lane, waiting: int) -> LaneQueue:
        return LaneQueue(
            waiting=waiting, left=self._left[lane], left_tokens=self._left_tokens[lane],
            spilled=self._spilled[lane], spilled_tokens=self._spilled_tokens[lane],
        )  # fmt: skip

    def queues(self) -> dict[Lane, LaneQueue]:
        return {lane: self._queue_of(lane, waiting) for lane, waiting in self.waiting().items()}

    # Beside other workers

    def given_of(self) -> OfTenantsByLane:
        given = ((lane, queue.shared.given(MAX_TENANTS)) for lane, queue in self._lanes.items())
        return {lane: of_tenants for lane, of_tenants in given if of_tenants}

    def ahead_of(self) -> OfTenantsByLane:
        ahead = ((lane, queue.shared.ahead(MAX_TENANTS)) for lane, queue in self._lanes.items())
        return {lane: of_tenants for lane, of_tenants in ahead if of_tenants}

    def restore(self, ahead: OfTenantsByLane) -> None:
        """As `FairQueue.restore`."""
        for lane, of_tenants in ahead.items():
            self._lanes[lane].shared.restore(of_tenants)

    def given_elsewhere(self, service: Mapping[Lane, Service]) -> None:
        """As `FairQueue.given_elsewhere`."""
        for lane, queue in self._lanes.items():
            queue.shared.given_elsewhere(service.get(lane, {}))

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        """Age of the request of each lane that came first; 0 for an empty lane."""
        oldest = {lane: queue.oldest for lane, queue in self._lanes.items()}
        return {lane: 0 if item is None else max(now_ms - item.queued_at_ms, 0) for lane, item in oldest.items()}

    def _give(self, item: Queued, why: Why, held: Held, now_ms: int) -> Given:
        queue = self._lanes[item.lane]
        on_floor = why == "starving" or held.on_floor[item.lane] < queue.floor
        told_beyond = min(queue.shared.take(item), self._memory.take(item))
        if self._pausing.entered(item, on_floor=on_floor):
            told_beyond = 0
        queue.begins(item, now_ms)
        if queue.lacks_room_since_ms is not None and self._memory.is_large(item):
            queue.lacks_room_since_ms = None
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
