"""What every log must do with records, held for the one in memory and for real Kafka alike."""

import time
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer

from streams.log.port import (
    MAX_RECORD_BYTES,
    LogError,
    OnDelivery,
    ProducerQueueFull,
    RecordTooLarge,
    TopicPartition,
)
from streams.log.reading import kept_offsets, read_offsets
from streams.settings import KafkaSettings
from tests.contract.logs import DEADLINE_S, Log, OnKafka, nothing_more, numbers, read, values, write


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


def test_watermarks_and_times_name_offsets(log: Log) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    reader = log.consumer(None)
    assert reader.partitions(topic) == [place]
    assert reader.watermarks(place) == (0, 0)
    assert reader.ends([]) == {}
    assert reader.ends([place]) == {place: 0}
    assert reader.offset_at(place, 0) == 0
    write(log, topic, numbers(0, 2))
    time.sleep(0.01)
    write(log, topic, numbers(3, 5))
    reader.assign({place: 0})
    records = read(reader, 6)

    assert reader.watermarks(place) == (0, 6)
    assert reader.ends([place]) == {place: 6}
    assert reader.offset_at(place, 0) == 0
    assert reader.offset_at(place, records[3].timestamp_ms) == 3
    assert reader.offset_at(place, records[-1].timestamp_ms + 1) == 6


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
