"""The faults that the log in memory can be told to show."""

from collections.abc import Sequence

import pytest

from streams.log.memory import Crashed, Fault, FaultKind, MemoryConsumer, MemoryLog
from streams.log.port import Committed, LogError, LogRecord, TopicPartition

PLACE = TopicPartition("t", 0)


def log_with(*faults: Fault, records: int = 0) -> MemoryLog:
    log = MemoryLog(faults=faults)
    log.create_topic("t", 1)
    for number in range(records):
        log.append("t", b"%d" % number)
    return log


def joined(log: MemoryLog, client_id: str) -> MemoryConsumer:
    consumer = log.consumer("g", client_id)
    consumer.subscribe(["t"])
    return consumer


def offsets(records: Sequence[LogRecord]) -> list[int]:
    return [record.offset for record in records]


def test_a_crashed_consumer_hands_out_no_more_and_its_successor_starts_from_the_commit() -> None:
    log = log_with(Fault(FaultKind.CRASH, "c", at=4), records=6)
    first = joined(log, "c")
    assert offsets(first.poll(10, 0)) == [0, 1, 2]
    first.commit({PLACE: 2})
    with pytest.raises(Crashed):
        first.poll(10, 0)
    with pytest.raises(Crashed):
        first.commit({PLACE: 3})

    assert offsets(joined(log, "c").poll(10, 0)) == [2, 3, 4, 5]
    assert log.pending_faults() == []


def test_a_crashed_producer_loses_what_it_had_queued() -> None:
    log = log_with(Fault(FaultKind.CRASH, "p", at=3))
    producer = log.producer("p")
    producer.produce("t", b"a")
    producer.poll()
    producer.produce("t", b"b")
    with pytest.raises(Crashed):
        producer.produce("t", b"c")
    with pytest.raises(Crashed):
        producer.flush(1)
    assert [record.value for record in log.records("t")] == [b"a"]


def test_a_rebalance_goes_back_to_the_commit_made_while_revoking() -> None:
    log = log_with(Fault(FaultKind.REBALANCE, "c", at=4), records=5)
    consumer = log.consumer("g", "c")
    events: list[str] = []

    def on_revoke(partitions: Sequence[TopicPartition]) -> None:
        events.append("revoke")
        consumer.commit(dict.fromkeys(partitions, 1))

    consumer.subscribe(["t"], on_assign=lambda _: events.append("assign"), on_revoke=on_revoke)
    assert offsets(consumer.poll(10, 0)) == [0, 1, 2]
    assert offsets(consumer.poll(10, 0)) == []
    assert offsets(consumer.poll(10, 0)) == [1, 2, 3, 4]
    assert events == ["assign", "revoke", "assign"]


def test_a_lost_member_commits_in_vain_and_is_told() -> None:
    log = log_with(Fault(FaultKind.LOST, "zombie", at=3), records=4)
    zombie = log.consumer("g", "zombie")
    lost: list[TopicPartition] = []
    zombie.subscribe(["t"], on_lost=lost.extend)
    assert offsets(zombie.poll(2, 0)) == [0, 1]
    assert zombie.poll(2, 0) == []
    heir = joined(log, "heir")
    assert offsets(heir.poll(10, 0)) == [0, 1, 2, 3]

    with pytest.raises(LogError) as caught:
        zombie.commit({PLACE: 2})

    assert not caught.value.retriable
    assert log.committed("g", PLACE) == Committed(None)
    assert zombie.poll(10, 0) == []
    assert lost == [PLACE]
    assert zombie.assignment() == []


def test_a_coordinator_that_is_away_leaves_commits_undecided_and_makes_them_when_it_is_back() -> None:
    log = log_with(records=3)
    consumer = joined(log, "c")
    log.coordinator_leaves()
    assert offsets(consumer.poll(10, 0)) == [0, 1, 2]
    with pytest.raises(LogError, match="does not answer") as caught:
        consumer.commit({PLACE: 1})
    assert caught.value.retriable
    begun = [consumer.start_commit({PLACE: offset}) for offset in (2, 3)]
    assert begun[1].cancel()
    assert (log.committed("g", PLACE), begun[0].done()) == (Committed(None), False)
    log.coordinator_returns()
    assert (log.committed("g", PLACE), begun[0].done()) == (Committed(2), True)


def test_a_commit_that_waits_for_the_coordinator_is_refused_when_a_balance_comes_first() -> None:
    log = log_with(records=3)
    consumer = joined(log, "c")
    assert offsets(consumer.poll(10, 0)) == [0, 1, 2]
    log.coordinator_leaves()
    begun = consumer.start_commit({PLACE: 1})
    joined(log, "other")
    log.coordinator_returns()
    with pytest.raises(LogError, match="balance"):
        begun.result()
    assert log.committed("g", PLACE) == Committed(None)


def test_duplicates_are_stored_twice_by_a_producer_and_handed_out_twice_by_a_consumer() -> None:
    log = log_with(Fault(FaultKind.DUPLICATE, "p", at=2), Fault(FaultKind.DUPLICATE, "c", at=1))
    producer = log.producer("p")
    for value in (b"a", b"b", b"c"):
        producer.produce("t", value)
    producer.flush(1)
    assert [record.value for record in log.records("t")] == [b"a", b"b", b"b", b"c"]
    consumer = joined(log, "c")
    assert offsets(consumer.poll(1, 0)) == [0]
    assert offsets(consumer.poll(10, 0)) == [0, 1, 2, 3]


def test_a_delayed_report_holds_back_those_behind_it() -> None:
    log = log_with(Fault(FaultKind.DELAY, "p", at=1, polls=2))
    log.create_topic("u", 1)
    producer = log.producer("p")
    reported: list[str] = []
    producer.produce("t", b"", on_delivery=lambda *_: reported.append("t0"))
    producer.produce("t", b"", on_delivery=lambda *_: reported.append("t1"))
    producer.produce("u", b"", on_delivery=lambda *_: reported.append("u0"))
    assert (producer.poll(), reported) == (1, ["u0"])
    assert len(log.records("t")) == 2
    assert producer.flush(0) == 2
    assert (producer.poll(), reported) == (2, ["u0", "t0", "t1"])


def test_a_failed_delivery_stores_nothing_and_says_so() -> None:
    log = log_with(Fault(FaultKind.FAIL, "p", at=1))
    producer = log.producer("p")
    reports: list[tuple[int | None, bool]] = []
    for _ in range(2):
        producer.produce("t", b"", on_delivery=lambda offset, error: reports.append((offset, error is not None)))
    producer.flush(1)
    assert reports == [(None, True), (0, False)]


def test_a_fault_that_can_no_longer_strike_is_refused() -> None:
    log = log_with(records=1)
    joined(log, "c").poll(1, 0)
    with pytest.raises(ValueError, match="no longer"):
        log.inject(Fault(FaultKind.CRASH, "c", at=1))
    log.inject(Fault(FaultKind.LOST, "p", at=1))
    with pytest.raises(ValueError, match="cannot strike a producer"):
        log.producer("p").produce("t", b"")


def test_a_reader_below_what_retention_kept_goes_on_by_its_policy() -> None:
    log = log_with(records=5)
    consumer = joined(log, "c")
    assert offsets(consumer.poll(1, 0)) == [0]
    log.delete_records(PLACE, 3)
    assert consumer.watermarks(PLACE) == (3, 5)
    assert offsets(consumer.poll(10, 0)) == [3, 4]
