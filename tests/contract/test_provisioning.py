"""Provisioning against a real broker."""

import time
from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from streams.log.kafka import KafkaConsumer
from streams.provisioning import Copies, DriftError, TopicState, copies, differences, provision, wait_for_brokers
from streams.settings import KafkaSettings, SettingsError
from streams.topics import Topic, Topics
from tests.servers import free_ports

_regions = (f"provision{number}" for number in count(1))


@pytest.fixture
def topics() -> list[Topic]:
    return Topics(next(_regions), ["default"]).all(["acme"])


def test_it_creates_the_table_once(kafka_settings: KafkaSettings, topics: list[Topic]) -> None:
    names = tuple(sorted(topic.name for topic in topics))

    first = provision(kafka_settings, topics)
    second = provision(kafka_settings, topics)

    assert (first.created, first.present) == (names, ())
    assert (second.created, second.present) == ((), names)
    reader = KafkaConsumer(kafka_settings, None, "reader")
    assert {topic.name: len(reader.partitions(topic.name)) for topic in topics} == {
        topic.name: topic.partitions for topic in topics
    }
    reader.close()


def test_it_adds_what_is_missing(kafka_settings: KafkaSettings, topics: list[Topic]) -> None:
    provision(kafka_settings, topics[:-1])
    report = provision(kafka_settings, topics)
    assert report.created == (topics[-1].name,)
    assert len(report.present) == len(topics) - 1


def test_it_refuses_drift_by_name_and_creates_nothing(kafka_settings: KafkaSettings, topics: list[Topic]) -> None:
    first, second, third, *_ = topics
    provision(kafka_settings, [first, second])
    wanted = [replace(first, partitions=first.partitions + 1), replace(second, retention_ms=1_000), third]

    with pytest.raises(DriftError) as caught:
        provision(kafka_settings, wanted)

    assert set(caught.value.differences) == {
        f"{first.name}: partitions is {first.partitions}, must be {first.partitions + 1}",
        f"{second.name}: retention.ms is {second.retention_ms}, must be 1000",
    }
    assert provision(kafka_settings, [first, second, third]).created == (third.name,)


def test_a_topic_without_a_bound_gets_one_and_an_operators_own_stays(
    kafka_settings: KafkaSettings, topics: list[Topic]
) -> None:
    first, second, *_ = topics
    provision(kafka_settings, [replace(first, retention_bytes=None), replace(second, retention_bytes=5_000_000)])

    provision(kafka_settings, [replace(first, retention_bytes=1_000_000), replace(second, retention_bytes=1_000_000)])

    admin = AdminClient({"bootstrap.servers": kafka_settings.bootstrap})
    resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in (first, second)]
    deadline_s = time.monotonic() + 60
    found: dict[str, str] = {}
    # A broker goes by what its controller has acknowledged a moment later.
    while found.get(first.name) != "1000000" and time.monotonic() < deadline_s:
        found = {r.name: f.result(60)["retention.bytes"].value for r, f in admin.describe_configs(resources).items()}
    assert found == {first.name: "1000000", second.name: "5000000"}


def test_replication_and_in_sync_replicas_are_drift_too() -> None:
    topic = Topic("t", "key", dict, 2, None)
    found = TopicState(2, 1, {"cleanup.policy": "delete", "min.insync.replicas": "1"})
    config = {"cleanup.policy": "compact", "min.insync.replicas": "2", "retention.ms": "5"}
    assert differences(topic, config, 3, found) == [
        "t: replication factor is 1, must be 3",
        "t: cleanup.policy is delete, must be compact",
        "t: min.insync.replicas is 1, must be 2",
        "t: retention.ms is unset, must be 5",
    ]
    assert differences(topic, found.config, 1, found) == []


def test_a_cluster_gets_no_single_copies_in_silence() -> None:
    cluster = KafkaSettings(bootstrap="kafka-1.example:9092,127.0.0.1:9092")
    with pytest.raises(SettingsError) as caught:
        provision(cluster, [])
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["kafka.replication_factor", "kafka.min_insync_replicas"]
    said = cluster.model_copy(update={"replication_factor": 3, "min_insync_replicas": 2})
    assert copies(said) == Copies(3, 2)
    assert copies(KafkaSettings()) == Copies(1, 1)


def test_waiting_for_a_broker_ends_at_its_deadline() -> None:
    [port] = free_ports(1)
    with pytest.raises(TimeoutError, match=str(port)):
        wait_for_brokers(KafkaSettings(bootstrap=f"127.0.0.1:{port}"), timeout_s=0.2)
