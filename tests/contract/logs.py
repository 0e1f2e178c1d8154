"""The logs under contract, and how its stories write and read."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, Protocol

from streams.log.kafka import KafkaConsumer, KafkaProducer, KafkaWatch
from streams.log.memory import MemoryLog
from streams.log.memory.watch import MemoryWatch
from streams.log.port import (
    LogConsumer,
    LogError,
    LogProducer,
    LogRecord,
)
from streams.log.watch import LogWatch
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import HOUR_MS, Topic

DEADLINE_S = 60.0
_names = count(1)


def new_name(kind: str) -> str:
    """A name that no other test uses."""
    return f"{kind}-{next(_names)}"


class Log(Protocol):
    """One implementation under test."""

    def topic(self, partitions: int) -> str:
        """Creates a topic that nobody else uses."""

    def producer(self, *, queue_records: int = 1_000) -> LogProducer: ...

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        """Closed when the test ends."""

    def watch(self) -> LogWatch:
        """Closed when the test ends."""


@dataclass
class InMemory:
    held: ExitStack
    log: MemoryLog = field(default_factory=MemoryLog)

    def topic(self, partitions: int) -> str:
        name = new_name("contract")
        self.log.create_topic(name, partitions)
        return name

    def producer(self, *, queue_records: int = 1_000) -> LogProducer:
        return self.log.producer(new_name("producer"), queue_records=queue_records)

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        consumer = self.log.consumer(group, new_name("consumer"), reset=reset)
        return self.held.enter_context(closing(consumer))

    def watch(self) -> LogWatch:
        return self.held.enter_context(closing(MemoryWatch(self.log)))


@dataclass
class OnKafka:
    held: ExitStack
    settings: KafkaSettings

    def topic(self, partitions: int) -> str:
        name = new_name("contract")
        provision(self.settings, [Topic(name, "key", dict, partitions, HOUR_MS)])
        return name

    def producer(self, *, queue_records: int = 1_000) -> LogProducer:
        # A missing topic is waited for, in case it was only just made: here for less long.
        extra = {"topic.metadata.propagation.max.ms": "1000"}
        settings = self.settings.model_copy(update={"producer_queue_records": queue_records, "extra": extra})
        return KafkaProducer(settings, new_name("producer"))

    def consumer(self, group: str | None, *, reset: Literal["earliest", "latest"] = "earliest") -> LogConsumer:
        consumer = KafkaConsumer(self.settings, group, new_name("consumer"), reset=reset)
        return self.held.enter_context(closing(consumer))

    def watch(self) -> LogWatch:
        return self.held.enter_context(closing(KafkaWatch(self.settings, new_name("watch"))))


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
