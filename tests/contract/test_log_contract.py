"""What every log must do, held for the one in memory and for real Kafka alike."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, Protocol

import pytest
from confluent_kafka import Producer

from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.memory import MemoryLog
from streams.log.port import (
    MAX_METADATA_BYTES,
    MAX_RECORD_BYTES,
    Committed,
    LogConsumer,
    LogError,
    LogProducer,
    LogRecord,
    OnDelivery,
    ProducerQueueFull,
    RecordTooLarge,
    TopicPartition,
)
from streams.log.reading import kept_offsets, read_offsets
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import HOUR_MS, Topic

DEADLINE_S = 30.0
_names = count(1)


class Log(Protocol):
    """One implementation under test."""

    def topic(self, partitions: int) -> str:
        """Creates a topic that nobody else uses."""

    def producer(self, *, queue_records: int = 1_000) -> LogProducer: ...

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        """Closed when the test ends."""


@dataclass
class InMemory:
    held: ExitStack
    log: MemoryLog = field(default_factory=MemoryLog)

    def topic(self, partitions: int) -> str:
        name = f"contract-{next(_names)}"
        self.log.create_topic(name, partitions)
        return name

    def producer(self, *, queue_records: int = 1_000) -> LogProducer:
        return self.log.producer(f"producer-{next(_names)}", queue_records=queue_records)

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        consumer = self.log.consumer(group, f"consumer-{next(_names)}", reset=reset)
        return self.held.enter_context(closing(consumer))


@dataclass
class OnKafka:
    held: ExitStack
    settings: KafkaSettings

    def topic(self, partitions: int) -> str:
        name = f"contract-{next(_names)}"
        provision(self.settings, [Topic(name, "key", dict, partitions, HOUR_MS)])
        return name

    def producer(self, *, queue_records: int = 1_000) -> LogProducer:
        # A missing topic is waited for, in case it was only just made: here for less long.
        extra = {"topic.metadata.propagation.max.ms": "1000"}
        settings = self.settings.model_copy(update={"producer_queue_records": queue_records, "extra": extra})
        return KafkaProducer(settings, f"producer-{next(_names)}")

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        consumer = KafkaConsumer(self.settings, group, f"consumer-{next(_names)}", reset=reset)
        return self.held.enter_context(closing(consumer))


@pytest.fixture(params=["memory", "kafka"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    with ExitStack() as held:
        if request.param == "memory":
            yield InMemory(held)
        else:
            yield OnKafka(held, request.getfixturevalue("kafka_settings"))


@pytest.fixture
def group() -> str:
    return f"group-{next(_names)}"


def write(log: Log, topic: str, values: Sequence[bytes], *, partition: int = 0) -> list[int]:
    """Writes and returns the offsets that the log reported."""
    producer = log.producer(queue_records=len(values) + 1)
    offsets: list[int] = []

    def delivered(offset: int | None, error: LogError | None) -> None:
        assert error is None
        assert offset is not None
        offsets.append(offset)

    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return offsets


def read(consumer: LogConsumer, records: int, *, at_once: int = 100) -> list[LogRecord]:
    """Polls until so many records came."""
    found: list[LogRecord] = []
    poll_until([consumer], lambda: len(found) >= records, found, at_once=at_once)
    assert len(found) == records
    return found


def poll_until(
    consumers: Sequence[LogConsumer],
    done: Callable[[], object],
    found: list[LogRecord] | None = None,
    *,
    at_once: int = 100,
) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s"
        for consumer in consumers:
            polled = consumer.poll(at_once, 0.05)
            assert len(polled) <= at_once
            if found is not None:
                found += polled


def nothing_more(consumer: LogConsumer) -> None:
    assert [record for _ in range(5) for record in consumer.poll(100, 0.05)] == []


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


def values(records: Sequence[LogRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_a_partition_is_read_in_the_order_of_its_offsets(log: Log, group: str) -> None:
    topic = log.topic(1)
    assert write(log, topic, numbers(0, 499)) == list(range(500))
    consumer = log.consumer(group)
    consumer.subscribe([topic])

    records = read(consumer, 500)

    assert values(records) == numbers(0, 499)
    assert [record.offset for record in records] == list(range(500))
    nothing_more(consumer)


def test_a_record_arrives_as_it_was_written(log: Log) -> None:
    topic = log.topic(3)
    producer = log.producer()
    producer.produce(topic, b"v", key="k", partition=2, headers=[("a", b"1"), ("a", b"2"), ("b", b"")])
    producer.produce(topic, None, key="k", partition=2)
    assert producer.flush(DEADLINE_S) == 0
    consumer = log.consumer(None)
    consumer.assign({TopicPartition(topic, 2): 0})

    first, second = read(consumer, 2)

    assert (first.topic, first.partition, first.offset) == (topic, 2, 0)
    assert (first.key, first.value, second.key, second.value) == (b"k", b"v", b"k", None)
    assert first.headers == (("a", b"1"), ("a", b"2"), ("b", b""))
    assert (first.header("a"), first.header("b"), first.header("c")) == (b"2", b"", None)
    assert second.headers == ()
    assert 0 < first.timestamp_ms <= second.timestamp_ms


def test_a_key_chooses_the_partition_that_java_clients_choose(log: Log) -> None:
    """Positive murmur2 modulo 8, with the hashes from Kafka's own test of its partitioner."""
    topic = log.topic(8)
    producer = log.producer()
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    for key in hashes:
        producer.produce(topic, b"", key=key)
    assert producer.flush(DEADLINE_S) == 0
    consumer = log.consumer(None)
    consumer.assign({TopicPartition(topic, partition): 0 for partition in range(8)})

    found = {(record.key or b"").decode(): record.partition for record in read(consumer, 3)}

    assert found == {key: (value & 0x7FFFFFFF) % 8 for key, value in hashes.items()}


