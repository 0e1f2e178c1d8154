"""An answer that nobody waits for leaves the engine for who waits for a first token, and goes on from where it was."""

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpu_consumers.core.capacity import Capacity, MemoryPolicy
from gpu_consumers.core.continuation import MOST_BEFORE_A_PAUSE
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.pausing import Pausing
from gpu_consumers.core.scheduler import Given, Scheduler, Sizes
from gpu_consumers.engines.port import EngineStats
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from tests.unit.gpu_consumers.fleet import CONFIG, LEASE_MS, Fleet, check
from tests.unit.gpu_consumers.test_worker_interleavings import ACTIONS, play_to_the_end

SLOTS, MAX_PAUSES = 20, 2
KEEPS_ONE_FREE = replace(CONFIG, headroom=0.05, max_pauses=MAX_PAUSES)
FLOOR = 2


def saturated(jobs: int = 30, *, max_tokens: int = 200, **sampling: Any) -> tuple[Fleet, list[str]]:
    """A worker whose batch lane has taken all that it may have."""
    fleet = Fleet("a", max_running=SLOTS, config=KEEPS_ONE_FREE)
    ids = [fleet.region.request(Lane.BATCH, max_tokens=max_tokens, **sampling) for _ in range(jobs)]
    fleet.run(600)
    assert held(fleet).of_lane[Lane.BATCH] >= SLOTS - 1
    return fleet, ids


def held(fleet: Fleet) -> Held:
    return fleet.workers["a"].core._works.held


def begun(fleet: Fleet, ids: list[str]) -> int:
    return sum(bool(fleet.region.tokens[each]) for each in ids)


def pauses(fleet: Fleet) -> Counter[str]:
    """Of each response, as the account of its attempts has it."""
    accounts = fleet.region.computed()
    return Counter(each.response_id for each in accounts if each.outcome == "paused")


def test_who_waits_for_a_first_token_has_the_place_of_a_batch_answer_which_goes_on_from_there() -> None:
    fleet, jobs = saturated()
    chats = [fleet.region.request(Lane.INTERACTIVE, max_tokens=20) for _ in range(6)]
    fleet.run(200)
    assert begun(fleet, chats) == 6, "one has the slot that was kept free, and the others do not wait for an end"
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in (*jobs, *chats)} == {EndingCode.COMPLETED}
    paused = pauses(fleet)
    assert sum(paused.values()) == 5
    takeovers = [each for each in fleet.region.fences() if each.kind != "fresh"]
    assert Counter(each.response_id for each in takeovers) == paused, "none of them begins anew"


def test_a_batch_lane_keeps_its_floor_however_many_come_above_it_and_each_answer_is_paused_a_few_times() -> None:
    fleet, jobs = saturated()
    for _ in range(6):
        for _ in range(40):
            fleet.region.request(Lane.INTERACTIVE, max_tokens=10)
        fleet.run(400)
        assert held(fleet).of_lane[Lane.BATCH] >= FLOOR
    fleet.settle()
    check(fleet.region)
    assert max(pauses(fleet).values()) <= MAX_PAUSES
    assert {fleet.region.terminal(each) for each in jobs} == {EndingCode.COMPLETED}


def test_nobody_is_paused_for_lanes_in_which_nobody_waits_nor_out_of_lanes_in_which_somebody_does() -> None:
    fleet, _ = saturated()
    for _ in range(20):
        fleet.region.request(Lane.BATCH, tenant_id="another")
    fleet.run(400)
    assert not pauses(fleet)
    fleet = Fleet("a", max_running=SLOTS, config=KEEPS_ONE_FREE)
    for _ in range(30):
        fleet.region.request(Lane.STANDARD, max_tokens=100)
    fleet.run(400)
    for _ in range(6):
        fleet.region.request(Lane.INTERACTIVE)
    fleet.run(400)
    assert not pauses(fleet)


@pytest.mark.parametrize(
    "sampling",
    [
        {"seed": 3},
        {"presence_penalty": 1.0},
        {"frequency_penalty": 1.0},
        {"bad_words": ["no"]},
        {"structured_outputs": {"regex": "[a-z]{300}"}},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 50}},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_what_not_every_engine_goes_on_with_is_not_paused(sampling: dict[str, Any]) -> None:
    fleet, _ = saturated(**sampling)
    for _ in range(6):
        fleet.region.request(Lane.INTERACTIVE)
    fleet.run(400)
    assert not pauses(fleet)


def test_several_answers_to_one_prompt_are_not_paused() -> None:
    fleet, _ = saturated(jobs=19, choices=2)
    for _ in range(6):
        fleet.region.request(Lane.INTERACTIVE)
    fleet.run(400)
    assert not pauses(fleet)


def test_what_is_paused_may_be_cancelled_and_goes_on_where_its_worker_is_lost() -> None:
    fleet, jobs = saturated(60, max_tokens=100)
    for _ in range(12):
        fleet.region.request(Lane.INTERACTIVE, max_tokens=100)
    fleet.run(200)
    [cancelled, *_] = paused = list(pauses(fleet))
    assert len(paused) >= 6
    fleet.region.cancel(cancelled)
    fleet.run(100)
    assert fleet.region.terminal(cancelled) is EndingCode.CANCELLED
    fleet.crash("a")
    fleet.start("a")
    fleet.run(LEASE_MS)
    fleet.settle("a")
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in jobs if each != cancelled} == {EndingCode.COMPLETED}


