"""A broker is killed, the only one or one of three: what its clients may rely on."""

from contextlib import suppress
from pathlib import Path

import pytest

from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import LogError, LogRecord, TopicPartition
from streams.provisioning import provision
from streams.topics import HOUR_MS, Topic
from tests.servers import new_kafka_cluster, new_kafka_node, running, running_cluster, until

pytestmark = pytest.mark.long

PLACE = TopicPartition("t", 0)


def test_nothing_acknowledged_is_lost_and_clients_go_on_by_themselves(tmp_path: Path, kafka_libs: Path) -> None:
    node = new_kafka_node(tmp_path / "kafka", kafka_libs)
    delivered: list[int] = []

    def on_delivery(offset: int | None, error: LogError | None) -> None:
        assert error is None
        assert offset is not None
        delivered.append(offset)

    with running(node) as (settings, process):
        provision(settings, [Topic("t", "key", dict, 1, HOUR_MS)])
        producer = KafkaProducer(settings, "producer")
        consumer = KafkaConsumer(settings, "group", "consumer")
        consumer.subscribe(["t"])
        producer.produce("t", b"0", on_delivery=on_delivery)
        assert producer.flush(60) == 0
        until(lambda: consumer.poll(10, 0.1), "the first record is read")
        consumer.commit({PLACE: 1})
        process.kill()
        process.wait(timeout=60)

        for number in range(1, 5):
            producer.produce("t", b"%d" % number, on_delivery=on_delivery)
        with pytest.raises(LogError, match="does not answer") as caught:
            consumer.commit({PLACE: 1})
        assert caught.value.retriable

    found: list[LogRecord] = []

    def read() -> bool:
        producer.poll()
        found.extend(consumer.poll(10, 0.1))
        return len(found) >= 4

    with running(node) as (settings, _process):
        until(read, "what was written while the broker was away is read")
        assert producer.flush(60) == 0
        assert delivered == [0, 1, 2, 3, 4]
        assert [record.value for record in found] == [b"1", b"2", b"3", b"4"]
        consumer.commit({PLACE: 5})
        consumer.close()
        successor = KafkaConsumer(settings, "group", "successor")
        assert successor.committed([PLACE])[PLACE].offset == 5
        assert successor.watermarks(PLACE) == (0, 5)
        successor.close()


def test_who_has_asked_a_broker_that_is_gone_asks_who_leads_now(tmp_path: Path, kafka_libs: Path) -> None:
    """A reader that only looks up where partitions begin and end reads nothing that would tell it of a new leader."""
    with running_cluster(new_kafka_cluster(tmp_path, kafka_libs, 3)) as (settings, processes):
        provision(settings, [Topic("t", "key", dict, 3, HOUR_MS)])
        producer = KafkaProducer(settings, "producer")
        reader = KafkaConsumer(settings, None, "reader")
        places = [TopicPartition("t", number) for number in range(3)]
        for place in places:
            producer.produce("t", b"before", partition=place.partition)
        assert producer.flush(60) == 0
        assert [reader.watermarks(place) for place in places] == [(0, 1)] * 3
        processes[0].kill()
        processes[0].wait(timeout=60)
        for place in places:
            producer.produce("t", b"after", partition=place.partition)
        assert producer.flush(60) == 0

        def looked_up() -> bool:
            with suppress(LogError):  # as long as nobody leads in its place
                return [reader.watermarks(place) for place in places] == [(0, 2)] * 3
            return False

        until(looked_up, "another broker says where partitions end")
        assert reader.ends(places) == dict.fromkeys(places, 2)
        reader.close()
