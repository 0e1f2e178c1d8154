"""Which worker of a pool an admitted request goes to, by its partition, from what workers say about themselves.

Which pool is chosen in `route_plan`; which of its workers are within bounds, and come first, `affinity` says.

Pure: time and identity are parameters. `WorkersView` is the fold of the compacted `workers` topic plus what this
process has routed since; `choose` and `overloaded` decide on it.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.admission import affinity
from agents.admission.affinity import Standing, within_bounds
from schemas.generated import QueueAhead
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.brownout import LaneSample
from streams.drain import AHEAD, Drain, DrainWindow, passed, waiting
from streams.ids import stable_partition
from streams.lane_policy import LANE_POLICIES, LanePolicies
from streams.lane_queues import lane_queues
from streams.queue_place import wait_ms

PICKUP_MS = 250
"""A heartbeat may miss what was routed so shortly before it: the worker had not read it yet."""
RUNNING_TOKENS = 256
"""What a running answer is taken to weigh, in tokens still to be done."""
SLACK_OF_SLOTS, LEAST_SLACK = 1 / 16, 2
"""A batch may be so much of itself fuller than others are, in answers, for what it has the beginning of."""
MAX_ROUTED = 10_000
LEAST_WAIT_MS, MOST_WAIT_MS = 1_000, 30_000
"""Whoever is refused is advised to wait so long. Longer, and a queue that has emptied stands idle."""
UNKNOWN_WAIT_MS = 5_000
TRIED_MS = 1_000
"""Until a worker whose engine is tried is known to be well, or not to be."""
QUEUE_TO_EMPTY = 0.25
"""Of a queue that was full, before it is worth while to come again."""

OWN_SHARE, SHARE_OF_ALL_WITH_SOME = 0.5, 0.75
"""Of what a lane may fill, in tokens and in answers: how much may be one tenant's, and from how much on in all who has
some is given none. So a few large requests leave half to others, and the last quarter to who has none yet.
"""


class Weight(NamedTuple):
    """What a request takes of a queue: tokens, and a slot for each answer."""

    tokens: int
    answers: int = 1
    tenant_id: str = ""
    lane: Lane = Lane.STANDARD


@dataclass(frozen=True, slots=True)
class Load:
    """One live worker as the router sees it. What is `own` in its queue is of the tenant that it is asked for."""

    state: WorkerState
    routed_tokens: int = 0
    routed_answers: int = 0
    own_tokens: int = 0
    own_answers: int = 0
    drain: Drain | None = None
    """How fast its queue empties; None where that was not measured."""
    out_for_ms: int = 0
    """Its engine fails request after request: so long nothing is sent there, or until the one that tries has an answer.
    """

    def tokens(self, times_slower: float = 1.0) -> float:
        return self.queued_tokens * times_slower + self.state.running * RUNNING_TOKENS

    @property
    def queued_tokens(self) -> int:
        return self.state.queued_tokens + self.routed_tokens

    @property
    def queued_answers(self) -> int:
        return self.state.waiting + self.routed_answers

    def serves(self, lane: Lane) -> bool:
        """Whether what is routed to it in that lane has a partition of it there, and one to be written to."""
        return bool(self.state.lane_partitions.get(lane) and self.state.home_partitions)

    def standing(self, lane: Lane, times_slower: float = 1.0) -> Standing:
        """Among the workers that could take a request of this lane. What waits there counts by how long it takes.

        Where nothing waits, what was routed since fills the free slots first: it runs, and weighs no more than that.
        """
        state, slots = self.state, self.state.max_running
        free = 0 if state.waiting else max(slots - state.running, 0)
        at_once = min(self.routed_answers, free)
        queued = state.queued_tokens
        if at_once < self.routed_answers:
            queued += self.routed_tokens * (self.routed_answers - at_once) // self.routed_answers
        oldest_ms = state.oldest_waiting_ms
        if oldest_ms and state.queues and not waiting(state.queues, AHEAD[lane]):
            oldest_ms = 0
        return Standing(
            burden_tokens=queued * times_slower + (state.running + at_once) * RUNNING_TOKENS,
            slack_tokens=max(slots * SLACK_OF_SLOTS, min(LEAST_SLACK, slots)) * RUNNING_TOKENS,
            queued_tokens=queued * times_slower,
            has_slot=free > at_once,
            memory=state.kv_blocks_used / state.kv_blocks_total if state.kv_blocks_total else 0.0,
            oldest_ms=oldest_ms,
        )


@dataclass(frozen=True, slots=True)
class Route:
    """`worker_id` None: no worker lives, the partitions are derived from the response id."""

    lane_partition: int
    generated_partition: int
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class QueueBound:
    """Of one pool, over all of its live workers; `lanes` say how much of it each may fill, the lowest the least."""

    tokens: int
    answers: int
    lanes: LanePolicies = LANE_POLICIES
    lowered_from: float = 1.0
    """Of what a lane may fill: from there on the lowest tier waits behind it, in the last lane. 1: nobody does."""


@dataclass(slots=True)
class _Known:
    """`routed`: by response, since when and what it weighs; the oldest first. `asking`: what it would. `tokens_of` and
    `answers_of`: what was routed of each tenant, of which there are as many as there are.
    """

    state: WorkerState
    routed: dict[str, tuple[int, Weight]] = field(default_factory=dict)
    routed_tokens: int = 0
    routed_answers: int = 0
    tokens_of: Counter[str] = field(default_factory=Counter)
    answers_of: Counter[str] = field(default_factory=Counter)
    requests_of: Counter[Lane] = field(default_factory=Counter)
    asking: dict[str, Weight] = field(default_factory=dict)
    window: DrainWindow = field(default_factory=DrainWindow)

    def __post_init__(self) -> None:
        self.window.add(self.state)

    def is_ready_in(self, pool: str, now_ms: int) -> bool:
        return self.state.pool == pool and self.state.state == "ready" and self.state.is_live(now_ms)

    def load(self, tenant_id: str, now_ms: int, *, also_asking: bool) -> Load:
        asking = tuple(self.asking.values()) if also_asking else ()
        tokens = self.routed_tokens + sum(each.tokens for each in asking)
        answers = self.routed_answers + sum(each.answers for each in asking)
        own_tokens = self.state.queued_of.get(tenant_id, 0) + self.tokens_of[tenant_id]
        own_answers = self.state.waiting_of.get(tenant_id, 0) + self.answers_of[tenant_id]
        out_for_ms = self._out_for_ms(now_ms, is_asked=bool(asking))
        return Load(self.state, tokens, answers, own_tokens, own_answers, self.window.drain(), out_for_ms)

    def _out_for_ms(self, now_ms: int, *, is_asked: bool) -> int:
        """Of a worker whose engine fails. Once its time is over one request is sent, unless it has one to try with."""
        failing = self.state.failing
        if failing is None:
            return 0
        if now_ms < failing.until_ms:
            return failing.until_ms - now_ms
        return TRIED_MS if is_asked or self.routed or self.state.waiting else 0

    def add(self, response_id: str, weight: Weight, now_ms: int) -> None:
        self.routed[response_id] = now_ms, weight
        self.routed_tokens += weight.tokens
        self.routed_answers += weight.answers
        self.tokens_of[weight.tenant_id] += weight.tokens
        self.answers_of[weight.tenant_id] += weight.answers
        self.requests_of[weight.lane] += 1

    def drop(self, response_id: str) -> None:
        routed = self.routed.pop(response_id, None)
        if routed is None:
            return
        _, weight = routed
        self.routed_tokens -= weight.tokens
        self.routed_answers -= weight.answers
        self.tokens_of[weight.tenant_id] -= weight.tokens
        self.answers_of[weight.tenant_id] -= weight.answers
        self.requests_of[weight.lane] -= 1

    def drop_before(self, at_ms: int) -> None:
        while self.routed and next(iter(self.routed.values()))[0] <= at_ms:
            self.drop(next(iter(self.routed)))

    def queued(self, lane: Lane) -> QueueAhead | None:
        """Where nothing waited by the last heartbeat, what was routed since fills the free slots first: it is before
        nobody, since it leaves at once.
        """
        lanes, state = AHEAD[lane], self.state
        known, on_the_way = waiting(state.queues, lanes), sum(self.requests_of[each] for each in lanes)
        at_once = 0 if known else min(on_the_way, max(state.max_running - state.running, 0))
        before = known + on_the_way - at_once
        if not before or not state.queues:
            return None
        return QueueAhead(
            worker_id=state.worker_id, before=before, wait_ms=wait_ms(before, self.window.drain(lanes)),
            left=passed(state.queues, lanes).requests + at_once, counts_since_ms=state.counts_since_ms,
        )  # fmt: skip


class WorkersView:
    """What is known of workers. Thread-safe: a reader thread feeds it, the event loop asks it."""

    def __init__(self) -> None:
        self._workers: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def update(self, worker_id: str, state: WorkerState | None) -> None:
        """Takes in a heartbeat; None is the tombstone of a worker that is gone for good."""
        with self._lock:
            if state is None:
                self._workers.pop(worker_id, None)
                return
            known = self._workers.get(worker_id)
            if known is None:
                self._workers[worker_id] = _Known(state)
                return
            if state.beat_at_ms < known.state.beat_at_ms:
                return
            known.state = state
            known.window.add(state)
            known.drop_before(state.beat_at_ms - PICKUP_MS)

    def routed(self, worker_id: str | None, response_id: str, weight: Weight, now_ms: int) -> None:
        """Counts what is on its way to a worker, once, until a heartbeat can have included it."""
        with self._lock:
            known = self._workers.get(worker_id) if worker_id else None
            if known is not None and response_id not in known.routed:
                known.add(response_id, weight, now_ms)
                if len(known.routed) > MAX_ROUTED:
                    known.drop(next(iter(known.routed)))

    def queued(self, worker_id: str | None, lane: Lane) -> QueueAhead | None:
        """What a request of the lane that goes to this worker now finds before it; None: nothing that is known."""
        with self._lock:
            known = self._workers.get(worker_id) if worker_id else None
            return None if known is None else known.queued(lane)

    def not_routed(self, worker_id: str | None, response_id: str) -> None:
        """It goes elsewhere, or nowhere."""
        with self._lock:
            if worker_id and (known := self._workers.get(worker_id)) is not None:
                known.drop(response_id)

    @contextmanager
    def asking(self, worker_id: str | None, response_id: str, weight: Weight) -> Iterator[None]:
        """Meanwhile it may come to be routed, or be refused."""
        with self._lock:
            known = self._workers.get(worker_id) if worker_id else None
            if known is not None:
                known.asking[response_id] = weight
        try:
            yield
        finally:
            if known is not None:
                with self._lock:
                    known.asking.pop(response_id, None)

    def samples(self, pool: str, now_ms: int) -> dict[Lane, LaneSample] | None:
        """What its ready workers say of each lane; None where none is: one that still loads its model serves nobody."""
        with self._lock:
            known = {worker_id: each for worker_id, each in self._workers.items() if each.is_ready_in(pool, now_ms)}
            if not known:
                return None
            states = {worker_id: each.state for worker_id, each in known.items()}
            windows = {worker_id: each.window for worker_id, each in known.items()}
            return {lane: _sample(pool, lane, states, windows, now_ms) for lane in LANES}

    def live(self, pool: str, now_ms: int, tenant_id: str = "", *, also_asking: bool = False) -> list[Load]:
        """Ready workers of the pool whose lease has not run out, ordered by id; with what they hold of the tenant's.

        `also_asking` counts what is asked for as if it were routed. Nobody may be refused for that: a tenant beyond its
        limits asks as often as it likes.
        """
        with self._lock:
            return [
                known.load(tenant_id, now_ms, also_asking=also_asking)
                for _, known in sorted(self._workers.items())
                if known.is_ready_in(pool, now_ms)
            ]


def _sample(
    pool: str, lane: Lane, states: Mapping[str, WorkerState], windows: Mapping[str, DrainWindow], now_ms: int
) -> LaneSample:
    first = [window.first_tokens(lane) for window in windows.values()]
    return LaneSample(
        max((state.queues[lane].oldest_ms for state in states.values() if lane in state.queues), default=0),
        lane_queues(pool, lane, states, windows, now_ms).wait_ms,
        sum(each.came for each in first),
        sum(each.late for each in first),
    )


def choose(
    loads: Sequence[Load], lane: Lane, response_id: str, *, lane_partitions: int, generated_partitions: int,
    cache_id: str = "", excess: float = 0.0,
) -> Route:  # fmt: skip
    """A live worker that reads `lane` and has a home; one of its partitions of each, by response id.

    Of those within bounds, the one that has had what begins alike; without a `cache_id`, or an `excess` of load that
    this is worth, the least loaded.

    Without such a worker the partitions follow from the response id alone: the work waits there for whoever comes. Not
    where a worker is held up: whatever comes there waits for one long answer.
    """
    fit = [load for load in loads if load.serves(lane)]
    if not fit:
        held_up = {partition for load in loads for partition in load.state.held_up.get(lane, ())}
        unread = [partition for partition in range(lane_partitions) if partition not in held_up]
        lane_partition = unread[stable_partition(response_id, len(unread))] if unread else 0
        return Route(lane_partition, stable_partition(response_id, generated_partitions), None)
    slower = affinity.times_slower({load.state.worker_id: load.drain.tokens_per_s for load in fit if load.drain})
    times = {load.state.worker_id: slower.get(load.state.worker_id, 1.0) for load in fit}
    able = within_bounds(
        {load.state.worker_id: load.standing(lane, times[load.state.worker_id]) for load in fit}, excess
    )
    if cache_id and excess:
        worker_id = affinity.best(able, cache_id, excess)
        best = next(load for load in fit if load.state.worker_id == worker_id)
    else:
        among = [load for load in fit if load.state.worker_id in able]
        best = min(among, key=lambda load: (
            load.tokens(times[load.state.worker_id]), stable_partition(response_id + load.state.worker_id, 2**32)
        ))  # fmt: skip
    lanes, homes = best.state.lane_partitions[lane], best.state.home_partitions
    return Route(
        lanes[stable_partition(response_id, len(lanes))],
        homes[stable_partition(response_id, len(homes))],
        best.state.worker_id,
    )


def overloaded(loads: Sequence[Load], lane: Lane, bound: QueueBound) -> bool:
    """Whether the pool's queue has no room for one more request of this lane and of the tenant that `loads` are asked
    for. An unknown queue has room.

    Nor has it where all that is read of the lane is held up. Where there is room for an answer there is for a request,
    however many it asks for; so there is for a request, however long.
    """
    if any(load.state.held_up.get(lane) for load in loads) and not any(
        load.state.lane_partitions.get(lane) for load in loads
    ):
        return True
    share = bound.lanes.of(lane).queue_share
    tokens, own_tokens = sum(load.queued_tokens for load in loads), sum(load.own_tokens for load in loads)
    answers, own_answers = sum(load.queued_answers for load in loads), sum(load.own_answers for load in loads)
    return bool(loads) and not (
        _has_room(tokens, own_tokens, bound.tokens * share) and _has_room(answers, own_answers, bound.answers * share)
    )


def is_long(loads: Sequence[Load], lane: Lane, bound: QueueBound) -> bool:
    """Whether the pool's queue is so long that who gives way waits behind this lane."""
    share = bound.lanes.of(lane).queue_share * bound.lowered_from
    tokens, answers = sum(load.queued_tokens for load in loads), sum(load.queued_answers for load in loads)
    return bound.lowered_from < 1 and (tokens >= bound.tokens * share or answers >= bound.answers * share)


