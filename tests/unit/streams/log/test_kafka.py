"""What the port over librdkafka decides by itself, with librdkafka's client played by the test."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as NativePartition

from streams.log.kafka import KafkaConsumer, KafkaProducer, KafkaWatch
from streams.log.kafka import consumer as kafka_consumer
from streams.log.kafka.committer import Committer
from streams.log.port import LogError, TopicPartition
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


class CompletingClient(BalancingClient):
    """Its group refuses commits until the partitions are given away, as while a balance is completed."""

    def __init__(self, config: dict[str, object], **options: object) -> None:
        super().__init__(config, **options)
        self._on_commit: Any = config["on_commit"]
        self._begun: list[list[NativePartition]] = []
        self.refused = 0
        self.committed: list[int] = []

    def commit(self, *, offsets: list[NativePartition], asynchronous: bool) -> list[NativePartition] | None:
        if asynchronous:
            self._begun.append(offsets)
            return None
        self.committed += [position.offset for position in offsets]
        return offsets

    def poll(self, timeout_s: float) -> Message:
        if not self.committed and self.refused < 3:
            self.refused += 1
            self._on_commit(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), self._begun.pop())
            return None  # type: ignore[return-value]
        return super().poll(timeout_s)


def test_a_commit_from_before_a_balance_is_not_made_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would undo the one of the callback, or that of the partition's next owner."""
    clients: list[CompletingClient] = []

    def client(config: dict[str, object], **options: object) -> CompletingClient:
        clients.append(CompletingClient(config, **options))
        return clients[-1]

    monkeypatch.setattr(kafka_consumer, "Consumer", client)
    consumer = KafkaConsumer(KafkaSettings(), "group", "client")
    consumer.subscribe(["t"], on_revoke=lambda partitions: consumer.commit(dict.fromkeys(partitions, 9)))
    late = consumer.start_commit({LEAVING: 3})
    while not clients[0].committed:
        assert not late.done(), "it is tried again while its partitions are here"
        consumer.poll(10, 0.0)
    with pytest.raises(LogError, match="a balance began"):
        late.result(0)
    assert clients[0].refused == 3
    assert clients[0].committed == [9]


class FencedClient(BalancingClient):
    """The first one opened is fenced at its first poll."""

    opened = 0

    def __init__(self, config: dict[str, object], **options: object) -> None:
        super().__init__(config, **options)
        self._error_cb: Any = config["error_cb"]
        self._is_fenced = not FencedClient.opened
        FencedClient.opened += 1

    def poll(self, timeout_s: float) -> Message:
        if self._is_fenced:
            error = KafkaError(KafkaError._FATAL, "fenced by other consumer", fatal=True)
            self._error_cb(error)
            raise KafkaException(error)
        return super().poll(timeout_s)

    def close(self) -> None: ...


def test_a_fenced_member_that_cannot_be_closed_yet_joins_anew_with_its_hooks_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_consumer, "Consumer", FencedClient)
    monkeypatch.setattr(FencedClient, "opened", 0)
    told: list[str] = []
    consumer = KafkaConsumer(KafkaSettings(), "group", "client", instance_id="client")
    consumer.subscribe(["t"], on_assign=lambda _: told.append("assigned"), on_lost=lambda _: told.append("lost"))
    hanging = [LogError("a commit still hangs", retriable=True)]

    def close(_committer: Committer) -> None:
        if hanging:
            raise hanging.pop()

    monkeypatch.setattr(Committer, "close", close)
    with pytest.raises(LogError, match="still hangs"):
        consumer.poll(1, 0.0)
    assert consumer.poll(1, 0.0) == []
    assert told == ["assigned", "lost", "assigned"]
    assert [record.offset for record in consumer.poll(1, 0.0)] == [5]


class ReturningClient:
    """A broker has just come back: who leads a partition is known to who has asked for it twice, and not before."""

    def __init__(self, _config: dict[str, object], **_: object) -> None:
        self._asked: list[str] = []

    def list_topics(self, topic: str, **_: object) -> None:
        self._asked.append(topic)

    def get_watermark_offsets(self, _place: NativePartition, **_: object) -> tuple[int, int]:
        if self._asked != [LEAVING.topic] * 2:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 3, 9


def test_a_broker_that_does_not_know_its_partitions_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumer, "Consumer", ReturningClient)
    assert KafkaConsumer(KafkaSettings(), None, "client").watermarks(LEAVING) == (3, 9)


@pytest.mark.parametrize(
    "opens",
    [
        lambda kafka: KafkaConsumer(kafka, None, "client"),
        lambda kafka: KafkaProducer(kafka, "client"),
        lambda kafka: KafkaWatch(kafka, "client"),
    ],
    ids=["consumer", "producer", "watch"],
)
def test_what_librdkafka_refuses_is_an_error_of_the_log(opens: Callable[[KafkaSettings], object]) -> None:
    with pytest.raises(LogError, match=r"no\.such\.thing"):
        opens(KafkaSettings(extra={"no.such.thing": "1"}))
