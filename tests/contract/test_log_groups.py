"""What every log must do for the members of a group, held for the one in memory and for real Kafka alike."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Literal

import pytest

from streams.log.kafka import KafkaConsumer
from streams.log.kafka import consumer as kafka_consumer
from streams.log.port import (
    MAX_METADATA_BYTES,
    Committed,
    LogError,
    LogRecord,
    TopicPartition,
)
from streams.settings import KafkaSettings
from tests.contract.logs import Log, OnKafka, nothing_more, numbers, poll_until, read, values, write


def test_a_partition_is_read_in_the_order_of_its_offsets(log: Log, group: str) -> None:
    topic = log.topic(1)
    assert write(log, topic, numbers(0, 499)) == list(range(500))
    consumer = log.consumer(group)
    consumer.subscribe([topic])

    records = read(consumer, 500)

    assert values(records) == numbers(0, 499)
    assert [record.offset for record in records] == list(range(500))
    nothing_more(consumer)


def test_a_missing_topic_is_named(log: Log, group: str) -> None:
    consumer = log.consumer(group)
    with pytest.raises(LogError, match="no-such-topic") as caught:
        consumer.partitions("no-such-topic")
    assert not caught.value.retriable


def test_subscribing_to_a_missing_topic_is_an_error(log: Log, group: str) -> None:
    consumer = log.consumer(group)
    consumer.subscribe(["no-such-topic"])
    with pytest.raises(LogError, match="no-such-topic"):
        poll_until([consumer], lambda: False)


def test_the_next_member_starts_from_the_commit(log: Log, group: str) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 9))
    first = log.consumer(group)
    first.subscribe([topic])
    assert len(read(first, 10)) == 10
    first.commit({place: 4}, metadata={place: "batch 0..3"})
    first.close()

    second = log.consumer(group)
    assert second.committed([place]) == {place: Committed(4, "batch 0..3")}
    second.subscribe([topic])

    assert values(read(second, 6)) == numbers(4, 9)


def test_each_partition_of_a_commit_has_metadata_of_its_own_until_its_next_commit(log: Log, group: str) -> None:
    topic = log.topic(3)
    places = [TopicPartition(topic, number) for number in range(3)]
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    poll_until([consumer], lambda: consumer.assignment() == places)
    largest = "é" * (MAX_METADATA_BYTES // 2)

    consumer.commit(dict.fromkeys(places, 5), metadata={places[0]: "beyond: 7, 9", places[1]: largest})
    assert consumer.committed(places) == {
        places[0]: Committed(5, "beyond: 7, 9"), places[1]: Committed(5, largest), places[2]: Committed(5)
    }  # fmt: skip
    consumer.commit({places[0]: 6})
    assert consumer.committed(places[:2]) == {places[0]: Committed(6), places[1]: Committed(5, largest)}


def test_metadata_that_no_broker_would_keep_is_refused_and_nothing_is_committed(log: Log, group: str) -> None:
    topic = log.topic(2)
    places = [TopicPartition(topic, number) for number in range(2)]
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    poll_until([consumer], lambda: consumer.assignment() == places)
    with pytest.raises(ValueError, match="4097 bytes"):
        consumer.commit(dict.fromkeys(places, 5), metadata={places[1]: "." * (MAX_METADATA_BYTES + 1)})
    with pytest.raises(ValueError, match="not committed"):
        consumer.commit({places[0]: 5}, metadata={places[1]: "astray"})
    assert consumer.committed(places) == dict.fromkeys(places, Committed(None))


def test_nothing_is_committed_that_was_not_asked_for(log: Log, group: str) -> None:
    topic = log.topic(2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for place in places:
        write(log, topic, numbers(0, 9), partition=place.partition)
    first = log.consumer(group)
    first.subscribe([topic])
    read(first, 20)
    first.commit({places[1]: 3})
    first.close()

    second = log.consumer(group)

    assert second.committed(places) == {places[0]: Committed(None), places[1]: Committed(3)}
    second.subscribe([topic])
    assert len(read(second, 17)) == 17


def test_commits_that_were_begun_are_made_in_that_order_while_their_member_reads_on(log: Log, group: str) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 9))
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 4, at_once=2)
    begun = [consumer.start_commit({place: offset}, metadata={place: f"at {offset}"}) for offset in (1, 2, 4)]
    assert values(read(consumer, 6)) == numbers(4, 9)
    poll_until([consumer], lambda: all(outcome.done() for outcome in begun))  # told while its member polls
    assert [outcome.result() for outcome in begun] == [None] * 3
    assert consumer.committed([place]) == {place: Committed(4, "at 4")}


def test_a_commit_may_go_back(log: Log, group: str) -> None:
    """Readers that keep order hold their own line (`OffsetTracker`); the log takes what it is told."""
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 9))
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 10)
    consumer.commit({place: 9})
    consumer.commit({place: 2})
    assert consumer.committed([place])[place].offset == 2


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_without_a_commit_the_reset_policy_decides(log: Log, group: str, reset: Literal["earliest", "latest"]) -> None:
    topic = log.topic(1)
    write(log, topic, numbers(0, 2))
    consumer = log.consumer(group, reset=reset)
    consumer.subscribe([topic])
    found: list[LogRecord] = []
    poll_until([consumer], consumer.assignment, found)
    newest = 2

    def has_something_new() -> bool:
        """`latest` finds its place when the broker says so, a while after the assignment."""
        nonlocal newest
        newest += 1
        write(log, topic, numbers(newest, newest))
        return bool(found) and found[-1].offset > 2

    poll_until([consumer], has_something_new, found)
    poll_until([consumer], lambda: found[-1].offset == newest, found)
    read_from = found[0].offset
    assert read_from == 0 if reset == "earliest" else read_from > 2
    assert values(found) == numbers(read_from, newest)


def test_an_independent_reader_is_told_of_the_end(log: Log, group: str) -> None:
    topic = log.topic(2)
    places = [TopicPartition(topic, number) for number in range(2)]
    write(log, topic, numbers(0, 2))
    reader = log.consumer(None)
    reader.assign(dict.fromkeys(places, 0))
    assert [reader.end_reached(place) for place in places] == [0, 0]
    found: list[LogRecord] = []
    poll_until([reader], lambda: reader.end_reached(places[0]) == 3, found)
    assert values(found) == numbers(0, 2)
    write(log, topic, numbers(3, 3), partition=0)
    poll_until([reader], lambda: reader.end_reached(places[0]) == 4, found)
    assert values(found) == numbers(0, 3)
    reader.assign({places[0]: 2})
    assert reader.end_reached(places[0]) == 0

    member = log.consumer(group)
    with pytest.raises(LogError):
        member.end_reached(places[0])


def test_an_independent_reader_has_no_commits(log: Log) -> None:
    topic = log.topic(1)
    reader = log.consumer(None)
    reader.assign({TopicPartition(topic, 0): 0})
    with pytest.raises(LogError, match="no group"):
        reader.commit({TopicPartition(topic, 0): 0})
    with pytest.raises(LogError, match="no group"):
        reader.subscribe([topic])


def test_seek_goes_back_and_forth(log: Log, group: str) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 9))
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 5, at_once=5)

    consumer.seek(place, 2)
    assert values(read(consumer, 8)) == numbers(2, 9)
    consumer.seek(place, 8)
    assert values(read(consumer, 2)) == numbers(8, 9)
    with pytest.raises(LogError, match="not assigned"):
        consumer.seek(TopicPartition(topic, 1), 0)


def test_a_paused_partition_is_silent_and_loses_nothing(log: Log, group: str) -> None:
    topic = log.topic(2)
    quiet, loud = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(log, topic, numbers(0, 9), partition=0)
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    assert values(read(consumer, 4, at_once=4)) == numbers(0, 3)

    consumer.pause([quiet])
    write(log, topic, numbers(0, 9), partition=1)
    assert {record.source for record in read(consumer, 10)} == {loud}
    nothing_more(consumer)
    consumer.resume([quiet])

    assert values(read(consumer, 6)) == numbers(4, 9)


def test_a_second_member_gets_a_share_from_where_the_first_one_committed_on_revoke(log: Log, group: str) -> None:
    topic = log.topic(4)
    for partition in range(4):
        write(log, topic, numbers(0, 9), partition=partition)
    first, second = log.consumer(group), log.consumer(group)
    assigned: dict[str, list[TopicPartition]] = {"first": [], "second": []}
    revoked: list[TopicPartition] = []

    def commit_seven(partitions: Sequence[TopicPartition]) -> None:
        assert set(partitions) <= set(first.assignment())
        revoked.extend(partitions)
        first.commit(dict.fromkeys(partitions, 7))

    first.subscribe([topic], on_assign=assigned["first"].extend, on_revoke=commit_seven)
    read(first, 40)
    second.subscribe([topic], on_assign=assigned["second"].extend)
    found: list[LogRecord] = []
    poll_until([first, second], lambda: len(found) >= 6, found)

    assert len(assigned["first"]) == 4
    assert sorted(revoked) == sorted(assigned["second"]) == second.assignment()
    assert len(revoked) == 2
    assert sorted([*first.assignment(), *second.assignment()]) == sorted(assigned["first"])
    assert {(record.source, record.offset) for record in found} == {(p, o) for p in revoked for o in (7, 8, 9)}
    with pytest.raises(LogError, match="not assigned") as caught:
        first.commit({revoked[0]: 9})
    assert not caught.value.retriable


def test_a_partition_that_comes_back_is_not_paused_any_more(log: Log, group: str) -> None:
    topic = log.topic(2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    first, second = log.consumer(group), log.consumer(group)
    first.subscribe([topic])
    poll_until([first], lambda: first.assignment() == places)
    first.pause(places)
    second.subscribe([topic])
    poll_until([first, second], lambda: len(second.assignment()) == 1 and len(first.assignment()) == 1)
    [moved] = second.assignment()

    second.close()
    poll_until([first], lambda: first.assignment() == places)
    write(log, topic, numbers(0, 4), partition=moved.partition)

    assert {record.source for record in read(first, 5)} == {moved}


def test_a_member_that_closes_may_commit_and_gives_its_partitions_back(log: Log, group: str) -> None:
    topic = log.topic(2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    write(log, topic, numbers(0, 4), partition=0)
    first, second = log.consumer(group), log.consumer(group)
    first.subscribe([topic], on_revoke=lambda partitions: first.commit(dict.fromkeys(partitions, 3)))
    read(first, 5)
    first.close()

    second.subscribe([topic])
    assert values(read(second, 2)) == numbers(3, 4)
    assert second.assignment() == places
    with pytest.raises(LogError, match="closed"):
        first.poll(1, 0)
    first.close()


def test_on_assign_decides_where_to_start_and_what_waits(log: Log, group: str) -> None:
    """A sink looks up where it stands, and seeks, before the first record comes."""
    topic = log.topic(2)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    for partition in range(2):
        write(log, topic, numbers(0, 9), partition=partition)
    consumer = log.consumer(group)

    def start(partitions: Sequence[TopicPartition]) -> None:
        assert list(partitions) == consumer.assignment() == places
        assert consumer.committed(partitions) == dict.fromkeys(places, Committed(None))
        assert consumer.watermarks(places[0]) == (0, 10)
        consumer.seek(places[0], 8)
        consumer.pause([places[1]])

    consumer.subscribe([topic], on_assign=start)
    assert values(read(consumer, 2)) == numbers(8, 9)
    nothing_more(consumer)
    consumer.resume([places[1]])
    assert values(read(consumer, 10)) == numbers(0, 9)


def test_a_static_member_that_was_fenced_joins_anew(kafka_settings: KafkaSettings, group: str) -> None:
    """The coordinator fences when a client of the same name joins, as this one may have done itself in an outage."""
    with ExitStack() as held:
        topic = OnKafka(held, kafka_settings).topic(2)
        places = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

        def member() -> KafkaConsumer:
            return held.enter_context(closing(KafkaConsumer(kafka_settings, group, "gateway", instance_id="gateway")))

        lost: list[TopicPartition] = []
        first, double = member(), member()
        first.subscribe([topic], on_lost=lost.extend)
        poll_until([first], lambda: first.assignment() == places)
        first.commit({places[0]: 0})
        double.subscribe([topic])
        poll_until([double], lambda: double.assignment() == places)
        double.close()  # a static member that closes stays in the group
        # In the second form where a heartbeat has told it before.
        with pytest.raises(LogError, match=r"fenced by other consumer|Fatal error") as caught:
            first.commit({places[0]: 1})
        assert not caught.value.retriable

        poll_until([first], lambda: lost and first.assignment() == places)
        assert sorted(lost) == places
        write(OnKafka(held, kafka_settings), topic, numbers(0, 4))
        assert values(read(first, 5)) == numbers(0, 4)
        first.commit({places[0]: 5})


def test_of_two_that_go_by_one_name_one_ends_loudly(
    kafka_settings: KafkaSettings, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_consumer, "MAX_RENEWALS", 1)
    with ExitStack() as held:
        topic = OnKafka(held, kafka_settings).topic(1)
        twins = [
            held.enter_context(closing(KafkaConsumer(kafka_settings, group, "gateway", instance_id="gateway")))
            for _ in range(2)
        ]
        twins[0].subscribe([topic])
        poll_until(twins[:1], twins[0].assignment)
        twins[1].subscribe([topic])
        with pytest.raises(LogError, match="fenced by other consumer") as caught:
            poll_until(twins, lambda: False)
        assert not caught.value.retriable


def test_an_error_in_a_rebalance_hook_reaches_the_caller(log: Log, group: str) -> None:
    topic = log.topic(1)
    consumer = log.consumer(group)

    def broken(_partitions: Sequence[TopicPartition]) -> None:
        raise ZeroDivisionError

    consumer.subscribe([topic], on_assign=broken)
    with pytest.raises(ZeroDivisionError):
        poll_until([consumer], lambda: False)
