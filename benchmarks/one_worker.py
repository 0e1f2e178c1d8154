"""One worker in virtual time: its scheduler, its slots and the simulated engine, without log and claims' store.

The same arrivals go through the scheduler of the worker or through what it replaced: strict lanes without floors, first
come, first served in each. Beside them one may take in batches of which each ends before the next begins.
"""

import random
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from benchmarks.agenda import Agenda
from gpu_consumers.core.fair_queue import NEVER, OUTPUT_COST, Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import Given
from gpu_consumers.engines.port import Accepted, EngineDelta, EngineRequest, EngineStats
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.request import LANES, Lane, Sampling
from streams.engine_args import SimulatedEngineSettings

CLAIM_S = 0.002
"""From a slot to the engine: the claim's round trip."""
READ_BACK_S = 0.05
"""From a pause until it waits again: the fence is acknowledged, and what was said is read back."""
TELL_S = 0.05
"""How often the engine's figures are looked at: with each tick of a worker."""
WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    at_s: float
    tenant_id: str
    lane: Lane
    prompt_tokens: int
    max_tokens: int
    weight: int = 1


class Policy(Protocol):
    def add(self, item: Queued, *, front: bool = False) -> None: ...

    def take(self, held: Held, now_ms: int) -> Given | None: ...

    def grown(self, lane: Lane, response_id: str, output: int) -> int: ...

    def left(self, lane: Lane, response_id: str, output: int | None, *, goes_on: bool = False) -> None: ...

    def engine_tells(self, stats: EngineStats, now_ms: int) -> None: ...


class FirstComeFirstServed:
    """Strict lanes without floors; what lower ones hold counts against nobody."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._lanes: dict[Lane, OrderedDict[str, Queued]] = {lane: OrderedDict() for lane in LANES}

    def add(self, item: Queued, *, front: bool = False) -> None:
        self._lanes[item.lane][item.response_id] = item

    def take(self, held: Held, now_ms: int) -> Given | None:
        above = 0
        for lane, queue in self._lanes.items():
            above += held.of_lane[lane]
            if queue and above < self._slots:
                return Given(queue.popitem(last=False)[1], "order", on_floor=False, told_beyond=NEVER)
        return None

    def grown(self, lane: Lane, response_id: str, output: int) -> int:
        return NEVER

    def left(self, lane: Lane, response_id: str, output: int | None, *, goes_on: bool = False) -> None: ...

    def engine_tells(self, stats: EngineStats, now_ms: int) -> None: ...


class StaticBatches(FirstComeFirstServed):
    """None begins before all of the batch have ended."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._size = slots
        self._room = 0

    def take(self, held: Held, now_ms: int) -> Given | None:
        if not held.total:
            self._room = self._size
        given = super().take(held, now_ms) if self._room else None
        self._room -= given is not None
        return given


@dataclass(frozen=True, slots=True)
class Answered:
    """From its arrival to the first token and to the last."""

    arrival: Arrival
    waited_s: float
    took_s: float
    tokens: int


