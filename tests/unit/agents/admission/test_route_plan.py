"""Which pool of which model answers: the list is gone through in its order, and what is found is held to by laws."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.admission.route_plan import Ask, Looked, Option, Plan, longest_context, longest_output, plan, takes
from agents.admission.routing import Load, QueueBound, overloaded
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.directory import TIERS, Model, Pool, PoolWeights, Tier

BOUND = QueueBound(tokens=1_000, answers=100)
CHAT = Ask("acme", "paid", Lane.STANDARD, context=60, output=20)
MODEL = Model(name="big", path="unused", pool="first", context_window=1_000)


def pool(name: str, **fields: object) -> Pool:
    return Pool.model_validate({"name": name, "engine": "simulated", **fields})


def load(**fields: object) -> Load:
    values: dict[str, object] = {
        "worker_id": "worker-1", "pool": "any", "model": "any", "engine": "simulated", "state": "ready",
        "beat_at_ms": 1, "lease_ms": 4_000, "home_partitions": [5], "max_running": 4,
        "lane_partitions": {lane: [2] for lane in LANES},
    }  # fmt: skip
    return Load(WorkerState.model_validate(values | fields))


FREE, FULL = load(), load(queued_tokens=1_000, tokens_per_second=100)
TAKEN = load(running=4)
"""All of its slots are, and its queue has room."""


def option(*pools: Looked, ask: Ask = CHAT) -> Option:
    return Option(pools, ask)


def went(at: Plan) -> tuple[str, str, str | None]:
    return at.pool, at.standing, at.fallback


def test_pools_are_asked_in_their_order_and_the_first_that_has_room_is_taken() -> None:
    first, second = pool("first"), pool("second")
    assert went(plan(option(Looked(first, [FREE]), Looked(second, [FREE])), None, BOUND)) == ("first", "room", None)
    assert went(plan(option(Looked(first, [FULL]), Looked(second, [FREE])), None, BOUND)) == ("second", "room", None)
    assert went(plan(option(Looked(first, []), Looked(second, [FREE])), None, BOUND)) == ("second", "room", None)


WAITS_5_S = load(running=4, waiting=1, queued_tokens=500, tokens_per_second=100)


@pytest.mark.parametrize(
    ("weights", "taken"),
    [
        ({}, "near"),
        ({"cost": 1}, "spot"),
        ({"wait_s": 1}, "far"),
        ({"cost": 1, "wait_s": 0.1}, "spot"),
        ({"cost": 1, "wait_s": 1}, "far"),
    ],
)
def test_a_model_may_weigh_what_its_pools_cost_and_how_long_one_waits(weights: dict[str, float], taken: str) -> None:
    pools = [
        Looked(pool("near", cost=5), [WAITS_5_S]),
        Looked(pool("far", cost=4), [FREE]),
        Looked(pool("spot", cost=1), [WAITS_5_S]),
        Looked(pool("full", cost=0), [FULL]),
    ]
    assert plan(Option(pools, CHAT, PoolWeights.model_validate(weights)), None, BOUND).pool == taken


def test_of_pools_that_weigh_the_same_the_first_is_taken() -> None:
    pools = [Looked(pool("first"), [FREE]), Looked(pool("second"), [FREE])]
    assert plan(Option(pools, CHAT, PoolWeights(cost=1, wait_s=1)), None, BOUND).pool == "first"


def test_who_is_refused_is_told_when_the_first_of_them_has_room() -> None:
    slow, fast = load(queued_tokens=1_000, tokens_per_second=50), load(queued_tokens=1_000, tokens_per_second=100)
    at = plan(option(Looked(pool("first"), [slow]), Looked(pool("second"), [fast])), None, BOUND)
    assert (at.standing, at.retry_after_ms) == ("overloaded", 2_500)
    beside_a_dead_one = plan(option(Looked(pool("first"), []), Looked(pool("second"), [fast])), None, BOUND)
    assert beside_a_dead_one.standing == "overloaded", "who waits for a worker that may never come waits in vain"


def test_where_no_worker_lives_it_waits_for_one_in_the_first_pool() -> None:
    at = plan(option(Looked(pool("first"), []), Looked(pool("second"), [])), None, BOUND)
    assert (*went(at), at.loads) == ("first", "no_worker", None, ())


@pytest.mark.parametrize(
    ("limits", "ask", "goes"),
    [
        ({}, CHAT, "first"),
        ({"tenants": ["acme", "umbrella"]}, CHAT, "first"),
        ({"tenants": ["umbrella"]}, CHAT, "second"),
        ({"max_context": 60}, CHAT, "first"),
        ({"max_context": 59}, CHAT, "second"),
        ({"max_output": 20}, CHAT, "first"),
        ({"max_output": 19}, CHAT, "second"),
    ],
)
def test_what_a_pool_is_not_for_never_goes_there(limits: dict[str, object], ask: Ask, goes: str) -> None:
    asked = option(Looked(pool("first", **limits), [FREE]), Looked(pool("second"), [FREE]), ask=ask)
    assert plan(asked, None, BOUND).pool == goes


@pytest.mark.parametrize("tier", TIERS)
def test_at_a_pool_that_queues_for_some_tiers_others_need_a_free_slot(tier: Tier) -> None:
    ask, premium = replace(CHAT, tier=tier), pool("premium", queues_for=["paid", "premium"])
    assert plan(option(Looked(premium, [TAKEN, FREE]), ask=ask), None, BOUND).standing == "room"
    at = plan(option(Looked(premium, [TAKEN]), ask=ask), None, BOUND)
    assert at.standing == ("overloaded" if tier == "free" else "room")
    on_its_way = replace(load(running=3), routed_answers=1)
    assert plan(option(Looked(premium, [on_its_way]), ask=ask), None, BOUND).standing == at.standing


@pytest.mark.parametrize(
    ("asked", "smaller", "prefer", "goes"),
    [
        ([FREE], [FREE], False, ("big", "room", None)),
        ([FULL], [FREE], False, ("small", "room", "overloaded")),
        ([], [FREE], False, ("small", "room", "no_worker")),
        ([FULL], [FULL], False, ("big", "overloaded", None)),
        ([FULL], [], False, ("big", "overloaded", None)),
        ([], [FULL], False, ("big", "no_worker", None)),
        ([FREE], [FREE], True, ("small", "room", "preferred")),
        ([FREE], [FULL], True, ("big", "room", None)),
        ([FULL], [FREE], True, ("small", "room", "overloaded")),
    ],
)
def test_the_smaller_model_answers_where_it_has_room_and_the_other_has_none_or_it_is_preferred(
    asked: list[Load], smaller: list[Load], prefer: bool, goes: tuple[str, str, str | None]
) -> None:
    at = plan(option(Looked(pool("big"), asked)), option(Looked(pool("small"), smaller)), BOUND, prefer_fallback=prefer)
    assert went(at) == goes


LOADS = st.lists(
    st.builds(
        lambda queued, running, routed: replace(load(queued_tokens=queued, running=running), routed_answers=routed),
        st.integers(0, 1_200), st.integers(0, 4), st.integers(0, 5),
    ),
    max_size=3,
)  # fmt: skip
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "tenants": st.lists(st.sampled_from(["acme", "umbrella"]), max_size=2, unique=True),
        "max_context": st.integers(16, 120), "max_output": st.integers(1, 60),
        "queues_for": st.lists(st.sampled_from(TIERS), max_size=3, unique=True),
    },
)  # fmt: skip
POOLS = st.lists(st.tuples(LIMITS, LOADS), min_size=1, max_size=4).map(
    lambda drawn: [Looked(pool(f"pool-{number}", **limits), loads) for number, (limits, loads) in enumerate(drawn)]
)
ASKS = st.builds(
    Ask, st.just("acme"), st.sampled_from(TIERS), st.sampled_from(LANES), st.integers(1, 120), st.integers(1, 60)
)


def free_slots(loads: Sequence[Load]) -> bool:
    return any(each.state.running + each.queued_answers < each.state.max_running for each in loads)


@given(asked=POOLS, ask=ASKS, smaller=st.none() | POOLS, smaller_ask=ASKS, prefer=st.booleans())
def test_whatever_stands_where_it_goes_can_take_it(
    asked: list[Looked], ask: Ask, smaller: list[Looked] | None, smaller_ask: Ask, prefer: bool
) -> None:
    other = None if smaller is None else Option(smaller, smaller_ask)
    at = plan(Option(asked, ask), other, BOUND, prefer_fallback=prefer)
    pools, asks = (asked, ask) if at.fallback is None else (smaller or [], smaller_ask)
    [chosen] = [looked for looked in pools if looked.pool.name == at.pool]
    fit = [looked for looked in pools if takes(looked.pool, asks)]
    assert chosen in fit or (not fit and chosen is pools[0])
    assert at.loads == (chosen.loads if chosen.loads else ())
    earlier = fit[: fit.index(chosen)] if fit else []
    if at.standing == "room":
        assert chosen.loads
        assert not overloaded(chosen.loads, asks.lane, BOUND)
        assert asks.tier in chosen.pool.queues_for or free_slots(chosen.loads)
        for looked in earlier:
            full = overloaded(looked.loads, asks.lane, BOUND)
            assert not looked.loads or full or not (asks.tier in looked.pool.queues_for or free_slots(looked.loads))
    else:
        assert at.fallback is None, "nobody waits for the smaller one"
        assert (at.standing == "no_worker") == (not any(looked.loads for looked in fit or pools[:1]))
    if not prefer and plan(Option(asked, ask), None, BOUND).standing == "room":
        assert at.fallback is None, "who can have what was asked for has it"
    assert (at.retry_after_ms is not None) == (at.standing == "overloaded")


@given(limits=st.lists(LIMITS, min_size=1, max_size=4), prompt=st.integers(1, 1_100), output=st.integers(1, 1_100))
def test_what_is_at_most_given_is_what_some_pool_takes(
    limits: list[dict[str, object]], prompt: int, output: int
) -> None:
    pools = [pool(f"pool-{number}", **{**each, "tenants": []}) for number, each in enumerate(limits)]
    ask = replace(CHAT, context=prompt + output, output=output)
    taken = ask.context <= MODEL.context_window and any(takes(each, ask) for each in pools)
    assert taken == (output <= longest_output(MODEL, pools, prompt))
    assert not taken or ask.context <= longest_context(MODEL, pools)
