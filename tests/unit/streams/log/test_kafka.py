"""What the port over librdkafka decides by itself, with librdkafka's client played by the test."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition as NativePartition

from streams.log.kafka import KafkaConsumer
from streams.log.kafka import consumer as kafka_consumer
from streams.log.port import TopicPartition
from streams.settings import KafkaSettings

Told = Callable[[Any, list[NativePartition]], None]
LEAVING, STAYING = TopicPartition("t", 0), TopicPartition("t", 1)


class Message:
    """A record as librdkafka hands it out."""

    def __init__(self, source: TopicPartition, offset: int) -> None:
        self.source = source
        self._offset = offset

    def topic(self) -> str:
        return self.source.topic

    def partition(self) -> int:
        return self.source.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b""

    def headers(self) -> None:
        return None

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 0)


class BalancingClient:
    """Takes `LEAVING` away between the first record of a poll and the others."""

    def __init__(self, _config: dict[str, object], **_: object) -> None:
        self._records = [Message(LEAVING, 5), Message(STAYING, 7)]

    def subscribe(self, _topics: list[str], *, on_assign: Told, on_revoke: Told, on_lost: Told) -> None:
        on_assign(self, [NativePartition("t", 0), NativePartition("t", 1)])
        self._on_revoke = on_revoke

    def poll(self, _timeout_s: float) -> Message:
        return self._records.pop(0)

    def consume(self, _records: int, _timeout_s: float) -> list[Message]:
        self._on_revoke(self, [NativePartition("t", 0)])
        return [self._records.pop(0)]

    def incremental_assign(self, _partitions: list[NativePartition]) -> None: ...

    def incremental_unassign(self, _partitions: list[NativePartition]) -> None: ...

    def resume(self, _partitions: list[NativePartition]) -> None: ...


def test_no_record_is_handed_out_of_a_partition_that_was_revoked_while_it_was_polled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_consumer, "Consumer", BalancingClient)
    revoked: list[TopicPartition] = []
    consumer = KafkaConsumer(KafkaSettings(), "group", "client")
    consumer.subscribe(["t"], on_revoke=revoked.extend)
    records = consumer.poll(10, 0.0)
    assert revoked == [LEAVING]
    assert [(record.source, record.offset) for record in records] == [(STAYING, 7)]
