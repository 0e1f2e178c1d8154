"""Which pool of which model answers: a list is gone through, and the first of it that has room is taken.

First the pools of the model that was asked for, in their order, then those of the smaller one, where somebody may be
answered by it (`agents.admission.fallback` says who). A pool is as good as those of its workers whose engines do not
fail request after request. A model may weigh what its pools cost and how long one waits there: then the lightest of
those that have room is taken, of equals the first. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agents.admission.routing import (
    LEAST_WAIT_MS,
    Load,
    QueueBound,
    drain_ms,
    has_free_slot,
    is_long,
    overloaded,
    slot_wait_ms,
)
from schemas.fallback import FallbackReason
from schemas.request import LANES, Lane
from streams.directory import LOWEST_TIER, Model, Pool, PoolWeights, Tier

Standing = Literal["room", "overloaded", "failing", "no_worker"]
"""Of the pools of one model, for one request. Where no worker lives nobody knows their queues: it may wait there. Where
the engines of all that live fail request after request it would fail too.
"""


@dataclass(frozen=True, slots=True)
class Ask:
    """What decides which pools a request is for. `context`: its prompt and one answer; `output`: that answer's bound.

    Of what is embedded the longest input is its context, and there is no output.
    """

    tenant_id: str
    tier: Tier
    lane: Lane
    context: int
    output: int


class Looked(NamedTuple):
    """A pool, and its live workers as they stand for the request's tenant."""

    pool: Pool
    loads: Sequence[Load]


class Option(NamedTuple):
    """A model's pools, in the order in which they are asked, and what the request comes to with that model."""

    pools: Sequence[Looked]
    ask: Ask
    weights: PoolWeights = PoolWeights()


class Plan(NamedTuple):
    """Where it goes. `fallback`: why the smaller model answers; None: the one that was asked for does.

    `retry_after_ms` is of one that is refused: when the first of its pools may have room, or a worker that is tried.
    `is_lowered`: it waits behind those of its lane.
    """

    pool: str
    loads: Sequence[Load]
    standing: Standing
    fallback: FallbackReason | None = None
    retry_after_ms: int | None = None
    is_lowered: bool = False

    @property
    def is_refused(self) -> bool:
        return self.standing in ("overloaded", "failing")


_REASONS: Mapping[Standing, FallbackReason] = {
    "room": "preferred", "overloaded": "overloaded", "failing": "no_worker", "no_worker": "no_worker",
}  # fmt: skip
"""As clients are told why a smaller model answers: a worker whose engine fails is none."""


def plan(asked: Option, smaller: Option | None, bound: QueueBound, *, prefer_fallback: bool = False) -> Plan:
    """The first pool with a live worker and room. The smaller model's are asked where the other has none, or before it
    where they are preferred; they are never waited for.
    """
    first = _of_model(asked, bound)
    if smaller is None or (first.standing == "room" and not prefer_fallback):
        return first
    second = _of_model(smaller, bound)
    if second.standing != "room":
        return first
    return second._replace(fallback=_REASONS[first.standing])


def _of_model(option: Option, bound: QueueBound) -> Plan:
    """Its settings may have changed since it was admitted: then no pool takes it, and the first has to."""
    fit = [looked for looked in option.pools if takes(looked.pool, option.ask)] or option.pools[:1]
    live = [looked for looked in fit if looked.loads]
    sound = [each for each in map(_sound, live) if each.loads]
    if with_room := [looked for looked in sound if _has_room(looked, option.ask, bound)]:
        pool, loads = min(with_room, key=lambda looked: _weight(looked, option.weights))
        return Plan(pool.name, loads, "room", is_lowered=_gives_way(loads, option.ask, bound))
    if sound:
        (pool, loads), wait_ms = sound[0], min(drain_ms(each.loads) for each in sound)
        return Plan(pool.name, loads, "overloaded", retry_after_ms=wait_ms)
    if live:
        wait_ms = min(load.out_for_ms for _, loads in live for load in loads)
        return Plan(live[0].pool.name, (), "failing", retry_after_ms=max(wait_ms, LEAST_WAIT_MS))
    return Plan(fit[0].pool.name, (), "no_worker")


def _sound(looked: Looked) -> Looked:
    """Without the workers whose engines fail."""
    return Looked(looked.pool, [load for load in looked.loads if not load.out_for_ms])


def next_place(options: Sequence[Option], bound: QueueBound) -> tuple[int, Looked] | None:
    """The first pool that has room, of what was admitted already and failed elsewhere; else, since it is not refused
    for now any more, the first with a live worker. With the number of its option; None: there is none.
    """
    for index, option in enumerate(options):
        if (at := with_room(option, bound)) is not None:
            return index, at
    return next(((index, at) for index, option in enumerate(options) for at in _fit(option)), None)


def with_room(option: Option, bound: QueueBound) -> Looked | None:
    """The first of its pools that takes it and has room."""
    return next((at for at in _fit(option) if _has_room(at, option.ask, bound)), None)


def _fit(option: Option) -> list[Looked]:
    return [at for looked in option.pools if takes(looked.pool, option.ask) and (at := _sound(looked)).loads]


def _weight(looked: Looked, weights: PoolWeights) -> float:
    return weights.cost * looked.pool.cost + weights.wait_s * slot_wait_ms(looked.loads) / 1_000


def _gives_way(loads: Sequence[Load], ask: Ask, bound: QueueBound) -> bool:
    """Before anybody is refused. Where nobody reads the last lane (all of it is held up, say) it stays in its own."""
    return (
        ask.tier == LOWEST_TIER
        and ask.lane != LANES[-1]
        and is_long(loads, ask.lane, bound)
        and any(load.serves(LANES[-1]) for load in loads)
    )


def _has_room(looked: Looked, ask: Ask, bound: QueueBound) -> bool:
    if overloaded(looked.loads, ask.lane, bound):
        return False
    return ask.tier in looked.pool.queues_for or has_free_slot(looked.loads)


def takes(pool: Pool, ask: Ask) -> bool:
    """Whether the pool is for such requests, however full it is."""
    return (
        pool.is_open_to(ask.tenant_id)
        and (pool.max_context is None or ask.context <= pool.max_context)
        and (pool.max_output is None or ask.output <= pool.max_output)
    )


def longest_context(model: Model, pools: Iterable[Pool]) -> int:
    """That any of these pools takes."""
    return max(_context_of(pool, model) for pool in pools)


def longest_output(model: Model, pools: Iterable[Pool], prompt_tokens: int) -> int:
    """That any of these pools gives behind such a prompt; below 1: none has room for it."""
    rooms = ((_context_of(pool, model) - prompt_tokens, pool.max_output) for pool in pools)
    return max(room if most is None else min(room, most) for room, most in rooms)


def _context_of(pool: Pool, model: Model) -> int:
    return model.context_window if pool.max_context is None else min(pool.max_context, model.context_window)
