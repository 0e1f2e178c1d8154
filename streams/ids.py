"""Ids: minted here, read here, nowhere else."""

import hashlib
import os
import re
import time
import uuid
from dataclasses import dataclass

_RESPONSE_ID = re.compile(r"resp_([a-z0-9]+)-([0-9]{1,5})_([0-9a-f]{32})")
_NAMESPACE = uuid.UUID("7c1f7d9e-6a52-5b0e-9d0c-2f4b8f1d5a11")


@dataclass(frozen=True, slots=True)
class ResponseId:
    """`resp_<region>-<reply partition>_<32 hex digits>`: names where its answer appears."""

    region: str
    partition: int
    unique: str

    @property
    def minted_at_ms(self) -> int | None:
        """Unix time of a UUID version 7; None for an id that was derived."""
        return int(self.unique[:12], 16) if self.unique[12] == "7" else None

    def __str__(self) -> str:
        return f"resp_{self.region}-{self.partition}_{self.unique}"


def is_response_id(text: str) -> bool:
    return _RESPONSE_ID.fullmatch(text) is not None


def parse_response_id(text: str) -> ResponseId:
    """Raises ValueError for anything that this module did not mint."""
    match = _RESPONSE_ID.fullmatch(text)
    if match is None:
        raise ValueError("not a response id")
    return ResponseId(match[1], int(match[2]), match[3])


def uuid7(unix_ms: int, random_bytes: bytes) -> uuid.UUID:
    """RFC 9562 version 7 from a clock reading and 10 random bytes."""
    if len(random_bytes) != 10:
        raise ValueError("uuid7 needs 10 random bytes")
    tail = int.from_bytes(random_bytes, "big")
    rand_a, rand_b = (tail >> 62) & 0xFFF, tail & ((1 << 62) - 1)
    return uuid.UUID(int=(unix_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)


def mint_response_id(region: str, partition: int) -> str:
    """A new id, ordered by time."""
    return str(ResponseId(region, partition, uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex))


def derive_response_id(region: str, partitions: int, tenant_id: str, source: str, key: str) -> str:
    """The same id for the same tenant, source (an intake topic, an idempotency scope) and key."""
    unique = uuid.uuid5(_NAMESPACE, f"{tenant_id}\0{source}\0{key}")
    return str(ResponseId(region, unique.int % partitions, unique.hex))


def mint_attempt_id() -> str:
    return f"att_{uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex}"


def stable_partition(key: str, partitions: int) -> int:
    """A partition that every process derives alike."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % partitions
