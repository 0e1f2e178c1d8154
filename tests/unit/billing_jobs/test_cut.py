"""What forms a batch, what a commit remembers of it, and what a batch holds."""

import json
from collections.abc import Sequence

import pytest

from billing_jobs.cut import (
    ROW_SCHEMA,
    AnotherLog,
    Cut,
    CutPlanner,
    CutUnreadable,
    check_log,
    committed_cut,
    cut_of,
    parse_batch,
)
from billing_jobs.haste import Haste
from billing_jobs.pricing import PriceBook
from streams.log.port import MAX_METADATA_BYTES, Committed, LogRecord, TopicPartition
from streams.topics import DAY_MS
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, presence, usage_event

SOURCE = TopicPartition("local.usage", 2)


def record(offset: int, value: bytes | None = None, timestamp_ms: int = NOON_MS) -> LogRecord:
    body = usage_event(offset).encode() if value is None else value
    return LogRecord(SOURCE.topic, SOURCE.partition, offset, None, body, (), timestamp_ms)


def records(first: int, last: int) -> list[LogRecord]:
    return [record(offset) for offset in range(first, last + 1)]


END = 1_000


def planner(max_rows: int = 10, max_bytes: int = 10**9, max_wait_ms: int = 500) -> CutPlanner:
    return CutPlanner(max_rows=max_rows, max_bytes=max_bytes, haste=Haste(max_wait_ms, max_wait_ms))


def offer_all(to: CutPlanner, offered: Sequence[LogRecord], now_ms: int = 0) -> None:
    for each in offered:
        to.offer([each], now_ms)


# -- the cut in the commit ---------------------------------------------------------------------------------------------


def test_a_cut_survives_the_commit_and_its_metadata_is_small() -> None:
    cut = cut_of(records(7, 9), NOON_MS)
    metadata = cut.to_metadata()
    assert len(metadata.encode()) <= MAX_METADATA_BYTES
    assert committed_cut(SOURCE, Committed(10, metadata)) == cut
    huge = Cut("t" * 249, 2**31, 2**63 - 2, 2**63 - 1, 2**31, "f" * 64, NOON_MS)
    assert len(huge.to_metadata().encode()) <= MAX_METADATA_BYTES


@pytest.mark.parametrize("committed", [Committed(None), Committed(5, ""), Committed(None, "stray")])
def test_a_commit_without_metadata_cut_nothing(committed: Committed) -> None:
    assert committed_cut(SOURCE, committed) is None


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ("host-17", "not a cut"),
        ("[]", "not a cut"),
        (json.dumps({"a": 1}), "not a cut"),
        (cut_of(records(7, 8), NOON_MS).to_metadata(), "does not end at commit 10"),
        (Cut("t", 0, 7, 9, 3, "f" * 64, NOON_MS, ROW_SCHEMA + 1).to_metadata(), "row schema"),
    ],
)
def test_a_commit_that_cannot_be_understood_stops_the_sink(metadata: str, why: str) -> None:
    with pytest.raises(CutUnreadable, match=why):
        committed_cut(SOURCE, Committed(10, metadata))


def test_the_digest_covers_offsets_and_values() -> None:
    base = cut_of(records(1, 3), NOON_MS).sha256
    assert cut_of(records(1, 3), NOON_MS).sha256 == base
    assert cut_of([*records(1, 2), record(3, b"{}")], NOON_MS).sha256 != base
    assert (
        cut_of([record(1), record(3)], NOON_MS).sha256
        != cut_of([record(1), record(2, record(3).value)], NOON_MS).sha256
    )


def test_a_range_that_is_cut_again_has_a_token_of_its_own() -> None:
    assert cut_of(records(1, 3), NOON_MS).token == cut_of(records(1, 3), NOON_MS).token
    assert cut_of(records(1, 3), NOON_MS).token != cut_of(records(1, 3), NOON_MS + 1).token


# -- what is cut, and when ---------------------------------------------------------------------------------------------


def test_a_batch_is_cut_when_it_is_full_or_has_waited() -> None:
    planned = planner(max_rows=3, max_wait_ms=500)
    assert planned.assign(SOURCE, Committed(None), low_offset=4, end_offset=END, stored_offset=None) == 4
    offer_all(planned, records(4, 5), now_ms=1_000)
    assert planned.due(1_499) is None
    assert planned.wait_ms(1_100) == 400
    due = planned.due(1_500)
    assert due is not None
    assert (due.cut.first, due.cut.last, due.committed) == (4, 5, False)
    offer_all(planned, records(6, 10), now_ms=2_000)
    assert planned.wait_ms(2_000) == 0
    full = planned.due(2_000)
    assert full is not None
    assert (full.cut.first, full.cut.last) == (6, 8)
    assert planned.due(2_000) is None
    assert planned.buffered_records == 2