@dataclass(slots=True)
class Seen:
    """What came of a run. Waits are from arrival to the first token."""

    waits_ms: defaultdict[tuple[str, Lane], list[float]] = field(default_factory=lambda: defaultdict(list))
    service: defaultdict[int, defaultdict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    """By window and tenant: tokens of prompts, and those of answers twice."""
    slot_s: defaultdict[Lane, float] = field(default_factory=lambda: defaultdict(float))
    """Time that answers of each lane were in the engine's batch or on their way into it."""
    busy_s: float = 0.0
    """Time that slots of the batch were in use."""
    refused: int = 0
    failed: int = 0
    """Ended by the engine with an error."""
    tokens: int = 0
    answered: list[Answered] = field(default_factory=list)
    block_s: float = 0.0
    """Time that blocks of the engine's memory were held."""
    pauses: int = 0
    tokens_again: int = 0
    """Of prompts and answers, computed once more after a pause."""


@dataclass(slots=True, eq=False)
class _Live:
    item: Queued
    arrival: Arrival
    prompt: list[int]
    given: Given
    pauses: int = 0
    output: int = 0
    """Since it was given its slot."""
    said: list[int] = field(default_factory=list)
    chars: int = 0
    told_beyond: int = NEVER
    waited_s: float | None = None

    @property
    def attempt(self) -> str:
        return f"{self.item.response_id}/{self.pauses}"


class OneWorker:
    """`lets_in` stands for the door: whether a request may queue, beside what waits already."""

    def __init__(
        self,
        policy: Policy,
        engine: SimulatedEngineSettings,
        seed: int,
        lets_in: Callable[[Arrival, "Waiting"], bool] = lambda arrival, waiting: True,
        max_pauses: int = 0,
    ) -> None:
        self._policy = policy
        self._max_pauses = max_pauses
        self.engine = SimulatedCore(engine)
        self._tell_at_s = 0.0
        self._now_s = 0.0
        self._coming: list[Arrival] = []
        self._batch = engine.max_running
        self._held = Held()
        self._random = random.Random(seed)
        self._lets_in = lets_in
        self._arrivals: dict[str, Arrival] = {}
        self._live: dict[str, _Live] = {}
        self._paused: dict[str, _Live] = {}
        self._on_their_way = Agenda()
        self._number = 0
        self.waiting = Waiting()
        self.seen = Seen()

    def run(self, arrivals: Iterable[Arrival], until_s: float, *, from_s: float = 0.0) -> Seen:
        """What came before `from_s` is served and not counted. Called again it goes on, with what is still to come."""
        coming = self._coming = sorted([*self._coming, *arrivals], key=lambda arrival: arrival.at_s, reverse=True)
        now_s = self._now_s
        while now_s < until_s:
            due_s = self.engine.next_due_s
            next_s = min(
                coming[-1].at_s if coming else until_s,
                self._on_their_way.next_s,
                until_s if due_s is None else due_s,
                until_s,
            )
            if now_s >= from_s:
                self._count_slots(max(next_s - now_s, 0.0))
            now_s = max(next_s, now_s)
            while coming and coming[-1].at_s <= now_s:
                self._arrive(coming.pop())
            self._on_their_way.do_due(now_s)
            for delta in self.engine.step(now_s):
                if delta.error is not None:
                    self._fail(delta.request_id.partition("/")[0])
                else:
                    self._token(delta, now_s, from_s)
            if now_s >= self._tell_at_s:
                self._tell_at_s = now_s + TELL_S
                self._policy.engine_tells(self.engine.stats(), int(now_s * 1_000))
            while (given := self._policy.take(self._held, int(now_s * 1_000))) is not None:
                self._take(given, now_s)
        self._now_s = now_s
        return self.seen

    def _count_slots(self, for_s: float) -> None:
        stats = self.engine.stats()
        self.seen.busy_s += for_s * stats.running
        self.seen.block_s += for_s * stats.kv_blocks_used
        for lane, slots in self._held.of_lane.items():
            self.seen.slot_s[lane] += for_s * slots

    def _arrive(self, arrival: Arrival) -> None:
        if not self._lets_in(arrival, self.waiting):
            self.seen.refused += 1
            return
        self._number += 1
        name = f"r{self._number}"
        item = Queued(
            name, arrival.lane, arrival.prompt_tokens + arrival.max_tokens, int(arrival.at_s * 1_000), 1,
            arrival.tenant_id, arrival.prompt_tokens, arrival.max_tokens, arrival.weight,
            may_pause=self._max_pauses > 0,
        )  # fmt: skip
        self._arrivals[name] = arrival
        self.waiting.add(item, 1)
        self._policy.add(item)

    def _take(self, given: Given, now_s: float) -> None:
        if given.instead_of:
            self._pause(given.instead_of, now_s)
        item = given.item
        self.waiting.add(item, -1)
        live = self._paused.pop(item.response_id, None)
        if live is None:
            prompt = self._random.choices(range(10_000), k=item.prompt_tokens)
            live = _Live(item, self._arrivals.pop(item.response_id), prompt, given)
        live.item, live.given, live.told_beyond, live.output = item, given, given.told_beyond, 0
        self._live[item.response_id] = live
        self._held.add(item.lane, item.tenant_id, 1, on_floor=given.on_floor)
        self._held.silent[item.lane] += 1
        self._on_their_way.at(now_s + CLAIM_S, partial(self._enter, live))

    def _enter(self, live: _Live, now_s: float) -> None:
        priority = 0 if live.given.on_floor else LANES.index(live.item.lane)
        accepted = Accepted([live.said], [live.chars]) if live.said else None
        self.engine.submit(
            EngineRequest(
                live.attempt, live.prompt, Sampling(), live.item.most_output, priority, accepted=accepted
            ), now_s,
        )  # fmt: skip

    def _pause(self, name: str, now_s: float) -> None:
        live = self._paused[name] = self._live[name]
        self.seen.pauses += 1
        self.engine.abort(live.attempt, now_s)
        self._leave(name, goes_on=True)
        live.pauses += 1
        self._on_their_way.at(now_s + READ_BACK_S, partial(self._wait_again, live))

    def _wait_again(self, live: _Live, now_s: float) -> None:
        may_pause = live.pauses < self._max_pauses
        item = replace(
            live.item, queued_at_ms=int(now_s * 1_000), said_tokens=len(live.said), may_pause=may_pause
        )  # fmt: skip
        self.waiting.add(item, 1)
        self._policy.add(item, front=True)

    def _token(self, delta: EngineDelta, now_s: float, from_s: float) -> None:
        name = delta.request_id.partition("/")[0]
        live, tokens = self._live[name], len(delta.token_ids)
        item = live.item
        counted = self.seen.service[int((now_s - from_s) // WINDOW_S)]
        if not live.output:
            self._held.silent[item.lane] -= 1
            if live.pauses:
                self.seen.tokens_again += item.prompt_tokens + len(live.said) - delta.cached_tokens
        if live.waited_s is None:
            counted[item.tenant_id] += item.prompt_tokens
            if live.arrival.at_s >= from_s:
                self.seen.waits_ms[item.tenant_id, item.lane].append((now_s - live.arrival.at_s) * 1_000)
            live.waited_s = now_s - live.arrival.at_s
        live.output += tokens
        live.said += delta.token_ids
        live.chars += len(delta.text)
        if now_s >= from_s:
            self.seen.tokens += tokens
        counted[item.tenant_id] += OUTPUT_COST * tokens
        if live.output > live.told_beyond:
            live.told_beyond = self._policy.grown(item.lane, name, live.output)
        if delta.finish:
            if now_s >= from_s:
                took_s = now_s - live.arrival.at_s
                self.seen.answered.append(Answered(live.arrival, live.waited_s, took_s, len(live.said)))
            self._leave(name)

    def _fail(self, name: str) -> None:
        live = self._live[name]
        self.seen.failed += 1
        self._held.silent[live.item.lane] -= not live.output
        self._leave(name)

    def _leave(self, name: str, *, goes_on: bool = False) -> None:
        live = self._live.pop(name)
        self._held.add(live.item.lane, live.item.tenant_id, -1, on_floor=live.given.on_floor)
        self._policy.left(live.item.lane, name, live.output, goes_on=goes_on)


class Waiting:
    """What waits for a slot, of all and of each tenant."""

    def __init__(self) -> None:
        self.tokens: defaultdict[str, int] = defaultdict(int)
        self.answers: defaultdict[str, int] = defaultdict(int)

    def add(self, item: Queued, times: int) -> None:
        for name in ("", item.tenant_id):
            self.tokens[name] += times * item.tokens
            self.answers[name] += times


def steady(
    rng: random.Random, tenant_id: str, lane: Lane, rate: float, until_s: float, *, since_s: float = 0.0,
    prompt_tokens: tuple[int, int] = (50, 500), max_tokens: int = 512,
) -> list[Arrival]:  # fmt: skip
    """Poisson arrivals, `rate` a second."""
    arrivals, at_s = [], since_s + rng.expovariate(rate)
    while at_s < until_s:
        arrivals.append(Arrival(at_s, tenant_id, lane, rng.randint(*prompt_tokens), max_tokens))
        at_s += rng.expovariate(rate)
    return arrivals


def at_once(
    rng: random.Random, tenant_id: str, lane: Lane, count: int, *, at_s: float = 0.0,
    prompt_tokens: tuple[int, int] = (50, 500), max_tokens: int = 512, weight: int = 1,
) -> list[Arrival]:  # fmt: skip
    return [Arrival(at_s, tenant_id, lane, rng.randint(*prompt_tokens), max_tokens, weight) for _ in range(count)]


def jain(shares: Mapping[str, float] | Iterable[float]) -> float:
    """1: all have the same; 1/n: one of n has all."""
    values = list(shares.values() if isinstance(shares, Mapping) else shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