def test_records_of_one_partition_are_reported_in_order(log: Log) -> None:
    topic = log.topic(2)
    producer = log.producer()
    reported: list[tuple[int, int | None]] = []

    def report_of(number: int) -> OnDelivery:
        return lambda offset, _error: reported.append((number, offset))

    for number in range(100):
        producer.produce(topic, b"", partition=number % 2, on_delivery=report_of(number))
    assert producer.flush(DEADLINE_S) == 0
    assert [each for each in reported if each[0] % 2 == 0] == [(n, n // 2) for n in range(0, 100, 2)]
    assert [each for each in reported if each[0] % 2 == 1] == [(n, n // 2) for n in range(1, 100, 2)]


def test_an_error_of_a_delivery_callback_reaches_the_caller(log: Log) -> None:
    topic = log.topic(1)
    producer = log.producer()

    def broken(_offset: int | None, _error: LogError | None) -> None:
        raise ZeroDivisionError

    producer.produce(topic, b"", on_delivery=broken)
    with pytest.raises(ZeroDivisionError):
        producer.flush(DEADLINE_S)


def test_a_full_queue_pushes_back_and_recovers(log: Log) -> None:
    topic = log.topic(1)
    producer = log.producer(queue_records=10)
    delivered: list[int | None] = []
    pushed_back = 0
    for number in range(50):
        while True:
            try:
                producer.produce(topic, b"%d" % number, on_delivery=lambda offset, _: delivered.append(offset))
                break
            except ProducerQueueFull:
                pushed_back += 1
                producer.poll(1)
    assert pushed_back > 0
    assert producer.flush(DEADLINE_S) == 0
    assert delivered == list(range(50))


def test_a_record_for_a_missing_partition_is_an_error(log: Log) -> None:
    topic = log.topic(1)
    producer = log.producer()
    errors: list[LogError | None] = []
    try:
        producer.produce(topic, b"", partition=7, on_delivery=lambda _, error: errors.append(error))
        producer.flush(DEADLINE_S)
    except LogError as error:
        errors.append(error)
    assert [error is not None and not error.retriable for error in errors] == [True]


def test_a_record_that_is_too_large_is_refused_by_name_and_harms_no_other(log: Log) -> None:
    topic = log.topic(1)
    producer = log.producer()
    with pytest.raises(RecordTooLarge):
        producer.produce(topic, bytes(MAX_RECORD_BYTES + 1), partition=0)
    offsets: list[int | None] = []
    producer.produce(topic, b"", partition=0, on_delivery=lambda offset, _: offsets.append(offset))
    assert producer.flush(DEADLINE_S) == 0
    assert offsets == [0]


def test_a_record_for_a_missing_topic_is_an_error_even_if_nobody_listens(log: Log) -> None:
    producer = log.producer()
    producer.produce("no-such-topic", b"")
    with pytest.raises(LogError, match=r"(?i)unknown topic"):
        producer.flush(DEADLINE_S)


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


@pytest.mark.parametrize(("reset", "expected"), [("earliest", numbers(0, 4)), ("latest", numbers(3, 4))])
def test_without_a_commit_the_reset_policy_decides(
    log: Log, group: str, reset: Literal["earliest", "latest"], expected: list[bytes]
) -> None:
    topic = log.topic(1)
    write(log, topic, numbers(0, 2))
    consumer = log.consumer(group, reset=reset)
    consumer.subscribe([topic])
    before: list[LogRecord] = []
    # One poll more than the assignment needs, so that `latest` has found its place.
    poll_until([consumer], consumer.assignment, before)
    for _ in range(10):
        before += consumer.poll(100, 0.05)
    write(log, topic, numbers(3, 4))

    assert values(before + read(consumer, len(expected) - len(before))) == expected


def test_an_independent_reader_reads_what_it_names(log: Log) -> None:
    topic = log.topic(3)
    for partition in range(3):
        write(log, topic, numbers(0, 4), partition=partition)
    reader = log.consumer(None)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 2)]
    reader.assign({places[0]: 1, places[1]: 4})

    assert reader.assignment() == places
    records = read(reader, 5)

    by_partition = {number: [r.offset for r in records if r.partition == number] for number in range(3)}
    assert by_partition == {0: [1, 2, 3, 4], 1: [], 2: [4]}
    reader.assign({TopicPartition(topic, 1): 3})
    assert reader.assignment() == [TopicPartition(topic, 1)]
    assert values(read(reader, 2)) == numbers(3, 4)


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


def test_a_stretch_is_read_to_what_was_its_end(log: Log) -> None:
    topic = log.topic(3)
    places = [TopicPartition(topic, number) for number in range(3)]
    write(log, topic, numbers(0, 4), partition=0)
    write(log, topic, numbers(0, 1), partition=1)
    reader = log.consumer(None)
    kept = kept_offsets(reader, reader.partitions(topic))
    assert kept == {places[0]: range(5), places[1]: range(2), places[2]: range(0)}
    write(log, topic, numbers(5, 9), partition=0)

    records = list(read_offsets(reader, {**kept, places[0]: range(2, 5)}, time.monotonic() + DEADLINE_S))

    assert [r.offset for r in records if r.source == places[0]] == [2, 3, 4]
    assert [r.offset for r in records if r.source == places[1]] == [0, 1]
    assert len(records) == 5
    assert reader.assignment() == []
    assert list(read_offsets(reader, {places[2]: range(0)}, time.monotonic())) == []


def test_a_stretch_may_begin_at_a_time(log: Log) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 2))
    time.sleep(0.01)
    write(log, topic, numbers(3, 5))
    reader = log.consumer(None)
    [*_, third, _, _] = list(read_offsets(reader, kept_offsets(reader, [place]), time.monotonic() + DEADLINE_S))
    assert kept_offsets(reader, [place], third.timestamp_ms) == {place: range(third.offset, 6)}
    assert kept_offsets(reader, [place], third.timestamp_ms + 60_000) == {place: range(6, 6)}


