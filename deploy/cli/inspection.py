"""What a running stack says about itself, read from Kafka."""

from collections import defaultdict
from urllib.parse import urlsplit

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
)
from confluent_kafka import TopicPartition as NativePartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from streams.log.kafka import client_config
from streams.log.kafka.watch import asked_in_time
from streams.log.port import TopicPartition
from streams.log.watch import Lag, lag_by_topic
from streams.settings import KafkaSettings

CALL_TIMEOUT_S = 10.0


def without_credentials(url: str) -> str:
    """The URL as a person or a script may see it: `***` instead of user and password."""
    parts = urlsplit(url)
    _, at, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{place}").geturl() if at else url


def _admin(settings: KafkaSettings) -> AdminClient:
    return AdminClient({**client_config(settings, "sluice-status"), "log_level": 0})


def consumer_lag(settings: KafkaSettings) -> Lag:
    """Lag of every consumer group, by topic. Raises LogError."""
    admin = _admin(settings)
    with asked_in_time("consumer lag", CALL_TIMEOUT_S):
        groups = admin.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(CALL_TIMEOUT_S)
        if groups.errors:  # of brokers that did not answer; what the others say is not all
            raise KafkaException(groups.errors[0])
        committed: dict[str, dict[TopicPartition, int]] = {}
        for group in (listing.group_id for listing in groups.valid):
            asked = admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=CALL_TIMEOUT_S
            )
            partitions = asked[group].result(CALL_TIMEOUT_S).topic_partitions
            committed[group] = {TopicPartition(p.topic, p.partition): p.offset for p in partitions if p.offset >= 0}
        wanted = {partition for offsets in committed.values() for partition in offsets}
        return lag_by_topic(committed, _ends(admin, wanted))


def _latest() -> OffsetSpec:
    return OffsetSpec.latest()  # type: ignore[no-untyped-call,no-any-return]


def _earliest() -> OffsetSpec:
    return OffsetSpec.earliest()  # type: ignore[no-untyped-call,no-any-return]


def _ends(admin: AdminClient, wanted: set[TopicPartition]) -> dict[TopicPartition, int]:
    if not wanted:
        return {}
    asked = admin.list_offsets(
        {NativePartition(each.topic, each.partition): _latest() for each in wanted},
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=CALL_TIMEOUT_S,
    )
    return {
        TopicPartition(partition.topic, partition.partition): future.result(CALL_TIMEOUT_S).offset
        for partition, future in asked.items()
    }


def record_counts(settings: KafkaSettings, topics: list[str]) -> dict[str, int]:
    """Records kept in each of these topics; topics that do not exist are left out. Raises LogError."""
    admin = _admin(settings)
    with asked_in_time("record counts", CALL_TIMEOUT_S):
        metadata = admin.list_topics(timeout=CALL_TIMEOUT_S).topics
        partitions = [
            TopicPartition(name, number) for name in topics if name in metadata for number in metadata[name].partitions
        ]
        counts: defaultdict[str, int] = defaultdict(int)
        if partitions:
            first = admin.list_offsets(
                {NativePartition(each.topic, each.partition): _earliest() for each in partitions}
            )
            for partition, future in first.items():
                counts[partition.topic] -= future.result(CALL_TIMEOUT_S).offset
        for place, end in _ends(admin, set(partitions)).items():
            counts[place.topic] += end
        return dict(counts)
