"""Collects the results of a file's jobs from Kafka, each once, into the files beside it.

1. A result is read; one that is not awaited, or was collected, is passed over.
2. Its line is appended.
3. Once a second all lines are on the disk, and then Kafka is told how far was read. Killed before that, the results
   come again, and the lines that stand there say which of them were collected.
"""

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from deploy.batch.connection import Connection
from deploy.batch.lines import Broken, Job, key_of
from deploy.batch.outputs import Outputs
from schemas.batch import BatchResult
from schemas.codec import Undecodable, decode

POLL_RECORDS: Final = 500
POLL_S: Final = 0.5
COMMIT_EVERY_S: Final = 1.0
_PASSING: Final = frozenset(
    (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._MAX_POLL_EXCEEDED)
)
"""What a client gets over by itself."""
_REFUSED: Final = frozenset((KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED))


class CollectionFailed(Exception):
    """What was collected is kept; begun again, it goes on."""


class Reader(Protocol):
    """As much of librdkafka's consumer as is used here."""

    def consume(self, num_messages: int, timeout: float) -> list[Message]: ...
    def commit(self, *, asynchronous: Literal[False]) -> object: ...


@dataclass(slots=True)
class Awaited:
    """The jobs of a file that have no result yet, as `key_of` tells them, and how many there are in all."""

    keys: set[int]
    jobs: int
    broken: int
    digest: str
    """Of the names of all jobs: what the file's consumer group is named by."""


def awaited(entries: Iterable[Job | Broken]) -> Awaited:
    """A number for each job is kept, and nothing else of it."""
    found, digest = Awaited(set(), 0, 0, ""), hashlib.sha256()
    for entry in entries:
        if isinstance(entry, Broken):
            found.broken += 1
            continue
        key = key_of(entry.name)
        assert key is not None, "every job of a file has one"
        found.jobs += 1
        found.keys.add(key)
        digest.update(entry.name.encode() + b"\0")
    found.digest = digest.hexdigest()[:24]
    return found


def kafka_consumer(connection: Connection, digest: str, *, from_beginning: bool) -> Consumer:
    """A member of the file's own group, which goes on where it was, unless nothing of it was kept. Close it."""
    group = f"{connection.group_prefix}batch-{digest}"
    consumer = Consumer(
        {
            **connection.kafka,
            "group.id": group,
            # Started again after a crash, it is known by this, and need not wait for its session to end.
            "group.instance.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    def assigned(member: Consumer, partitions: list[TopicPartition]) -> None:
        if from_beginning:
            for partition in partitions:
                partition.offset = OFFSET_BEGINNING
        member.assign(partitions)

    consumer.subscribe([connection.results], on_assign=assigned)
    return consumer


class Collection:
    """`jobs` loses what is collected."""

    def __init__(self, jobs: Awaited, outputs: Outputs, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._awaited = jobs.keys
        self._outputs = outputs
        self._clock_s = clock_s
        self.answered = 0
        self.failed = 0

    def found(self, key: int, *, answered: bool) -> None:
        """A job's result is there. What is no job of the file, or has one, is passed over."""
        if key in self._awaited:
            self._awaited.discard(key)
            self.answered += answered
            self.failed += not answered

    def run(self, reader: Reader, timeout_s: float, on_progress: Callable[[], None] = lambda: None) -> bool:
        """Whether every job has its result. Raises CollectionFailed, OSError."""
        deadline_s = self._clock_s() + timeout_s
        commit_at_s = self._clock_s() + COMMIT_EVERY_S
        read = False
        try:
            while self._awaited and self._clock_s() < deadline_s:
                for message in reader.consume(POLL_RECORDS, POLL_S):
                    self._take(message)
                    read = True
                on_progress()
                if read and self._clock_s() >= commit_at_s:
                    self._commit(reader)
                    read, commit_at_s = False, self._clock_s() + COMMIT_EVERY_S
        finally:
            self._outputs.flush()
        if read:
            self._commit(reader)
        return not self._awaited

    def _take(self, message: Message) -> None:
        failure = message.error()
        if failure is not None:
            if failure.fatal() or not (failure.retriable() or failure.code() in _PASSING):
                raise CollectionFailed(failure.str())
            return
        key, value = message.key(), message.value()
        job = None if key is None or value is None else key_of(key.decode("utf-8", "replace"))
        if job is None or job not in self._awaited:
            return
        try:
            result = decode(BatchResult, value)
        except Undecodable as error:
            raise CollectionFailed(
                f"a result cannot be read, {message.topic()} {message.partition()}:{message.offset()}: {error}"
            ) from None
        self.found(job, answered=self._outputs.add(result))

    def _commit(self, reader: Reader) -> None:
        """A commit that fails is made up for by the next one: what is read again is recognised."""
        self._outputs.flush()
        try:
            reader.commit(asynchronous=False)
        except KafkaException as error:
            failure: Any = error.args[0]
            if failure.fatal() or failure.code() in _REFUSED:
                raise CollectionFailed(f"Kafka does not note how far was read: {failure.str()}") from None