def test_reading_a_stretch_has_a_deadline(log: Log) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    write(log, topic, numbers(0, 2))
    reader = log.consumer(None)
    with pytest.raises(LogError, match="in time") as raised:
        list(read_offsets(reader, {place: range(3)}, time.monotonic()))
    assert raised.value.retriable
    # Nothing stands at offset 3 yet: the end that was reached lies before the one that was asked for.
    with pytest.raises(LogError, match="in time"):
        list(read_offsets(reader, {place: range(4)}, time.monotonic() + 1.0))


def test_a_stretch_whose_last_offset_holds_no_record_ends(kafka_settings: KafkaSettings) -> None:
    """A transaction's marker takes an offset that no reader sees, as compaction leaves offsets without a record."""
    with ExitStack() as held:
        log = OnKafka(held, kafka_settings)
        topic = log.topic(1)
        place = TopicPartition(topic, 0)
        producer = Producer({"bootstrap.servers": kafka_settings.bootstrap, "transactional.id": topic})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce(topic, b"only", partition=0)
        producer.commit_transaction(DEADLINE_S)
        reader = log.consumer(None)
        deadline_s = time.monotonic() + DEADLINE_S
        while (kept := kept_offsets(reader, [place])) != {place: range(2)}:  # the marker follows the commit
            assert time.monotonic() < deadline_s
        assert values(list(read_offsets(reader, kept, deadline_s))) == [b"only"]


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


def test_watermarks_and_times_name_offsets(log: Log) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    reader = log.consumer(None)
    assert reader.partitions(topic) == [place]
    assert reader.watermarks(place) == (0, 0)
    assert reader.offset_at(place, 0) == 0
    write(log, topic, numbers(0, 2))
    time.sleep(0.01)
    write(log, topic, numbers(3, 5))
    reader.assign({place: 0})
    records = read(reader, 6)

    assert reader.watermarks(place) == (0, 6)
    assert reader.offset_at(place, 0) == 0
    assert reader.offset_at(place, records[3].timestamp_ms) == 3
    assert reader.offset_at(place, records[-1].timestamp_ms + 1) == 6


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


def test_an_error_in_a_rebalance_hook_reaches_the_caller(log: Log, group: str) -> None:
    topic = log.topic(1)
    consumer = log.consumer(group)

    def broken(_partitions: Sequence[TopicPartition]) -> None:
        raise ZeroDivisionError

    consumer.subscribe([topic], on_assign=broken)
    with pytest.raises(ZeroDivisionError):
        poll_until([consumer], lambda: False)


def test_flush_without_time_says_what_is_outstanding_and_all_arrives_once(log: Log) -> None:
    topic = log.topic(1)
    producer = log.producer(queue_records=5_000)
    for value in numbers(0, 1_999):
        producer.produce(topic, value)
    assert 0 <= producer.flush(0) <= 2_000
    assert producer.flush(DEADLINE_S) == 0
    reader = log.consumer(None)
    reader.assign({TopicPartition(topic, 0): 0})
    assert values(read(reader, 2_000)) == numbers(0, 1_999)
    nothing_more(reader)
