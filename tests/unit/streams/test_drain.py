"""How fast a queue empties is measured while something waits, and only then."""

import gc
import weakref
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from schemas.request import LANES, Lane
from schemas.worker import LaneQueue, WorkerState
from streams.drain import LEAST_MS, WINDOW_MS, Drain, DrainWindow

NOW = 1_790_000_000_000


def beat(at_ms: int, since_ms: int = 1, /, **queues: tuple[int, int, int]) -> WorkerState:
    """Of lanes: what waits, how many have left, and their tokens."""
    told = {
        lane: LaneQueue(waiting=waiting, left=left, left_tokens=tokens)
        for lane, (waiting, left, tokens) in queues.items()
    }
    return WorkerState.model_validate({
        "worker_id": "worker-1", "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
        "beat_at_ms": NOW + at_ms, "lease_ms": 4_000, "queues": told, "counts_since_ms": since_ms,
    })  # fmt: skip


def window(*beats: WorkerState) -> DrainWindow:
    made = DrainWindow()
    for each in beats:
        made.add(each)
    return made


def test_what_went_to_another_worker_was_not_served_here() -> None:
    """Four a second leave, of which three are given away."""
    beats = []
    for s in range(6):
        queue = LaneQueue(waiting=9, left=4 * s, left_tokens=400 * s, spilled=3 * s, spilled_tokens=300 * s)
        beats.append(beat(s * 1_000).model_copy(update={"queues": {Lane.STANDARD: queue}}))
    assert window(*beats).drain() == Drain(1, 100)
    assert window(*beats).waited_ms() == 5_000


def test_what_waits_is_taken_at_a_rate() -> None:
    seen = window(*(beat(s * 1_000, standard=(5, 2 * s, 300 * s), batch=(9, 0, 0)) for s in range(6)))
    assert seen.drain() == Drain(2, 300)
    assert seen.drain((Lane.STANDARD,)) == Drain(2, 300)
    assert seen.drain((Lane.BATCH,)) == Drain(0, 0), "others went before it"
    assert seen.drain((Lane.INTERACTIVE,)) is None, "nobody waited there"


def test_what_an_idle_worker_takes_at_once_is_no_rate() -> None:
    burst = [beat(0), beat(1_000, standard=(40, 64, 6_400))]
    assert window(*burst).drain() is None
    after = [beat(s * 1_000, standard=(40 - s, 63 + s, 6_300 + 100 * s)) for s in range(2, 6)]
    assert window(*burst, *after).drain() == Drain(1, 100)


def test_a_worker_that_is_begun_anew_begins_anew() -> None:
    before = [beat(s * 1_000, standard=(9, 100 * s, 100 * s)) for s in range(9)]
    assert window(*before, beat(9_000, 2, standard=(9, 801, 801))).drain() is None
    after = [beat(9_000 + s * 1_000, 2, standard=(9, s, s)) for s in range(4)]
    assert window(*before, *after).drain() == Drain(1, 1)


def test_what_is_long_ago_says_nothing() -> None:
    fast = [beat(s * 1_000, standard=(9, 100 * s, 100 * s)) for s in range(9)]
    slow = [beat(WINDOW_MS + 9_000 + s * 1_000, standard=(9, 801 + s, 801 + s)) for s in range(9)]
    assert window(*fast, *slow).drain() == Drain(1, 1)
    late = window(*fast, beat(9_000, standard=(0, 900, 900)), beat(WINDOW_MS + 20_000, standard=(0, 900, 900)))
    assert late.drain() is None


def test_the_release_before_says_nothing_of_its_queues() -> None:
    assert window(*(beat(s * 1_000) for s in range(9))).drain() is None


def test_first_tokens_are_those_of_the_window() -> None:
    def told(at_ms: int, since_ms: int, first_tokens: int, late: int) -> WorkerState:
        queue = LaneQueue(first_tokens=first_tokens, late_first_tokens=late)
        return beat(at_ms, since_ms).model_copy(update={"queues": {Lane.STANDARD: queue}})

    beats = [told(s * 1_000, 1, 10 * s, s) for s in range(60)]
    assert DrainWindow().first_tokens(Lane.STANDARD) == (0, 0)
    assert window(*beats[:3]).first_tokens(Lane.STANDARD) == (20, 2)
    assert window(*beats).first_tokens(Lane.STANDARD) == (300, 30)
    assert window(*beats, told(60_000, 2, 3, 3)).first_tokens(Lane.STANDARD) == (0, 0), "it counts anew"
    assert window(*beats).first_tokens(Lane.BATCH) == (0, 0)


def test_of_a_heartbeat_no_more_is_kept_than_is_measured_by() -> None:
    """Most of one says whose the work is."""
    seen, states = DrainWindow(), [beat(s * 1_000, standard=(9, s, s)) for s in range(9)]
    alive = [weakref.ref(state) for state in states]
    for state in states:
        seen.add(state)
    assert seen.drain() == Drain(1, 1)
    del states, state
    gc.collect()
    assert not any(kept() for kept in alive)


steps = st.lists(
    st.tuples(
        st.integers(1, 20_000),
        st.sampled_from(LANES),
        st.integers(0, 3),
        st.integers(0, 100),
    ),
    max_size=100,
)


@given(steps)
def test_it_is_what_has_left_by_the_time_in_which_something_waited(
    moves: Sequence[tuple[int, Lane, int, int]],
) -> None:
    seen, told = DrainWindow(), []
    at_ms, left = 0, dict.fromkeys(LANES, 0)
    for passed_ms, lane, waiting, more in moves:
        at_ms += passed_ms
        left[lane] += more
        state = beat(at_ms, **{each: (waiting if each is lane else 0, left[each], 0) for each in LANES})
        seen.add(state)
        seen.add(state)
        told.append(state)
    kept = [state for state in told if state.beat_at_ms >= NOW + at_ms - WINDOW_MS][-64:]
    pairs = [
        (older, newer)
        for older, newer in pairwise(kept)
        if all(any(queue.waiting for queue in each.queues.values()) for each in (older, newer))
    ]
    waited_ms = sum(newer.beat_at_ms - older.beat_at_ms for older, newer in pairs)
    requests = sum(newer.queues[lane].left - older.queues[lane].left for older, newer in pairs for lane in LANES)
    drain = seen.drain()
    if waited_ms < LEAST_MS:
        assert drain is None
    else:
        assert drain == Drain(requests * 1_000 / waited_ms, 0)
