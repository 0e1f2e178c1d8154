"""What a producer must know to write jobs and to read their results: brokers, topics, tenant, key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pydantic import BaseModel, ConfigDict, ValidationError

Kafka = dict[str, str | int | float | bool]
"""Settings of librdkafka."""


class ConnectionFailed(Exception):
    """What is missing or wrong, in one line."""


class _Topics(BaseModel):
    model_config = ConfigDict(extra="ignore")

    intake: str
    results: str


class _Producer(BaseModel):
    model_config = ConfigDict(extra="ignore")

    key_id: str
    key_file: Path
    topics: _Topics
    group_prefix: str


class _Told(BaseModel):
    """As `sluice status --json` tells it."""

    model_config = ConfigDict(extra="ignore")

    kafka: str
    tenant: str
    producer: _Producer


@dataclass(frozen=True, slots=True)
class Connection:
    kafka: Kafka = field(repr=False)
    tenant: str
    key_id: str
    key: Ed25519PrivateKey = field(repr=False)
    intake: str
    results: str
    group_prefix: str


def connection(told: Mapping[str, Any], kafka: Kafka, key_file: Path | None = None) -> Connection:
    """Of what `sluice status --json` prints; `kafka` is stronger. Raises ConnectionFailed."""
    try:
        known = _Told.model_validate(told)
    except ValidationError as error:
        wrong = error.errors(include_input=False)[0]
        name = ".".join(str(part) for part in wrong["loc"])
        raise ConnectionFailed(f"what is told of the producer lacks {name}: {wrong['msg']}") from None
    producer = known.producer
    return Connection(
        kafka={"bootstrap.servers": known.kafka, **kafka},
        tenant=known.tenant,
        key_id=producer.key_id,
        key=_private_key(key_file or producer.key_file),
        intake=producer.topics.intake,
        results=producer.topics.results,
        group_prefix=producer.group_prefix,
    )


def properties(path: Path | None) -> Kafka:
    """What stands in a file of `name=value` lines."""
    lines = [] if path is None else path.read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _private_key(file: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionFailed(f"the producer's key cannot be read from {file}: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConnectionFailed(f"{file} holds no Ed25519 key")
    return key
