"""Who wrote a record: an HMAC of the deployment on `requests`, an Ed25519 signature of the producer on `intake.batch`.

Signed bytes are length-prefixed fields, so no two different lists of fields give the same bytes.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from schemas.batch import CUSTOM_ID_HEADER, EXPIRES_HEADER, KEY_ID_HEADER, SIGNATURE_HEADER, TENANT_HEADER
from streams.log.port import Headers

GATEWAY_MAC_HEADER = "sluice-gateway-mac"


class Untrusted(Exception):
    """The record does not come from whom it claims; the message never holds its content."""


def framed(*fields: bytes) -> bytes:
    """What is signed: each field behind its length."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def sign_request(secret: bytes, topic: str, value: bytes) -> Headers:
    """Headers for a record on `requests` (HMAC-SHA-256, RFC 2104)."""
    mac = hmac.digest(secret, framed(b"sluice-request-v1", topic.encode(), value), hashlib.sha256)
    return [(GATEWAY_MAC_HEADER, mac)]


def verify_request(secrets: Sequence[bytes], topic: str, headers: Mapping[str, bytes], value: bytes) -> None:
    """Raises Untrusted unless it was signed with one of these. Takes the same time wherever the codes differ."""
    found = headers.get(GATEWAY_MAC_HEADER, b"")
    codes = [code for secret in secrets for _, code in sign_request(secret, topic, value)]
    if not any([hmac.compare_digest(code, found) for code in codes]):  # noqa: C419 - all of them, every time
        raise Untrusted("the gateway's authentication code is missing or wrong")


def job_bytes(topic: str, tenant_id: str, key_id: str, custom_id: str, expires_ms: int, value: bytes) -> bytes:
    """What a producer signs; `streams.job_vectors` publishes some of it."""
    return framed(
        b"sluice-job-v1", topic.encode(), tenant_id.encode(), key_id.encode(), custom_id.encode(),
        str(expires_ms).encode(), value,
    )  # fmt: skip


def sign_job(
    key: Ed25519PrivateKey, *, topic: str, tenant_id: str, key_id: str, custom_id: str, expires_ms: int, value: bytes
) -> Headers:
    """Headers for a record on `intake.batch` (Ed25519, RFC 8032). `expires_ms` is Unix time."""
    signature = key.sign(job_bytes(topic, tenant_id, key_id, custom_id, expires_ms, value))
    return [
        (TENANT_HEADER, tenant_id.encode()),
        (KEY_ID_HEADER, key_id.encode()),
        (CUSTOM_ID_HEADER, custom_id.encode()),
        (EXPIRES_HEADER, str(expires_ms).encode()),
        (SIGNATURE_HEADER, base64.b64encode(signature)),
    ]


def verify_job(
    public_key_base64: str,
    *,
    topic: str,
    tenant_id: str,
    key_id: str,
    custom_id: str,
    expires_ms: int,
    value: bytes,
    signature_base64: bytes,
) -> None:
    """Raises Untrusted. Says nothing about expiry: compare `expires_ms` with the broker's append time."""
    try:
        public_key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key_base64, validate=True))
        signature = base64.b64decode(signature_base64, validate=True)
        public_key.verify(signature, job_bytes(topic, tenant_id, key_id, custom_id, expires_ms, value))
    except (InvalidSignature, ValueError, binascii.Error):
        raise Untrusted("the job's signature is wrong") from None
