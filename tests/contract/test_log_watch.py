"""What every log says of itself, held for the one in memory and for real Kafka alike."""

import pytest

from streams.log.kafka import KafkaWatch
from streams.log.port import LogError, TopicPartition
from streams.settings import KafkaSettings
from tests.contract.logs import Log, new_name, numbers, read, write
from tests.servers import free_ports


def test_ends_and_commits_are_told_of_what_is_there(log: Log, group: str) -> None:
    topic, other = log.topic(2), log.topic(1)
    write(log, topic, numbers(0, 4))
    write(log, topic, numbers(0, 1), partition=1)
    consumer = log.consumer(group)
    consumer.subscribe([topic])
    read(consumer, 7)
    consumer.commit({TopicPartition(topic, 0): 3})
    places = [TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(other, 0)]
    missing = TopicPartition("no-such-topic", 0)

    sight = log.watch().look([*places, missing], [group, new_name("group")])

    assert sight.ends == dict(zip(places, (5, 2, 0), strict=True)), "what is not there is left out"
    assert [*sight.committed.values()] == [{places[0]: 3}, {}]


def test_the_next_look_sees_what_was_written_since(log: Log, group: str) -> None:
    topic = log.topic(1)
    place = TopicPartition(topic, 0)
    watch = log.watch()
    assert watch.look([place], [group]).ends == {place: 0}
    write(log, topic, numbers(0, 2))
    assert watch.look([place], [group]).ends == {place: 3}
    assert watch.look([], []).ends == {}


def test_a_cluster_that_is_away_is_a_retriable_error(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.log.kafka.watch.CALL_TIMEOUT_S", 0.5)
    [port] = free_ports(1)
    watch = KafkaWatch(kafka_settings.model_copy(update={"bootstrap": f"127.0.0.1:{port}"}), "away")
    with pytest.raises(LogError) as caught:
        watch.look([TopicPartition("any", 0)], ["any"])
    assert caught.value.retriable
