"""As much of a Kafka client as a file of jobs needs, with scripted faults, and what it writes to and reads from."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deploy.batch.connection import Connection
from deploy.batch.lines import Job
from schemas.base import Scope
from schemas.batch import BatchError, BatchResponse, BatchResult

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
CONNECTION = Connection(
    kafka={}, tenant="acme", key_id="p1", key=KEY, intake="local.intake.batch", results="local.results.acme",
    group_prefix="local.producers.acme.",
)  # fmt: skip


class Crash(Exception):
    """The process is gone."""


class MemoryProducer:
    """Acknowledges with each poll; holds no more than `room` records. `fail_at`: that one is not taken by Kafka."""

    def __init__(self, room: int = 10, fail_at: int | None = None, crash_at: int | None = None) -> None:
        self.records: list[dict[str, Any]] = []
        self.most_waiting = 0
        self._waiting: list[Callable[[], None]] = []
        self._room, self._fail_at, self._crash_at = room, fail_at, crash_at

    def produce(self, topic: str, *, key: str, value: bytes, headers: Any, on_delivery: Any) -> None:
        if len(self._waiting) >= self._room:
            raise BufferError
        if len(self.records) == self._crash_at:
            raise Crash
        failed = len(self.records) == self._fail_at
        self.records.append({"topic": topic, "key": key, "value": value, "headers": dict(headers)})
        error = KafkaError(KafkaError._MSG_TIMED_OUT) if failed else None
        self._waiting.append(lambda: on_delivery(error, None))
        self.most_waiting = max(self.most_waiting, len(self._waiting))

    def poll(self, timeout: float) -> int:
        """Only who waits is told, so that the queue is seen full."""
        return self.flush(timeout) if timeout else 0

    def flush(self, timeout: float) -> int:
        acknowledged, self._waiting = self._waiting, []
        for tell in acknowledged:
            tell()
        return 0


class MemoryMessage:
    def __init__(self, key: str | None, value: bytes | None, error: KafkaError | None = None) -> None:
        self._key, self._value, self._error = key, value, error

    def key(self) -> bytes | None:
        return None if self._key is None else self._key.encode()

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return CONNECTION.results

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0


class MemoryReader:
    """One partition, and how far it is committed. `crash_at`: the process dies instead of reading that one."""

    def __init__(self, messages: list[MemoryMessage], committed: int = 0, at_once: int = 3) -> None:
        self._messages, self._at_once = messages, at_once
        self.position = self.committed = committed
        self.crash_at: int | None = None
        self.commit_errors: list[int] = []

    def consume(self, num_messages: int, timeout: float) -> Any:
        if self.crash_at is not None and self.position >= self.crash_at:
            raise Crash
        read = self._messages[self.position : self.position + min(num_messages, self._at_once)]
        self.position += len(read)
        return read

    def commit(self, *, asynchronous: bool) -> None:
        if self.commit_errors:
            raise KafkaException(KafkaError(self.commit_errors.pop(0)))
        self.committed = self.position


def result_of(job: Job, *, failed: bool = False, response_id: str = "") -> MemoryMessage:
    result = BatchResult(scope=Scope(tenant_id="acme"), id=response_id or f"resp_{job.custom_id}", custom_id=job.name)
    if failed:
        result.error = BatchError(code="deadline_exceeded", message="Too late.")
    else:
        body = {"choices": [{"message": {"content": f"to {job.custom_id}"}}]}
        result.response = BatchResponse(status_code=200, request_id=result.id, body=body)
    return MemoryMessage(job.name, result.encode())
