import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from schemas.batch import SIGNATURE_HEADER
from streams.signing import Untrusted, sign_job, sign_request, verify_job, verify_request

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC_KEY = base64.b64encode(KEY.public_key().public_bytes_raw()).decode()
SIGNED = {
    "topic": "local.intake.batch",
    "tenant_id": "acme",
    "key_id": "producer-1",
    "custom_id": "job-1",
    "expires_ms": 1_790_000_000_000,
    "value": b'{"type":"job"}',
}


def _signature() -> bytes:
    return dict(sign_job(KEY, **SIGNED))[SIGNATURE_HEADER]  # type: ignore[arg-type]


def test_a_signed_job_is_trusted() -> None:
    verify_job(PUBLIC_KEY, **SIGNED, signature_base64=_signature())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "forged",
    [
        {"topic": "eu.intake.batch"},
        {"tenant_id": "rival"},
        {"key_id": "producer-2"},
        {"custom_id": "job-2"},
        {"expires_ms": 1_890_000_000_000},
        {"value": b'{"type":"job" }'},
        {"tenant_id": "acmep", "key_id": "roducer-1"},
    ],
    ids=str,
)
def test_every_signed_field_counts(forged: dict[str, object]) -> None:
    with pytest.raises(Untrusted):
        verify_job(PUBLIC_KEY, **(SIGNED | forged), signature_base64=_signature())  # type: ignore[arg-type]


@given(st.binary(max_size=100))
def test_garbage_is_no_signature(garbage: bytes) -> None:
    with pytest.raises(Untrusted):
        verify_job(PUBLIC_KEY, **SIGNED, signature_base64=garbage)  # type: ignore[arg-type]


def test_a_request_from_an_outsider_is_not_trusted() -> None:
    headers = dict(sign_request(b"secret", "local.requests", b"value"))
    verify_request([b"secret"], "local.requests", headers, b"value")
    for secret, topic, given_headers, value in [
        (b"guess", "local.requests", headers, b"value"),
        (b"secret", "eu.requests", headers, b"value"),
        (b"secret", "local.requests", headers, b"other"),
        (b"secret", "local.requests", {}, b"value"),
    ]:
        with pytest.raises(Untrusted):
            verify_request([secret], topic, given_headers, value)
