"""What a running stack says about itself, read from Kafka."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple
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
MAX_OTHERS = 50
"""Groups that are not of Sluice's processes: anybody may have as many as it likes, and each is asked for by itself."""


class OtherGroups(NamedTuple):
    """Of tenants' own consumers, say. `lag`: of those that were asked for; None: they could not be."""

    groups: int = 0
    asked: int = 0
    lag: int | None = 0


def without_credentials(url: str) -> str:
    """The URL as a person or a script may see it: `***` instead of user and password."""
    parts = urlsplit(url)
    _, at, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{place}").geturl() if at else url


def _admin(settings: KafkaSettings) -> AdminClient:
    return AdminClient({**client_config(settings, "sluice-status"), "log_level": 0})


def consumer_lag(settings: KafkaSettings, own: Collection[str]) -> tuple[Lag, OtherGroups]:
    """Lag of those of these consumer groups that there are, by topic, and of all others together. Raises LogError."""
    admin = _admin(settings)
    with asked_in_time("consumer lag", CALL_TIMEOUT_S):
        groups = admin.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(CALL_TIMEOUT_S)
        if groups.errors:  # of brokers that did not answer; what the others say is not all
            raise KafkaException(groups.errors[0])
        names = {listing.group_id for listing in groups.valid}
        return _lag_of(admin, names & {*own}), _others(admin, sorted(names - {*own}))


def _others(admin: AdminClient, groups: Collection[str]) -> OtherGroups:
    asked = [*groups][:MAX_OTHERS]
    try:
        lag = _lag_of(admin, asked)
    except KafkaException:
        # Whatever somebody's own group is in, it hides nothing of ours.
        return OtherGroups(len(groups), 0, None)
    return OtherGroups(len(groups), len(asked), sum(sum(by_topic.values()) for by_topic in lag.values()))


def _lag_of(admin: AdminClient, groups: Iterable[str]) -> Lag:
    committed: dict[str, dict[TopicPartition, int]] = {}
    for group in groups:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=CALL_TIMEOUT_S)
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
