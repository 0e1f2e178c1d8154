"""A pool is degraded in steps, while targets are missed without a break, and given back more slowly."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.request import Lane
from streams.brownout import (
    DEFAULT_POLICY,
    FEWEST_FIRST_TOKENS,
    MAX_GAP_MS,
    BrownoutPolicy,
    Degraded,
    LaneSample,
    Pressure,
    Steps,
    degraded,
    read,
)
from streams.drain import WINDOW_MS

NOW = 1_790_000_000_000
POLICY = BrownoutPolicy.model_validate({"up_after_s": 10, "down_after_s": 40, "standard": {"queue_age_ms": 10_000}})
LONG_READY_MS = 10**9
TIERS = ("free", "paid", "premium")


def pressure(lane: Lane = Lane.STANDARD, **figures: int) -> Pressure:
    return read({lane: LaneSample(**figures)}, POLICY, LONG_READY_MS).pressure


def test_nothing_is_missed_where_nothing_waits() -> None:
    assert read({}, POLICY, LONG_READY_MS) == ("met", "")
    assert read({lane: LaneSample(0, 0, 10_000, 0) for lane in Lane}, DEFAULT_POLICY, LONG_READY_MS).pressure == "met"


def test_a_queue_is_too_long_where_the_oldest_has_waited_and_the_next_would() -> None:
    assert pressure(oldest_ms=10_001, wait_ms=11_000) == "missed"
    assert pressure(oldest_ms=60_000, wait_ms=900) == "met", "one waits for memory, and others pass it"
    assert pressure(oldest_ms=800, wait_ms=60_000) == "met", "a crowd that has just come"
    assert pressure(oldest_ms=10_001) == "missed", "nothing has left of late"
    assert pressure(oldest_ms=7_000, wait_ms=7_000) == "between"
    assert pressure(Lane.BATCH, oldest_ms=10**9) == "met", "nobody waits there for first tokens"


def test_first_tokens_are_late_where_many_are() -> None:
    assert pressure(first_tokens=100, late=21) == "missed"
    assert pressure(first_tokens=100, late=15) == "between"
    assert pressure(first_tokens=100, late=10) == "met"
    assert pressure(first_tokens=FEWEST_FIRST_TOKENS - 1, late=FEWEST_FIRST_TOKENS - 1) == "met", "too few to say"


def test_what_was_waited_for_the_first_worker_is_no_overload() -> None:
    """Neither while it comes up, nor right after: only what it has had time for counts."""
    old, late = {Lane.STANDARD: LaneSample(oldest_ms=10**6)}, {Lane.STANDARD: LaneSample(first_tokens=50, late=50)}
    age_ms = POLICY.standard.queue_age_ms
    assert [read(old, POLICY, ready_for_ms=ms).pressure for ms in (0, age_ms, age_ms + 1)] == [
        "between", "between", "missed",
    ]  # fmt: skip
    first_ms = POLICY.standard.first_token_ms
    assert [read(late, POLICY, ready_for_ms=ms).pressure for ms in (0, first_ms, first_ms + WINDOW_MS)] == [
        "between", "between", "missed",
    ]  # fmt: skip


def test_the_reason_names_the_lane_and_both_figures() -> None:
    waits = read({Lane.STANDARD: LaneSample(oldest_ms=12_000)}, POLICY, LONG_READY_MS)
    late = read({Lane.INTERACTIVE: LaneSample(first_tokens=40, late=20)}, POLICY, LONG_READY_MS)
    assert waits.why == "standard: a wait of 12000 ms, target 10000"
    assert late.why == "interactive: 50% of first tokens after 10000 ms, target 20%"


def walk(*stretches: tuple[Pressure, int], level: int = 0, policy: BrownoutPolicy = POLICY) -> list[int]:
    """The levels that it had, second by second; each stretch lasts so many."""
    steps, now_ms, levels = Steps(policy), NOW, [level]
    for each, seconds in stretches:
        for _ in range(seconds):
            levels.append(steps.next(levels[-1], each, now_ms))
            now_ms += 1_000
    return levels


def test_it_rises_step_by_step_and_falls_more_slowly() -> None:
    levels = walk(("missed", 60), ("met", 200))
    assert [level for level, after in pairwise(levels) if after > level] == [0, 1, 2]
    assert levels.index(1) == 11, "the target was missed for ten seconds by then"
    rising = [levels.index(level) for level in (1, 2, 3)]
    assert [later - earlier for earlier, later in pairwise(rising)] == [11, 11], "each step has its own time"
    falling = [61 + levels[61:].index(level) for level in (2, 1, 0)]
    assert [later - earlier for earlier, later in pairwise([61, *falling])] == [40, 41, 41]


def test_what_is_missed_now_and_then_moves_nothing() -> None:
    rare: list[tuple[Pressure, int]] = [("missed", 9), ("between", 1)]
    nearly: list[tuple[Pressure, int]] = [("met", 39), ("between", 1)]
    assert set(walk(*rare * 20)) == {0}
    assert set(walk(*nearly * 20, level=2)) == {2}
    assert set(walk(("between", 1_000), level=2)) == {2}


def test_after_a_gap_it_begins_anew() -> None:
    steps = Steps(POLICY)
    for second in range(10):
        assert steps.next(0, "missed", NOW + second * 1_000) == 0
    later = NOW + 10_000 + MAX_GAP_MS
    assert steps.next(0, "missed", later) == 0, "nobody has looked meanwhile"
    assert steps.next(0, "missed", later - 60_000) == 0, "a clock that was set back"


def test_what_was_not_written_is_said_again_and_what_somebody_else_wrote_is_taken() -> None:
    steps = Steps(POLICY)
    told = [steps.next(0, "missed", NOW + second * 1_000) for second in range(13)]
    assert told == [0] * 10 + [1] * 3
    assert [steps.next(2, "missed", NOW + second * 1_000) for second in range(13, 23)] == [2] * 10


def test_it_never_exceeds_what_the_operator_allows() -> None:
    assert max(walk(("missed", 300))) == 3
    assert max(walk(("missed", 300), policy=POLICY.model_copy(update={"max_level": 1}))) == 1
    assert walk(("between", 1), level=3, policy=POLICY.model_copy(update={"max_level": 1})) == [3, 1]
    assert set(walk(("missed", 300), policy=POLICY.model_copy(update={"max_level": 0}))) == {0}


pressures = st.sampled_from(["missed", "between", "met"])


@given(st.lists(st.tuples(pressures, st.integers(1, 60)), max_size=30), st.integers(0, 3))
def test_between_two_moves_there_is_all_of_the_later_ones_time(
    stretches: list[tuple[Pressure, int]], level: int
) -> None:
    levels = walk(*stretches, level=level)
    said = [each for each, seconds in stretches for _ in range(seconds)]
    moves = [(second, after - before) for second, (before, after) in enumerate(pairwise(levels)) if after != before]
    last = -1
    for second, by in moves:
        assert abs(by) == 1
        lasted = 10 if by > 0 else 40
        assert second - last >= lasted
        assert set(said[second - lasted : second + 1]) == {"missed" if by > 0 else "met"}
        last = second


def test_free_tenants_give_way_first_and_jobs_wait_last() -> None:
    policy = BrownoutPolicy(free_max_tokens=100, paid_max_tokens=400)
    assert [degraded(level, "free", policy) for level in range(4)] == [
        Degraded(), Degraded(1, 100), Degraded(2, 100, True), Degraded(3, 100, True, True),
    ]  # fmt: skip
    assert [degraded(level, "premium", policy) for level in range(4)] == [
        Degraded(), Degraded(1), Degraded(2), Degraded(3, 400, False, True),
    ]  # fmt: skip
    assert degraded(3, "paid", BrownoutPolicy()).max_tokens is None, "unless the operator says so"


@given(st.integers(0, 3), st.integers(1, 10**5), st.none() | st.integers(1, 10**5), st.integers(0, 3))
def test_what_others_lose_free_tenants_have_lost_before(
    level: int, free: int, paid: int | None, max_level: int
) -> None:
    policy = BrownoutPolicy(free_max_tokens=free, paid_max_tokens=paid, max_level=max_level)
    first, *others = (degraded(level, tier, policy) for tier in TIERS)
    for other in others:
        assert other.max_tokens is None or first.max_tokens is not None
        assert not (other.prefers_smaller_model and not first.prefers_smaller_model)
    assert first.level <= max_level


@pytest.mark.parametrize("wrong", [{"max_level": 4}, {"pinned": {"default": 4}}, {"late_share": 0}, {"up_after_s": 0}])
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BrownoutPolicy.model_validate(wrong)