@pytest.mark.parametrize(("max_pauses", "losses", "rounds"), [(3, 2, 6), (6, 1, 16)])
def test_whoever_pauses_it_an_answer_comes_to_its_end(max_pauses: int, losses: int, rounds: int) -> None:
    """Each worker that goes on with it pauses it anew; those that are lost have said something more each time."""
    fleet = Fleet("a", max_running=10, config=replace(CONFIG, headroom=0.1, max_pauses=max_pauses))
    jobs = [fleet.region.request(Lane.BATCH, max_tokens=1_500) for _ in range(12)]
    fleet.run(500)
    for loss in range(losses + 1):
        for _ in range(rounds):
            for _ in range(12):
                fleet.region.request(Lane.INTERACTIVE, max_tokens=5)
            fleet.run(600)
        if loss < losses:
            fleet.crash("a")
            fleet.start("a")
            fleet.run(LEASE_MS + 800)
    fleet.settle("a")
    check(fleet.region)
    assert max(pauses(fleet).values()) in (MOST_BEFORE_A_PAUSE - 1, MOST_BEFORE_A_PAUSE)
    assert {fleet.region.terminal(each) for each in jobs} == {EndingCode.COMPLETED}


def test_no_answer_is_paused_where_an_operator_says_so() -> None:
    fleet = Fleet("a", max_running=SLOTS, config=replace(KEEPS_ONE_FREE, max_pauses=0))
    for lane, count in ((Lane.BATCH, 30), (Lane.INTERACTIVE, 6)):
        for _ in range(count):
            fleet.region.request(lane, max_tokens=100)
        fleet.run(400)
    assert not pauses(fleet)


@given(st.lists(ACTIONS, max_size=25))
@settings(max_examples=60)
def test_whatever_fails_while_answers_are_paused_nothing_is_lost_and_nothing_is_said_twice(
    script: list[tuple[Any, ...]],
) -> None:
    """In a batch of four, of which one is kept free."""
    fleet = Fleet("a", "b", max_running=4, config=replace(CONFIG, headroom=0.25))
    for number in range(12):
        fleet.region.request(Lane.BATCH, max_tokens=40, partition=number % 2)
    fleet.run(400)
    play_to_the_end(script, fleet)


# Who is paused


def item(name: str, lane: Lane = Lane.BATCH, *, may_pause: bool = True, slots: int = 1, prompt: int = 10) -> Queued:
    return Queued(name, lane, prompt + 50, 0, slots, "acme", prompt, 50, may_pause=may_pause)


@given(
    st.lists(st.tuples(st.sampled_from(LANES), st.booleans(), st.booleans(), st.integers(1, 2), st.integers(0, 2))),
    st.sampled_from(LANES),
)
def test_it_is_the_one_that_began_last_of_the_lowest_lane_below(
    answers: list[tuple[Lane, bool, bool, int, int]], lane: Lane
) -> None:
    paused = frozenset({Lane.STANDARD, Lane.BATCH})
    pausing = Pausing(paused)
    may: dict[Lane, list[str]] = {each: [] for each in LANES}
    for number, (own, may_pause, on_floor, slots, steps) in enumerate(answers):
        queued = item(str(number), own, may_pause=may_pause, slots=slots)
        is_told = pausing.entered(queued, on_floor=on_floor)
        assert is_told == (may_pause and not on_floor and slots == 1 and own in paused)
        if steps:
            pausing.said(str(number))
            may[own] += [str(number)] if is_told else []
        if steps > 1:
            pausing.left(str(number))
            may[own] = [each for each in may[own] if each != str(number)]
    below = [each for each in reversed(LANES) if LANES.index(each) > LANES.index(lane) and may[each]]
    assert pausing.for_lane(lane) == (may[below[0]][-1] if below else None)


def test_who_has_said_much_before_is_the_last() -> None:
    pausing = Pausing(frozenset({Lane.BATCH}))
    for name, said_tokens in (("new", 0), ("newer", 0), ("old", 900)):
        pausing.entered(replace(item(name), said_tokens=said_tokens), on_floor=False)
        pausing.said(name)
    order = []
    while (paused := pausing.for_lane(Lane.INTERACTIVE)) is not None:
        order.append(paused)
        pausing.left(paused)
    assert order == ["newer", "new", "old"]


def test_where_memory_is_what_lacks_a_paused_answer_gives_its_own() -> None:
    """Room for twenty answers of 10 blocks with all that they may say, in a batch of forty."""
    memory = Capacity(MemoryPolicy(foresight=1, for_short=0))
    scheduler, engine = Scheduler(Sizes(40, 1), memory=memory), Held()
    scheduler.engine_tells(EngineStats(0, 0, 0, 203, 16), 0)
    for number in range(30):
        scheduler.add(item(f"b{number}", prompt=100))
    told: dict[str, Given] = {}
    while (given_one := scheduler.take(engine, 0)) is not None:
        engine.add(Lane.BATCH, "acme", 1, on_floor=given_one.on_floor)
        told[given_one.item.response_id] = given_one
    assert len(told) == 20
    scheduler.add(item("i0", Lane.INTERACTIVE, prompt=190))
    scheduler.add(item("i1", Lane.INTERACTIVE, prompt=90))
    for name in told:
        scheduler.grown(Lane.BATCH, name, 1)
    assert scheduler.take(engine, 0) is None, "the first would need more than one of them gives"
    scheduler.remove("i0")
    instead = scheduler.take(engine, 0)
    assert instead is not None
    assert (instead.item.response_id, instead.why, instead.instead_of) == ("i1", "pause", "b19")