def test_bytes_bound_a_batch_as_well() -> None:
    planned = planner(max_rows=1_000, max_bytes=2_000)
    planned.assign(SOURCE, Committed(None), 0, END, None)
    offer_all(planned, [record(0, b"x" * 1_500)])
    assert planned.due(0) is None
    offer_all(planned, [record(1, b"x" * 1_500)])
    assert planned.due(0) is not None


def test_a_record_seen_twice_is_taken_once_and_strangers_are_ignored() -> None:
    planned = planner()
    planned.offer([record(0)], 0)
    planned.assign(SOURCE, Committed(3), 0, END, 3)
    offer_all(planned, [record(3), record(4), record(4)])
    due = planned.due(10_000)
    assert due is not None
    assert [each.offset for each in due.records] == [3, 4]


def test_a_quiet_partition_is_not_starved_by_a_busy_one() -> None:
    quiet = TopicPartition(SOURCE.topic, 0)
    planned = planner(max_rows=2)
    for source in (SOURCE, quiet):
        planned.assign(source, Committed(None), 0, END, None)
    planned.offer([LogRecord(quiet.topic, quiet.partition, 0, None, b"{}", (), NOON_MS)], 0)
    offer_all(planned, records(0, 5), now_ms=1)
    due = planned.due(1)
    assert due is not None
    assert due.cut.source == quiet


# -- after a crash -----------------------------------------------------------------------------------------------------


def test_the_next_owner_reads_the_cut_again_and_goes_on_behind_it() -> None:
    cut = cut_of(records(4, 6), NOON_MS)
    planned = planner(max_rows=100)
    assert planned.assign(SOURCE, Committed(7, cut.to_metadata()), 0, END, stored_offset=4) == 4
    offer_all(planned, [record(7), *records(4, 5)])
    assert planned.due(10_000) is None, "the cut is not complete, however long it waits"
    offer_all(planned, records(6, 8))
    due = planned.due(0)
    assert due is not None
    assert (due.cut, due.committed) == (cut, True)
    following = planned.due(10_000)
    assert following is not None
    assert (following.cut.first, following.cut.last, following.committed) == (7, 8, False)


def test_a_log_that_no_longer_holds_what_was_cut_stops_the_sink() -> None:
    cut = cut_of(records(4, 6), NOON_MS)
    planned = planner()
    planned.assign(SOURCE, Committed(7, cut.to_metadata()), 0, END, 4)
    offer_all(planned, [record(4), record(5, b"changed"), record(6)])
    with pytest.raises(CutUnreadable, match="no longer holds"):
        planned.due(0)


def test_records_that_left_the_log_before_they_were_stored_stop_the_sink() -> None:
    cut = cut_of(records(4, 6), NOON_MS)
    with pytest.raises(CutUnreadable, match="records 4 to 5 left the log"):
        planner().assign(SOURCE, Committed(7, cut.to_metadata()), low_offset=6, end_offset=END, stored_offset=4)
    with pytest.raises(CutUnreadable, match="records 2 to 8 left the log"):
        planner().assign(SOURCE, Committed(2), low_offset=9, end_offset=END, stored_offset=2)


def test_a_stored_cut_may_have_left_the_log() -> None:
    cut = cut_of(records(4, 6), NOON_MS)
    assert planner().assign(SOURCE, Committed(7, cut.to_metadata()), low_offset=7, end_offset=END, stored_offset=7) == 7


def test_a_cut_that_the_tables_hold_is_not_inserted_again() -> None:
    cut = cut_of(records(4, 6), NOON_MS)
    planned = planner(max_rows=2)
    planned.assign(SOURCE, Committed(7, cut.to_metadata()), 0, END, stored_offset=7)
    offer_all(planned, records(4, 8))
    due = planned.due(0)
    assert due is not None
    assert (due.cut.first, due.cut.last, due.committed) == (7, 8, False)


def test_a_log_that_lost_its_end_and_grew_again_is_for_an_operator_to_decide() -> None:
    """Cuts are small: what the log has in place of lost records may begin far below the last one."""
    last_cut = cut_of(records(15, 19), NOON_MS)
    planned = planner()
    planned.assign(SOURCE, Committed(20, last_cut.to_metadata()), 3, END, stored_offset=20)
    offer_all(planned, [record(offset, usage_event(offset + 100).encode()) for offset in range(15, 30)])
    with pytest.raises(CutUnreadable, match="recut 2 --from 3"):
        planned.due(0)


