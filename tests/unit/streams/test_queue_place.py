"""Where a response stands in a queue: told by counts alone, never further back than before; but its wait may grow."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.generated import QueueAhead
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.drain import Drain
from streams.queue_place import FEW, MOST_WAIT_MS, SOON_MS, QueuePlace, first_place, is_news, place_now, wait_ms

QUEUED = QueueAhead(worker_id="worker-1", before=8, wait_ms=4_500, left=100, counts_since_ms=7)


def heartbeat(
    left: dict[Lane, int], counts_since_ms: int = 7, *, waiting: dict[Lane, int] | None = None
) -> WorkerState:
    return WorkerState.model_validate({
        "worker_id": "worker-1", "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
        "beat_at_ms": 9, "lease_ms": 4_000, "counts_since_ms": counts_since_ms,
        "queues": {lane: {"waiting": (waiting or {}).get(lane, 0), "left": count} for lane, count in left.items()},
    })  # fmt: skip


def test_who_leaves_the_lane_or_one_above_it_was_before_it() -> None:
    state = heartbeat({Lane.INTERACTIVE: 62, Lane.STANDARD: 41, Lane.BATCH: 7_000})
    assert place_now(QUEUED, Lane.STANDARD, state, Drain(2, 0)) == QueuePlace(5, 3_000)
    assert place_now(QUEUED, Lane.BATCH, state, Drain(2, 0)) == QueuePlace(0, 500), "and it is next"


def test_where_nothing_is_measured_it_takes_what_was_expected_of_those_that_are_left() -> None:
    assert first_place(QUEUED) == QueuePlace(8, 4_500)
    assert place_now(QUEUED, Lane.STANDARD, heartbeat({Lane.STANDARD: 104}), None) == QueuePlace(4, 2_500)
    assert place_now(QUEUED, Lane.STANDARD, heartbeat({Lane.STANDARD: 104}), Drain(0, 0)) == QueuePlace(4, 2_500)
    unmeasured = QUEUED.model_copy(update={"wait_ms": None})
    assert place_now(unmeasured, Lane.STANDARD, heartbeat({Lane.STANDARD: 104}), None) == QueuePlace(4, None)


def test_who_is_overtaken_is_told_that_it_takes_longer() -> None:
    """By what came later into the lanes above: they go first, and leave as if they had been before it."""
    state = heartbeat(
        {Lane.INTERACTIVE: 90, Lane.STANDARD: 15},
        waiting={Lane.INTERACTIVE: 19, Lane.STANDARD: 500, Lane.BATCH: 7_000},
    )
    assert place_now(QUEUED, Lane.STANDARD, state, Drain(2, 0)) == QueuePlace(3, 10_000)
    assert place_now(QUEUED, Lane.STANDARD, state, None) == QueuePlace(3, 10_000), "twenty, each as was expected"
    assert place_now(QUEUED, Lane.INTERACTIVE, state, Drain(2, 0)) == QueuePlace(8, 4_500), "above it is nobody"
    of_hours = QUEUED.model_copy(update={"wait_ms": MOST_WAIT_MS})
    assert place_now(of_hours, Lane.STANDARD, state, None) == QueuePlace(3, MOST_WAIT_MS)


@pytest.mark.parametrize(
    ("told", "now", "is_told"),
    [
        (QueuePlace(9, 4_000), QueuePlace(9, 7_999), False),
        (QueuePlace(9, 4_000), QueuePlace(9, 8_000), True),
        (QueuePlace(9, 4_000), QueuePlace(9, 400), False),
        (QueuePlace(9, 0), QueuePlace(9, 2 * SOON_MS - 1), False),
        (QueuePlace(9, 0), QueuePlace(9, 2 * SOON_MS), True),
        (QueuePlace(9, None), QueuePlace(9, 400), True),
        (QueuePlace(9, 400), QueuePlace(9, None), False),
        (QueuePlace(9, None), QueuePlace(9, None), False),
        (QueuePlace(9, 4_000), QueuePlace(10, 8_000), False),
    ],
)
def test_a_wait_is_news_that_has_doubled_or_is_known_at_last(told: QueuePlace, now: QueuePlace, is_told: bool) -> None:
    assert is_news(told, now) is is_told


def test_a_worker_that_is_begun_anew_tells_nothing_of_who_waited_before() -> None:
    assert place_now(QUEUED, Lane.STANDARD, heartbeat({Lane.STANDARD: 104}, counts_since_ms=8), Drain(1, 1)) is None


@pytest.mark.parametrize(("before", "rate", "wait"), [(0, 4, 250), (7, 2, 4_000), (10**6, 0.001, MOST_WAIT_MS)])
def test_a_wait_is_as_long_as_others_took_and_bounded(before: int, rate: float, wait: int) -> None:
    assert wait_ms(before, Drain(rate, 0)) == wait
    assert wait_ms(before, Drain(0, 0)) is wait_ms(before, None) is None


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.sampled_from(LANES), st.integers(0, 50), st.integers(0, 10_000)), max_size=50),
    st.sampled_from(LANES),
)
def test_nobody_is_told_of_more_than_before_and_everybody_comes_to_be_next(
    before: int, moves: Sequence[tuple[Lane, int, int]], lane: Lane
) -> None:
    queued = QueueAhead(worker_id="worker-1", before=before, wait_ms=None, left=0, counts_since_ms=7)
    left = dict.fromkeys(LANES, 0)
    told = [first_place(queued)]
    for each, more, come in [*moves, (lane, before, 0)]:
        left[each] += more
        place = place_now(queued, lane, heartbeat(left, waiting={each: come}), Drain(1, 1))
        assert place is not None
        assert place.wait_ms is not None
        assert 0 <= place.before <= told[-1].before
        if is_news(told[-1], place):
            told.append(place)
        longest_ms = told[-1].wait_ms
        assert longest_ms is not None
        assert place.wait_ms < 2 * max(longest_ms, SOON_MS), "nobody is left to wait for twice what was told"
    assert told[-1].before == 0
    many = [place for place in told if place.before >= FEW]
    assert len(many) < 50, "of many that wait each is told seldom"
