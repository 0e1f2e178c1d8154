"""Which of its unstarted requests a worker gives to others of its pool, where they wait less. Pure: no I/O, no clock.

A worker knows of the others what routers know: heartbeats, which say what waits in each lane and how fast that goes
(`streams/drain.py`). From these it finds the wait that all queues of a lane would have if they were even: what it has
beyond that is its surplus, and what others have below it is their room. Every worker finds the same, so several that
give at once do not overrun who takes: each fills its part of every room, and little more.

- It begins to give where its wait is twice the shortest, and a second longer; it stops when they are near each other.
  A worker is taken to be as fast as chance allows, by what was seen of it: a batch that nobody has left yet may end at
  once.
- So many a second, and long prompts count for several. A request is given away twice at most, and not where its
  deadline would pass all the same.
- Of tenants the one with the longest line for its weight gives first, always what it asked last: that would have waited
  longest. So who has little here keeps its turn.
- An engine that fails is given nothing, however little waits there, and its worker gives what sound ones have room for.
- What begins alike goes to one worker, by rendezvous hashing, as routers do it. A prompt whose beginning was computed
  here stays, unless its wait is much longer than to compute it again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from heapq import heapify, heapreplace
from math import sqrt
from typing import Final, NamedTuple

from schemas.generated import QueueAhead
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.drain import AHEAD, DrainWindow, passed, waiting
from streams.ids import stable_partition
from streams.rendezvous import score

ROUND_MS: Final = 1_000
"""As often as workers beat."""
PICKUP_MS: Final = 250
"""A heartbeat may miss what was given so shortly before it."""
MAX_SPILLS: Final = 2
"""So often one request is given away."""
BEGINS_TIMES, BEGINS_MS = 2.0, 1_000
GOES_ON_TIMES, GOES_ON_MS = 1.25, 250
MOST_MS: Final = 3_600_000
"""Nobody waits longer, or nothing moves there."""
ON_ITS_WAY_MS: Final = 1_000
"""It takes at most, and may take so long of what is left until a deadline."""
TOKENS_PER_TURN: Final = 4_096
"""Of a prompt, for each of which it counts as one more."""
COMPUTED_TOKENS_PER_MS: Final = 5
"""Of a prompt, by a slow engine."""
SKEW: Final = 1.5
"""By how much more than its part one room may be filled, for what is to stay together."""
KEEPS_TIMES: Final = 2
"""A prompt stays whose beginning takes more than one part in so many of what it would gain."""


class Candidate(NamedTuple):
    """An unstarted request. `kept_tokens`: so many of its prompt may be in the prefix cache here."""

    response_id: str
    tenant_id: str
    prompt_tokens: int
    deadline_ms: int
    weight: int = 1
    cache_id: str = ""
    kept_tokens: int = 0


class Spill(NamedTuple):
    """A request that goes to this worker, into this partition of its lane. `ahead`: what it finds before it there,
    where that is anything.
    """

    response_id: str
    worker_id: str
    partition: int
    ahead: QueueAhead | None = None


class _Standing(NamedTuple):
    """Of one worker, for one lane: `ahead` wait before who comes now, `free` slots are for who comes at once. Of what
    is on its way there `at_once` have such already: they are before nobody, and its next heartbeat says that they left.
    """

    ahead: float
    per_s: float
    free: int
    at_once: int = 0

    @property
    def wait_ms(self) -> float:
        if self.free or not self.ahead:
            return 0.0
        return min(self.ahead * 1_000 / self.per_s, MOST_MS) if self.per_s else MOST_MS


class _Known:
    """One worker of the pool. `rates`: as they were measured last."""

    def __init__(self, state: WorkerState) -> None:
        self.state = state
        self.window = DrainWindow()
        self.rates: dict[Lane, float] = {}
        self.window.add(state)

    def heard(self, state: WorkerState) -> None:
        if state.counts_since_ms != self.state.counts_since_ms:
            self.rates.clear()
        self.state = state
        self.window.add(state)

    def per_s(self, lane: Lane) -> float | None:
        """As fast as it may be, by what was seen; None: nothing was."""
        drain = self.window.drain(AHEAD[lane])
        if drain is not None:
            seconds = self.window.waited_ms(AHEAD[lane]) / 1_000
            seen = max(drain.requests_per_s * seconds, 0.0)
            self.rates[lane] = max(seen + 1 + 2 * sqrt(seen + 1), self.state.max_running / 2) / seconds
        return self.rates.get(lane)


class Spilling:
    """What one worker knows of its pool, and what it has given away of late."""

    def __init__(self, worker_id: str, pool: str, per_s: int) -> None:
        """`per_s`: requests, at most; 0: none."""
        self._worker_id, self._pool, self._per_s = worker_id, pool, per_s
        self._known: dict[str, _Known] = {}
        self._given: list[tuple[int, str, Lane]] = []
        self._gives: set[Lane] = set()
        self._next_ms = 0

    def heard(self, state: WorkerState) -> None:
        """A heartbeat of any worker, also its own; in order per worker."""
        if state.pool != self._pool:
            return
        known = self._known.get(state.worker_id)
        if known is None:
            self._known[state.worker_id] = _Known(state)
        elif state.beat_at_ms >= known.state.beat_at_ms:
            known.heard(state)

    def buried(self, worker_id: str) -> None:
        """It has left, or was lost."""
        self._known.pop(worker_id, None)

    def due(self, now_ms: int) -> bool:
        """Whether `plan` would look: once in a round."""
        return bool(self._per_s) and now_ms >= self._next_ms and len(self._known) > 1

    def plan(
        self, own: Mapping[Lane, int], candidates: Callable[[Lane], Iterable[Candidate]],
        own_partitions: Mapping[Lane, Set[int]], now_ms: int,
    ) -> list[Spill]:  # fmt: skip
        """What goes now, of `own` requests that wait. `candidates` are asked for where something may go, and given as
        they came; what is not to be moved is none of them, nor need all be that may.
        """
        self._next_ms = now_ms + ROUND_MS
        self._forget(now_ms)
        others = {
            worker_id: each for worker_id, each in self._known.items()
            if worker_id != self._worker_id and each.state.state == "ready" and each.state.is_live(now_ms)
            and each.state.failing is None
        }  # fmt: skip
        me = self._known.get(self._worker_id)
        left = self._per_s * ROUND_MS / 1_000
        spills: list[Spill] = []
        for lane in LANES:
            if me is None or not own.get(lane) or left <= 0:
                self._gives.discard(lane)
                continue
            ahead = sum(own.get(each, 0) for each in AHEAD[lane]) - len(spills)
            round_ = self._round(lane, me, ahead, others, own_partitions.get(lane, frozenset()))
            if round_ is None:
                self._gives.discard(lane)
                continue
            for candidate in _from_longest_lines(candidates(lane)):
                if (spill := round_.goes(candidate, now_ms)) is not None:
                    spills.append(spill)
                    self._given.append((now_ms, spill.worker_id, lane))
                    left -= 1 + candidate.prompt_tokens // TOKENS_PER_TURN
                if left <= 0 or round_.is_full:
                    break
        return spills

    def _forget(self, now_ms: int) -> None:
        """What was given that a heartbeat tells of by now, or that nobody will."""
        self._given = [
            (at_ms, worker_id, lane) for at_ms, worker_id, lane in self._given
            if (known := self._known.get(worker_id)) is not None
            and at_ms > known.state.beat_at_ms - PICKUP_MS and now_ms - at_ms < known.state.lease_ms
        ]  # fmt: skip

    def _round(
        self, lane: Lane, me: _Known, ahead: int, others: Mapping[str, _Known], own_partitions: Set[int]
    ) -> "_Round | None":
        """None: nothing is to go, or too little is known."""
        own_per_s = me.per_s(lane) if me.state.failing is None else 0.0
        if own_per_s is None:
            return None
        standings = self._standings(lane, others)
        partitions = {
            worker_id: free for worker_id in standings
            if (free := sorted({*others[worker_id].state.lane_partitions.get(lane, ())} - own_partitions))
        }  # fmt: skip
        if not partitions:
            return None
        own = _Standing(ahead, own_per_s, 0)
        shortest_ms = min(standings[worker_id].wait_ms for worker_id in partitions)
        times, more_ms = (GOES_ON_TIMES, GOES_ON_MS) if lane in self._gives else (BEGINS_TIMES, BEGINS_MS)
        if own.wait_ms < times * shortest_ms + more_ms:
            return None
        all_ = [own, *standings.values()]
        even_s = _even_s(all_)
        surplus = int(own.ahead - own.per_s * even_s)
        rooms = {
            worker_id: room for worker_id in partitions
            if (room := _room_of(standings[worker_id], even_s)) > 0
        }  # fmt: skip
        if surplus < 1 or not rooms:
            return None
        self._gives.add(lane)
        part = SKEW * min(surplus / sum(rooms.values()), 1.0)
        return _Round(
            {worker_id: room * part for worker_id, room in rooms.items()},
            {worker_id: _Queue(others[worker_id].state, lane, standings[worker_id]) for worker_id in rooms},
            partitions, surplus, own.wait_ms - even_s * 1_000, even_s * 1_000,
        )  # fmt: skip

    def _standings(self, lane: Lane, others: Mapping[str, _Known]) -> dict[str, _Standing]:
        """Who was never measured is taken to be as fast as the others, by slots, but for those that fail."""
        rates = {worker_id: each.per_s(lane) for worker_id, each in self._known.items()}
        measured = [
            (rate, state.max_running) for worker_id, rate in rates.items()
            if rate is not None and (state := self._known[worker_id].state).failing is None
        ]  # fmt: skip
        slots = sum(slots for _, slots in measured)
        per_slot = sum(rate for rate, _ in measured) / slots if slots else 0.0
        standings = {}
        for worker_id, each in others.items():
            state, rate = each.state, rates[worker_id]
            given = [lane_ for _, to, lane_ in self._given if to == worker_id]
            ahead = waiting(state.queues, AHEAD[lane])
            on_the_way = sum(each in AHEAD[lane] for each in given)
            free = 0 if state.waiting else max(state.max_running - state.running - len(given), 0)
            at_once = 0 if state.waiting else min(on_the_way, max(state.max_running - state.running, 0))
            standings[worker_id] = _Standing(
                ahead + on_the_way - at_once, per_slot * state.max_running if rate is None else rate, free, at_once
            )
        return standings


class _Queue:
    """Who takes, as its newest heartbeat and what goes there fill it."""

    def __init__(self, state: WorkerState, lane: Lane, standing: _Standing) -> None:
        self._state, self._per_s = state, standing.per_s
        self._before = int(standing.ahead) - standing.free
        # Who takes a free slot is before nobody, too.
        self._left = passed(state.queues, AHEAD[lane]).requests + standing.at_once + standing.free

    def next_place(self) -> QueueAhead | None:
        """Of who goes there now."""
        before = self._before
        self._before += 1
        if before < 1:
            return None
        state = self._state
        return QueueAhead(
            worker_id=state.worker_id, before=before, left=self._left,
            wait_ms=int(min(before * 1_000 / self._per_s, MOST_MS)) if self._per_s else None,
            counts_since_ms=state.counts_since_ms,
        )  # fmt: skip


class _Round:
    """What may go of one lane now."""

    def __init__(
        self, rooms: dict[str, float], queues: Mapping[str, _Queue], partitions: Mapping[str, list[int]], surplus: int,
        gain_ms: float, wait_ms: float,
    ) -> None:  # fmt: skip
        self._rooms, self._queues, self._partitions, self._left = rooms, queues, partitions, surplus
        self._gain_ms, self._wait_ms = gain_ms, wait_ms

    @property
    def is_full(self) -> bool:
        return self._left <= 0 or not self._rooms

    def goes(self, candidate: Candidate, now_ms: int) -> Spill | None:
        """None: it stays."""
        if candidate.deadline_ms <= now_ms + self._wait_ms + ON_ITS_WAY_MS:
            return None
        if candidate.kept_tokens / COMPUTED_TOKENS_PER_MS * KEEPS_TIMES > self._gain_ms:
            return None
        rooms = self._rooms
        if candidate.cache_id:
            worker_id = max(rooms, key=lambda each: score(candidate.cache_id, each))
        else:
            worker_id = max(rooms, key=lambda each: (rooms[each], each))
        rooms[worker_id] -= 1
        if rooms[worker_id] <= 0:
            del rooms[worker_id]
        self._left -= 1
        partitions = self._partitions[worker_id]
        number = stable_partition(candidate.response_id, len(partitions))
        return Spill(candidate.response_id, worker_id, partitions[number], self._queues[worker_id].next_place())


def _even_s(standings: Iterable[_Standing]) -> float:
    """The wait of all, if what waits were where it waits least."""
    all_ = [*standings]
    per_s = sum(each.per_s for each in all_)
    beyond = sum(each.ahead - each.free for each in all_)
    return min(max(beyond, 0.0) / per_s, MOST_MS / 1_000) if per_s else 0.0


def _room_of(standing: _Standing, even_s: float) -> float:
    """How many it may take before who comes there waits as long as elsewhere."""
    return standing.free + standing.per_s * even_s - standing.ahead


def _from_longest_lines(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """The newest of the tenant that has most for its weight, then of who has most without that, and so on."""
    lines: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        lines.setdefault(candidate.tenant_id, []).append(candidate)
    heap = [(-len(line) / line[-1].weight, tenant_id) for tenant_id, line in lines.items()]
    heapify(heap)
    while heap and heap[0][0] < 0:
        tenant_id = heap[0][1]
        line = lines[tenant_id]
        candidate = line.pop()
        heapreplace(heap, (-len(line) / candidate.weight, tenant_id))
        yield candidate
