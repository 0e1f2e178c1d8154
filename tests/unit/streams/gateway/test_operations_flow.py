"""Rates, lag and percentiles of the operations page: pure, so tried on whatever the log may say."""

from hypothesis import given
from hypothesis import strategies as st

from schemas.endings import EndingCode
from streams.gateway.operations.flow import (
    WINDOW_MS,
    Look,
    per_second,
    within_window,
    written_per_second,
)
from streams.gateway.operations.recent import MAX_ENDINGS, MAX_FIRST_TOKENS, RecentAnswers, percentile
from streams.gateway.operations.recent import WINDOW_MS as RECENT_MS
from streams.log.port import TopicPartition
from streams.log.watch import Sight, lag_by_topic

PLACES = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3))
OFFSETS = st.dictionaries(PLACES, st.integers(0, 10**9), max_size=8)


def look(at_ms: int, ends: dict[TopicPartition, int]) -> Look:
    return Look(at_ms, Sight(ends, {}))


@given(OFFSETS, st.dictionaries(PLACES, st.integers(0, 10**6)), st.integers(1, 10**6))
def test_what_was_written_between_two_looks_is_counted_once(
    before: dict[TopicPartition, int], more: dict[TopicPartition, int], elapsed_ms: int
) -> None:
    after = {place: end + more.get(place, 0) for place, end in before.items()}
    rates = written_per_second(look(5, before), look(5 + elapsed_ms, after))
    for topic in {place.topic for place in before}:
        written = sum(more.get(place, 0) for place in before if place.topic == topic)
        assert abs(rates[topic] * elapsed_ms / 1_000 - written) < 1e-6 * max(written, 1)


@given(OFFSETS, OFFSETS, st.integers(-10, 10**6))
def test_a_rate_is_never_negative_and_never_of_what_one_look_alone_saw(
    before: dict[TopicPartition, int], after: dict[TopicPartition, int], elapsed_ms: int
) -> None:
    rates = written_per_second(look(10, before), look(10 + elapsed_ms, after))
    assert all(rate >= 0 for rate in rates.values())
    assert rates.keys() <= {place.topic for place in before.keys() & after.keys()}
    if elapsed_ms <= 0:
        assert rates == {}


@given(st.dictionaries(st.sampled_from(["g", "h"]), OFFSETS), OFFSETS)
def test_lag_is_what_lies_between_commit_and_end_where_both_are_known(
    committed: dict[str, dict[TopicPartition, int]], ends: dict[TopicPartition, int]
) -> None:
    lag = lag_by_topic(committed, ends)
    assert lag.keys() == committed.keys()
    for group, topics in lag.items():
        known = [place for place in committed[group] if place in ends]
        assert topics.keys() == {place.topic for place in known}
        assert sum(topics.values()) == sum(max(0, ends[place] - committed[group][place]) for place in known)


@given(st.lists(st.integers(0, 100_000), max_size=20))
def test_rates_are_of_the_newest_looks_alone(times_ms: list[int]) -> None:
    looks = [look(at_ms, {}) for at_ms in sorted(times_ms)]
    kept = within_window(looks)
    assert kept == looks[len(looks) - len(kept) :]
    assert all(each.at_ms >= looks[-1].at_ms - WINDOW_MS for each in kept)
    assert bool(kept) == bool(looks)


def test_without_time_there_is_no_rate() -> None:
    assert per_second(1, 5, 0) is None
    assert per_second(1, 5, 2_000) == 2
    assert per_second(5, 1, 2_000) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], percent: int) -> None:
    found = percentile(sorted(values), percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


@given(st.lists(st.integers(0, 2 * RECENT_MS), max_size=50))
def test_only_what_is_recent_is_told_and_the_newest_first(times_ms: list[int]) -> None:
    recent = RecentAnswers()
    for at_ms in sorted(times_ms):
        recent.first_token(at_ms, 1.0)
        recent.ended(at_ms, EndingCode.COMPLETED, "m", 1)
    within = sorted((at_ms for at_ms in times_ms if at_ms > RECENT_MS), reverse=True)
    assert [each.at_ms for each in recent.endings(2 * RECENT_MS, 10)] == within[:10]
    assert recent.counts(2 * RECENT_MS).total() == recent.first_tokens(2 * RECENT_MS).answers == len(within)


def test_memory_is_bounded_and_nothing_has_no_figures() -> None:
    recent = RecentAnswers()
    assert recent.first_tokens(0) == (0, None, None, None)
    for number in range(MAX_ENDINGS + MAX_FIRST_TOKENS):
        recent.first_token(1, float(number))
        recent.ended(1, EndingCode.CANCELLED, "m", 1)
    assert recent.first_tokens(1).answers == MAX_FIRST_TOKENS
    assert recent.counts(1) == {EndingCode.CANCELLED: MAX_ENDINGS}
