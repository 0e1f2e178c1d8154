"""Ids: made here, read here, nowhere else."""

import hashlib
import hmac
import os
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

_RESPONSE_ID = re.compile(r"resp_([a-z0-9]+)-([0-9]{1,5})_([0-9a-f]{32})")
_CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{32}")
_NAMESPACE = uuid.UUID("7c1f7d9e-6a52-5b0e-9d0c-2f4b8f1d5a11")
_KEY_LABEL = b"sluice-response-id-v1"
_DERIVED_PARTITIONS = 8
_JOBS = "intake.batch"
_MAC_DIGITS = 10
"""Of the 32: 40 bits, so that one guess in a million million is right, and each guess costs a request."""


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
    """What an id says, whoever made it up: `ResponseIds.prove` tells. Raises ValueError for what has another form."""
    match = _RESPONSE_ID.fullmatch(text)
    if match is None:
        raise ValueError("not a response id")
    return ResponseId(match[1], int(match[2]), match[3])


class ResponseIds:
    """Makes the response ids of a region, and proves that an id was made by somebody who has one of its secrets.

    The last ten digits are a MAC over all the rest. The first of `secrets` mints ids, each of them proves. A derived id
    must not change when those rotate: `deriving` serves it alike, if there are any. Ids without a MAC, as the
    release before made them, are taken for proved until `without_mac_until_ms`.
    """

    def __init__(
        self, region: str, secrets: Sequence[bytes], *, deriving: Sequence[bytes] = (), without_mac_until_ms: int = 0
    ) -> None:
        if not secrets:
            raise ValueError("response ids need a secret")
        self._region = region
        self._minting = [hmac.digest(secret, _KEY_LABEL, hashlib.sha256) for secret in secrets]
        self._deriving = [hmac.digest(secret, _KEY_LABEL, hashlib.sha256) for secret in deriving or secrets]
        self._without_mac_until_ms = without_mac_until_ms
        self._count = int.from_bytes(os.urandom(2), "big")

    def mint(self, partition: int) -> str:
        """A new id, ordered by time. One object makes 4,096 different ones a millisecond, besides chance."""
        self._count = (self._count + 1) & 0xFFF
        random_bytes = ((self._count << 62) | int.from_bytes(os.urandom(8), "big") >> 2).to_bytes(10, "big")
        return self._sealed(self._minting[0], partition, uuid7(time.time_ns() // 1_000_000, random_bytes).hex)

    def derive(self, partitions: int, tenant_id: str, source: str, key: str, *, at_ms: int) -> str:
        """The same id for the same tenant, source (an intake topic, an idempotency scope) and key.

        `at_ms` is when it was asked for, as the log tells it: while ids without a MAC are accepted, the release before
        derives some, and what both are given must have one id.
        """
        unique = uuid.uuid5(_NAMESPACE, f"{tenant_id}\0{source}\0{key}")
        if at_ms < self._without_mac_until_ms:
            return str(ResponseId(self._region, unique.int % partitions, unique.hex))
        return self._sealed(self._deriving[0], _derived_partition(unique.int, partitions), unique.hex)

    def of_job(self, partitions: int, tenant_id: str, custom_id: str, *, at_ms: int) -> str:
        """What a producer's job is called here, by its own name; `at_ms` as in `derive`.

        A secret goes into it, so nobody else can tell it: who knows the `custom_id` asks by that.
        """
        return self.derive(partitions, tenant_id, _JOBS, custom_id, at_ms=at_ms)

    def prove(self, text: str, *, now_ms: int) -> ResponseId:
        """Raises ValueError for what nobody with a secret of this region made. Reads nothing; takes microseconds."""
        claimed = parse_response_id(text)
        if claimed.region != self._region or str(claimed) != text:
            raise ValueError("not an id of this region")
        mac = claimed.unique[-_MAC_DIGITS:]
        keys = self._deriving if claimed.minted_at_ms is None else self._minting
        proved = [hmac.compare_digest(mac, self._mac(key, claimed.partition, claimed.unique)) for key in keys]
        if not any(proved) and now_ms >= self._without_mac_until_ms:
            raise ValueError("an id that nobody was given")
        return claimed

    def _sealed(self, key: bytes, partition: int, unique: str) -> str:
        mac = self._mac(key, partition, unique)
        return str(ResponseId(self._region, partition, unique[:-_MAC_DIGITS] + mac))

    def _mac(self, key: bytes, partition: int, unique: str) -> str:
        claim = f"{self._region}-{partition}_{unique[:-_MAC_DIGITS]}"
        return hmac.digest(key, claim.encode(), hashlib.sha256).hex()[:_MAC_DIGITS]


def _derived_partition(number: int, partitions: int) -> int:
    """One of a few that lie apart, whoever shares them out: jobs in all of them would make many small records."""
    spread = min(partitions, _DERIVED_PARTITIONS)
    place = number % spread
    return place * partitions // spread + place % (partitions // spread)


def uuid7(unix_ms: int, random_bytes: bytes) -> uuid.UUID:
    """RFC 9562 version 7 from a clock reading and 10 random bytes."""
    if len(random_bytes) != 10:
        raise ValueError("uuid7 needs 10 random bytes")
    tail = int.from_bytes(random_bytes, "big")
    rand_a, rand_b = (tail >> 62) & 0xFFF, tail & ((1 << 62) - 1)
    return uuid.UUID(int=(unix_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)


def mint_attempt_id() -> str:
    return f"att_{uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex}"


def mint_conversation_id() -> str:
    """Later ones are greater, but for those of one millisecond."""
    return f"conv_{uuid7(time.time_ns() // 1_000_000, os.urandom(10)).hex}"


def is_conversation_id(text: str) -> bool:
    return _CONVERSATION_ID.fullmatch(text) is not None


def mint_request_id() -> str:
    """For `x-request-id` where nothing was accepted: there the response's id stands."""
    return f"req_{uuid.uuid4().hex}"


def stable_partition(key: str, partitions: int) -> int:
    """A partition that every process derives alike."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % partitions