def _has_room(queued: int, own: int, most: float) -> bool:
    return own < most * OWN_SHARE and queued < (most * SHARE_OF_ALL_WITH_SOME if own else most)


def drain_ms(loads: Sequence[Load]) -> int:
    """When to try again: what the pool needs for a quarter of its queue, within bounds.

    As fast as what waited at its workers has left their queues in the last half minute, of whatever lane: the bound is
    of all lanes together. Where none has measured that yet, as fast as their engines generate.
    """
    return max(_queue_ms(loads, QUEUE_TO_EMPTY), LEAST_WAIT_MS)


def has_free_slot(loads: Sequence[Load]) -> bool:
    return any(load.state.running + load.queued_answers < load.state.max_running for load in loads)


def slot_wait_ms(loads: Sequence[Load]) -> int:
    """About how long one waits for a slot that comes now, of whatever lane; 0: one is free."""
    if has_free_slot(loads):
        return 0
    return _queue_ms(loads, 1.0)


def _queue_ms(loads: Sequence[Load], part: float) -> int:
    """What that part of the queue takes, at most `MOST_WAIT_MS`."""
    queued = sum(load.queued_tokens for load in loads)
    drains = [load.drain for load in loads if load.drain is not None]
    if drains:
        speed = sum(drain.tokens_per_s for drain in drains)
        if speed <= 0:
            return MOST_WAIT_MS
    else:
        speed = sum(load.state.tokens_per_second for load in loads)
        if speed <= 0:
            return UNKNOWN_WAIT_MS
    return int(min(queued * part / speed * 1_000, MOST_WAIT_MS))