def test_a_log_is_known_by_as_much_of_its_identity_as_brokers_told_both_times() -> None:
    """A topic of an old cluster is given its id when the brokers are upgraded."""
    check_log(SOURCE, "cluster/topic", "cluster/")
    check_log(SOURCE, "cluster/", "cluster/topic")
    for other in ("cluster/another", "another/topic", "another/"):
        with pytest.raises(AnotherLog):
            check_log(SOURCE, "cluster/topic", other)


def test_a_clock_that_is_set_back_holds_up_no_batch() -> None:
    planned = planner(max_wait_ms=500)
    planned.assign(SOURCE, Committed(None), 0, END, None)
    offer_all(planned, records(0, 2), now_ms=3_600_000)
    assert planned.due(3_600_100) is None
    assert planned.due(10_000) is not None


@pytest.mark.parametrize(
    ("committed", "stored", "start"),
    [
        pytest.param(Committed(50), None, 10, id="the tables are empty: from the first record kept"),
        pytest.param(Committed(50), 30, 30, id="the tables are behind the commit: they are filled"),
        pytest.param(Committed(20), 50, 20, id="the operator rewound the group: records are read again"),
        pytest.param(Committed(None), 40, 40, id="the commit expired: the tables know"),
    ],
)
def test_reading_starts_where_nothing_can_be_missed(committed: Committed, stored: int | None, start: int) -> None:
    assert planner().assign(SOURCE, committed, 10, END, stored) == start


# -- what a batch holds ------------------------------------------------------------------------------------------------


def test_records_are_sorted_by_table() -> None:
    others = [compute_record(1), delivered_count(2), presence()]
    mixed = [record(0), *(record(offset, other.encode()) for offset, other in enumerate(others, 1))]
    batch = parse_batch(cut_of(mixed, NOON_MS), mixed, PriceBook([]))
    assert [row.offset for row in batch.usage] == [0]
    assert [row.offset for row in batch.compute] == [1]
    assert [row.offset for row in batch.delivered] == [2]
    assert [row.offset for row in batch.presence] == [3]
    assert [each.state for each in batch.charges] == ["suspense"]
    assert batch.unusable == []


@pytest.mark.parametrize(
    ("value", "reason", "named"),
    [
        (b"{", "not_json", ""),
        (b'{"type":"invoice"}', "unknown_type", "invoice"),
        (usage_event().encode().replace(b'"schema_version":1', b'"schema_version":9'), "unknown_version", "9"),
        (usage_event().encode().replace(b'"output_tokens":30', b'"output_tokens":-1'), "invalid", "output_tokens"),
        (usage_event().encode().replace(b'"output_tokens":30', b'"output_tokens":1e99'), "invalid", "output_tokens"),
        (usage_event(attempts=2**32).encode(), "invalid", "attempts"),
        (usage_event(billing_rule_version=-1).encode(), "invalid", "billing_rule_version"),
        (usage_event(stage_ms={"admission": 2**63}).encode(), "invalid", "stage_ms.admission"),
        (compute_record().model_copy(update={"engine_ms": 2**64}).encode(), "invalid", "engine_ms"),
        (usage_event(accepted_at_ms=NOON_MS + DAY_MS + 1).encode(), "invalid", "accepted_at_ms"),
        (usage_event(accepted_at_ms=NOON_MS - 401 * DAY_MS).encode(), "invalid", "accepted_at_ms"),
        (usage_event(ended_at_ms=2**53).encode(), "invalid", "ended_at_ms"),
        (presence(hour_ms=NOON_MS - 401 * DAY_MS).encode(), "invalid", "hour_ms"),
        (presence(hour_ms=NOON_MS + DAY_MS + 1).encode(), "invalid", "hour_ms"),
        (presence().encode().replace(b'"worker-1"', b'""'), "invalid", "worker_id"),
    ],
)
def test_what_no_table_can_hold_becomes_a_dead_letter_and_its_neighbours_do_not(
    value: bytes, reason: str, named: str
) -> None:
    mixed = [record(0), record(1, value), record(2)]
    batch = parse_batch(cut_of(mixed, NOON_MS), mixed, PriceBook([]))
    assert [row.offset for row in batch.usage] == [0, 2]
    assert [(each.record.offset, each.reason) for each in batch.unusable] == [(1, reason)]
    assert named in batch.unusable[0].detail


def test_a_record_without_a_value_is_a_dead_letter() -> None:
    bare = LogRecord(SOURCE.topic, SOURCE.partition, 0, None, None, (), NOON_MS)
    assert parse_batch(cut_of([bare], NOON_MS), [bare], PriceBook([])).unusable[0].reason == "not_json"


def test_usage_a_month_late_is_taken() -> None:
    late = [record(0, usage_event(accepted_at_ms=NOON_MS - 31 * DAY_MS).encode())]
    assert len(parse_batch(cut_of(late, NOON_MS), late, PriceBook([])).usage) == 1
