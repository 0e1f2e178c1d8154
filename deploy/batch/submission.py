"""Puts the jobs of a file on Kafka, signed, line by line. It may be begun again at any time, and then does none twice.

1. A line is read, and checked as admission checks it. Killed now, nothing of it was sent.
2. It is signed and handed to the producer. Killed now, it may or may not be on Kafka.
3. Kafka has acknowledged it. Whoever begins again sends it again under the same name, and admission does it once.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deploy.batch.connection import Connection
from deploy.batch.lines import Broken, Job, key_of
from streams.signing import sign_job

DELIVERY_TIMEOUT_MS: Final = 60_000
FLUSH_S: Final = 90.0
QUEUED_JOBS: Final = 10_000
QUEUED_KIB: Final = 65_536
"""What waits to be sent, at most: what the memory of a submission is bounded by."""


class SubmissionFailed(Exception):
    """Some jobs may not be on Kafka; begun again, the file is submitted whole."""


class Sender(Protocol):
    """As much of librdkafka's producer as is used here."""

    def produce(self, topic: str, *, key: str, value: bytes, headers: Any, on_delivery: Any) -> None: ...
    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...


@dataclass(slots=True)
class Submitted:
    """`skipped` have a result already."""

    sent: int = 0
    skipped: int = 0
    broken: int = 0


def kafka_producer(connection: Connection) -> Producer:
    return Producer(
        {
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": QUEUED_JOBS,
            "queue.buffering.max.kbytes": QUEUED_KIB,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "message.max.bytes": 4_194_304,
            **connection.kafka,
            "enable.idempotence": True,
            "acks": "all",
        }
    )


class Submission:
    """One way through a file. `has_result` says of which jobs there is nothing left to do."""

    def __init__(self, connection: Connection, producer: Sender, expires_s: int) -> None:
        self._connection = connection
        self._producer = producer
        self._expires_ms = expires_s * 1_000
        self._failure: tuple[int, str] | None = None
        self.counts = Submitted()

    def run(
        self, entries: Iterable[Job | Broken], has_result: Callable[[int], bool], on_broken: Callable[[Broken], None],
        on_entry: Callable[[], None] = lambda: None,
    ) -> Submitted:  # fmt: skip
        """Returns once Kafka has acknowledged every job. Raises SubmissionFailed."""
        try:
            for entry in entries:
                if isinstance(entry, Broken):
                    self.counts.broken += 1
                    on_broken(entry)
                elif has_result(_key(entry)):
                    self.counts.skipped += 1
                else:
                    self._send(entry)
                on_entry()
        finally:
            left = self._producer.flush(FLUSH_S)
        self._raise_if_failed()
        if left:
            raise SubmissionFailed(f"Kafka did not acknowledge {left} jobs in time")
        return self.counts

    def _send(self, job: Job) -> None:
        connection = self._connection
        headers = sign_job(
            connection.key, topic=connection.intake, tenant_id=connection.tenant, key_id=connection.key_id,
            custom_id=job.name, expires_ms=time.time_ns() // 1_000_000 + self._expires_ms, value=job.value,
        )  # fmt: skip
        line = job.line

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.counts.sent += 1
            elif self._failure is None:
                self._failure = line, error.str()

        while True:
            self._raise_if_failed()
            try:
                self._producer.produce(
                    connection.intake, key=job.name, value=job.value, headers=headers, on_delivery=delivered
                )
            except BufferError:
                # What waits ends by itself: it is acknowledged, or given up after the delivery timeout.
                self._producer.poll(0.5)
            except KafkaException as error:
                raise SubmissionFailed(f"line {line}: {error}") from None
            else:
                self._producer.poll(0)
                return

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            line, why = self._failure
            raise SubmissionFailed(f"line {line} was not acknowledged: {why}")


def _key(job: Job) -> int:
    key = key_of(job.name)
    assert key is not None, "every job of a file has one"
    return key
