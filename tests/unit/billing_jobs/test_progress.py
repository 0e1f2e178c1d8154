"""What is told of how far the tables are behind: never more than is so, and after a quiet hour not an hour less."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.positions import StoredPosition
from billing_jobs.progress import Looks, PartitionProgress, Progress, measure
from streams.clocks import Instant
from streams.log.port import TopicPartition
from tests.unit.billing_jobs.events import NOON_MS
from tests.unit.billing_jobs.sink_world import TOPIC, Member, World, put_usage
from tests.unit.billing_jobs.stores import StoreFault

QUIET, BUSY = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


def test_progress_is_the_oldest_partition_that_is_behind() -> None:
    caught_up = PartitionProgress(0, 10, StoredPosition(10, 500))
    behind = PartitionProgress(0, 20, StoredPosition(15, 700))
    expired = PartitionProgress(30, 30, StoredPosition(20, 600))
    untouched = PartitionProgress(5, 9, None)
    assert measure([caught_up, expired], 1_000) == Progress(0, 1_000, 1_000, lost_records=10)
    assert measure([caught_up, behind], 1_000) == Progress(5, 699, 1_000), "its last millisecond may hold more"
    assert measure([behind, untouched], 1_000) == Progress(9, 0, 1_000)


def test_what_is_proven_is_known_at_the_first_look_also_of_what_another_has_stored() -> None:
    world = World()
    put_usage(world, 0, 3)
    world.steps(world.member())
    another = world.member("b")
    another.sink.step()
    assert another.sink.progress.lag_records == 0
    assert another.sink.progress.proven_through_ms == NOON_MS - 1


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_what_is_proven_is_neither_beyond_what_is_stored_nor_beyond_the_newest_record(
    observed_ms: int, logged_ms: int, stored_ms: int
) -> None:
    some = PartitionProgress(0, 10, StoredPosition(9, stored_ms))
    known = measure([some], observed_ms, logged_ms)
    assert known.proven_through_ms == min(known.stored_through_ms, max(0, logged_ms - 1))
    assert known.proven_through_ms <= min(observed_ms, logged_ms, stored_ms)


def quiet_for_an_hour(world: World, *members: Member) -> None:
    for _ in range(720):
        for member in members:
            member.sink.step()
        world.clock.now_ms += 5_000


def test_what_comes_after_a_quiet_hour_is_late_by_seconds_also_of_a_partition_of_another_member() -> None:
    world = World()
    put_usage(world, 0, 0)
    member, another = world.member(), world.member("b")
    quiet_for_an_hour(world, member, another)
    last_stored_ms = member.sink.progress.proven_through_ms
    put_usage(world, 1, 1)
    for each in (member, another):
        each.sink.step()
        assert each.sink.progress.lag_records == 1
        assert world.clock.now_ms - each.sink.progress.stored_through_ms <= 5_000
        assert each.metric("sluice_billing_lag_seconds") <= 5
        assert each.sink.progress.proven_through_ms == last_stored_ms, "the log's clock has shown no more"


def test_the_first_record_that_a_partition_ever_has_is_late_by_seconds() -> None:
    world = World()
    member = world.member()
    quiet_for_an_hour(world, member)
    put_usage(world, 0, 0)
    member.sink.step()
    assert (member.sink.progress.lag_records, member.metric("sluice_billing_lag_seconds")) == (1, 5)


def test_what_stays_behind_grows_late_from_when_it_was_last_complete() -> None:
    world = World()
    put_usage(world, 0, 0)
    member = world.member()
    quiet_for_an_hour(world, member)
    complete_ms = member.sink.progress.stored_through_ms
    world.store.faults.extend([StoreFault.AWAY] * 1_000_000)
    put_usage(world, 1, 1)
    quiet_for_an_hour(world, member)
    assert member.sink.progress.stored_through_ms == complete_ms


def test_a_clock_that_was_ahead_when_all_was_stored_promises_nothing_once_it_is_right() -> None:
    world = World()
    put_usage(world, 0, 0)
    member = world.member()
    quiet_for_an_hour(world, member)
    world.store.faults.extend([StoreFault.AWAY] * 1_000_000)
    world.clock.set_back(1_800_000)
    put_usage(world, 1, 1)
    logged_ms = world.clock.now_ms
    quiet_for_an_hour(world, member)
    assert logged_ms - 5_000 <= member.sink.progress.stored_through_ms <= logged_ms


def test_of_a_partition_whose_log_seems_to_have_gone_back_no_more_is_told_than_the_tables_know() -> None:
    world = World()
    put_usage(world, 0, 0)
    member = world.member()
    quiet_for_an_hour(world, member)
    last_stored_ms = member.sink.progress.proven_through_ms
    world.store.faults.extend([StoreFault.AWAY] * 1_000)
    put_usage(world, 1, 1)
    member.consumer.seek(QUIET, 0)
    world.steps(member)
    assert (member.sink.progress.lag_records, member.sink.progress.stored_through_ms) == (1, last_stored_ms)


STORED = StoredPosition(10, 500, "a log", decisions=1)


@pytest.mark.parametrize(
    ("now_seen", "is_believed"),
    [
        (PartitionProgress(0, 12, STORED), True),
        (PartitionProgress(0, 12, replace(STORED, next_offset=11)), True),
        (PartitionProgress(0, 12, replace(STORED, log_id="")), True),
        (PartitionProgress(11, 12, STORED), True),
        (PartitionProgress(0, 9, replace(STORED, next_offset=8)), False),
        (PartitionProgress(0, 12, replace(STORED, next_offset=9)), False),
        (PartitionProgress(0, 12, replace(STORED, next_offset=11, decisions=2)), False),
        (PartitionProgress(0, 12, replace(STORED, next_offset=11, log_id="another log")), False),
        (PartitionProgress(0, 12, None), False),
    ],
)
def test_what_was_complete_is_doubted_once_the_log_or_the_tables_went_back_or_an_operator_has_decided(
    now_seen: PartitionProgress, is_believed: bool
) -> None:
    looks = Looks()
    looks.look({QUIET: PartitionProgress(0, 10, STORED)}, Instant(60_000, 0))
    seen = looks.look({QUIET: now_seen}, Instant(61_000, 1_000))
    assert seen.stored_through_ms == (60_000 if is_believed else measure([now_seen], 61_000).stored_through_ms)


def test_of_a_log_that_ends_before_what_is_stored_nothing_is_remembered() -> None:
    looks = Looks()
    looks.look({QUIET: PartitionProgress(0, 9, STORED)}, Instant(60_000, 0))
    assert looks.look({QUIET: PartitionProgress(0, 12, STORED)}, Instant(61_000, 1_000)).stored_through_ms == 499


@pytest.mark.parametrize("is_looked_past", [False, True])
def test_of_a_log_in_doubt_and_of_a_partition_that_was_not_looked_at_nothing_is_remembered(
    is_looked_past: bool,
) -> None:
    looks, complete = Looks(), PartitionProgress(0, 10, STORED)
    looks.look({QUIET: complete}, Instant(60_000, 0))
    if is_looked_past:
        looks.look({BUSY: complete}, Instant(60_500, 500))
    else:
        looks.forget(QUIET)
    assert looks.look({QUIET: replace(complete, end_offset=11)}, Instant(61_000, 1_000)).stored_through_ms == 499


def test_a_look_by_a_clock_that_is_ahead_proves_nothing_to_who_closes_a_month() -> None:
    """Whoever goes by the log's clock alone: another partition has shown 900, and what this one lacks may be older."""
    looks, quiet = Looks(), PartitionProgress(0, 10, STORED)
    busy = PartitionProgress(0, 10, replace(STORED, logged_at_ms=900))
    looks.look({QUIET: quiet, BUSY: busy}, Instant(60_000, 0), 900)
    seen = looks.look({QUIET: replace(quiet, end_offset=11), BUSY: busy}, Instant(61_000, 1_000), 900)
    assert (seen.stored_through_ms, seen.proven_through_ms) == (60_000, 499)


@given(
    st.lists(
        st.tuples(st.sampled_from(["logged", "stored", "looked at", "clock is set"]), st.integers(-5, 5)), max_size=40
    )
)
def test_whatever_happens_what_is_promised_is_stored_and_a_look_at_all_of_it_is_remembered(
    happens: list[tuple[str, int]],
) -> None:
    looks, logged_ms, stored, ahead_ms, complete_ms, was_set = Looks(), [], 0, 0, -1, False
    for time_ms, (what, number) in enumerate(happens, start=100):
        now_ms = time_ms + ahead_ms
        if what == "logged":
            logged_ms.append(time_ms)
        elif what == "stored":
            stored = min(len(logged_ms), stored + max(0, number))
        elif what == "clock is set":
            ahead_ms, was_set = number, True
        else:
            position = StoredPosition(stored, logged_ms[stored - 1]) if stored else None
            seen = looks.look({QUIET: PartitionProgress(0, len(logged_ms), position)}, Instant(now_ms, time_ms))
            assert all(seen.stored_through_ms <= max(each, each + ahead_ms) for each in logged_ms[stored:])
            if stored == len(logged_ms):
                complete_ms = time_ms
            assert was_set or seen.stored_through_ms >= complete_ms
