"""Writing to topics as an outsider would, and reading what became of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.stacks import records_of
from deploy.cli.questions import query
from deploy.local.runner import Stack
from streams.log.kafka import KafkaConsumer
from streams.log.port import Headers, LogRecord
from streams.signing import sign_job
from tests.e2e.stacks import TIMEOUT_S, body
from tests.servers import until

LIFETIME_MS = 600_000


@dataclass(frozen=True)
class Place:
    """Where a record stands."""

    topic: str
    partition: int
    offset: int


def put(
    stack: Stack, topic: str, value: bytes | None, *, key: str | None = None, headers: Headers = (),
    partition: int | None = None, compression: str = "none",
) -> Place:  # fmt: skip
    """Writes one record, with no more authority than the broker demands; returns where it stands."""
    delivered: list[tuple[KafkaError | None, Message]] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        delivered.append((error, message))

    producer = Producer({"bootstrap.servers": stack.plan.settings.kafka.bootstrap, "compression.type": compression})
    chosen = -1 if partition is None else partition  # -1: by the key
    producer.produce(topic, value=value, key=key, partition=chosen, headers=list(headers), on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    [(error, message)] = delivered
    assert error is None, error
    where, offset = message.partition(), message.offset()
    assert where is not None
    assert offset is not None
    return Place(topic, where, offset)


def find(stack: Stack, topic: str, key: str) -> LogRecord:
    """The first record with this key, as it stands on the topic, once it is there."""
    consumer = KafkaConsumer(stack.plan.settings.kafka, None, "finder")
    found: list[LogRecord] = []

    def look() -> bool:
        found.extend(record for record in consumer.poll(1_000, 0.5) if record.key == key.encode())
        return bool(found)

    try:
        consumer.assign({place: consumer.watermarks(place)[0] for place in consumer.partitions(topic)})
        until(look, f"{key} is on {topic}", TIMEOUT_S)
    finally:
        consumer.close()
    return found[0]


def private_key(stack: Stack, tenant: str) -> Ed25519PrivateKey:
    key = load_pem_private_key(Path(stack.keys.producers[tenant].key_file).read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def job(text: str = "What is the capital of France?", *, version: int = 1, **fields: Any) -> bytes:
    """The value of a record on the intake topic."""
    fields.setdefault("max_tokens", 12)
    return json.dumps({"schema_version": version, "type": "job", "body": body(text, **fields)}).encode()


def signature(
    stack: Stack, custom_id: str, value: bytes, *, tenant: str = "demo", signer: str = "demo", topic: str = "",
    lifetime_ms: int = LIFETIME_MS,
) -> Headers:  # fmt: skip
    """The headers of a job that says it is `tenant`'s, signed with the key of `signer`."""
    return sign_job(
        private_key(stack, signer),
        topic=topic or stack.plan.settings.topics.intake_batch.name,
        tenant_id=tenant,
        key_id=stack.keys.producers[tenant].key_id,
        custom_id=custom_id,
        expires_ms=time_ns() // 1_000_000 + lifetime_ms,
        value=value,
    )


def submit(stack: Stack, custom_id: str, value: bytes, headers: Headers) -> Place:
    return put(stack, stack.plan.settings.topics.intake_batch.name, value, key=custom_id, headers=headers)


def read_topic(stack: Stack, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Every record of the topic from the first to the last one now: raw value and parsed."""
    values = (record.value for record in records_of(stack, topic, TIMEOUT_S))
    return [(value, json.loads(value)) for value in values if value is not None]


def results(stack: Stack, custom_id: str, tenant: str = "demo") -> list[dict[str, Any]]:
    """The different lines of a job on its tenant's results topic, so far."""
    lines = read_topic(stack, stack.plan.settings.topics.results(tenant).name)
    distinct = {value: line for value, line in lines if line["custom_id"] == custom_id}
    return list(distinct.values())


def _some(read: Callable[[], Sequence[dict[str, Any]]], what: str) -> Sequence[dict[str, Any]]:
    """What `read` gives once it gives something."""
    found: list[dict[str, Any]] = []

    def something() -> bool:
        found[:] = read()
        return bool(found)

    until(something, what, TIMEOUT_S, every_s=0.2)
    return found


def result(stack: Stack, custom_id: str, tenant: str = "demo") -> dict[str, Any]:
    """The one line of a job, once it is there."""
    [line] = _some(lambda: results(stack, custom_id, tenant), f"a result of {custom_id}")
    return line


def dead_letters(stack: Stack) -> list[dict[str, Any]]:
    return [letter for _, letter in read_topic(stack, stack.plan.settings.topics.dead_letters.name)]


def letters_of(stack: Stack, place: Place) -> list[dict[str, Any]]:
    """The dead letters of one record, so far."""
    where = (place.topic, place.partition, place.offset)
    return [each for each in dead_letters(stack) if (each["topic"], each["partition"], each["offset"]) == where]


def dead_letter(stack: Stack, place: Place, stage: str = "") -> dict[str, Any]:
    """The dead letter of a record (by a stage, where several read it), once it is there."""
    found = _some(
        lambda: [each for each in letters_of(stack, place) if stage in ("", each["stage"])],
        f"a dead letter of {place} by {stage or 'any stage'}",
    )
    return found[0]


def usage_rows(stack: Stack, sql_condition: str) -> list[Mapping[str, Any]]:
    """Rows of `usage_events`, as `sluice sql` shows them."""
    answer = query(stack.plan.settings, f"SELECT * FROM usage_events FINAL WHERE {sql_condition}")
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
