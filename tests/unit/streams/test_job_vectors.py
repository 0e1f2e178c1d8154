"""The published test vectors: they are what the code makes, and a program that has nothing of Sluice makes the same."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_private_key

from schemas.batch import SIGNATURE_HEADER
from streams.job_vectors import FILE, file_bytes
from streams.signing import Untrusted, verify_job

PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas" / FILE
VECTORS: dict[str, Any] = json.loads(PUBLISHED.read_bytes())
CASES: list[dict[str, Any]] = VECTORS["cases"]


def test_the_published_vectors_are_those_of_the_code() -> None:
    assert PUBLISHED.read_bytes() == file_bytes()


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_program_that_has_nothing_of_sluice_makes_the_same(case: dict[str, Any]) -> None:
    """As docs/producers.md tells it: bytes of the standard library, and any library's Ed25519."""
    value = base64.b64decode(case["value_base64"])
    assert value == case["value"].encode()
    texts = [VECTORS["label"], *(case[name] for name in VECTORS["signed_fields"][1:-1])]
    fields = [*(text.encode("utf-8") for text in texts), value]
    signed = b"".join(struct.pack(">I", len(field)) + field for field in fields)
    assert signed == base64.b64decode(case["signed_bytes_base64"])
    key = load_der_private_key(base64.b64decode(case["private_key_pkcs8_base64"]), password=None)
    assert isinstance(key, Ed25519PrivateKey)
    assert case["headers"] == {
        "sluice-tenant": case["tenant_id"],
        "sluice-key-id": case["key_id"],
        "sluice-custom-id": case["custom_id"],
        "sluice-expires-ms": case["expires_ms"],
        "sluice-signature": base64.b64encode(key.sign(signed)).decode("ascii"),
    }
    signature = base64.b64decode(case["headers"]["sluice-signature"])
    Ed25519PublicKey.from_public_bytes(base64.b64decode(case["public_key_base64"])).verify(signature, signed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_admission_trusts_a_vector_and_nothing_near_it(case: dict[str, Any]) -> None:
    told: dict[str, Any] = {
        **{name: case[name] for name in ("topic", "tenant_id", "key_id", "custom_id")},
        "expires_ms": int(case["expires_ms"]),
        "value": base64.b64decode(case["value_base64"]),
        "signature_base64": case["headers"][SIGNATURE_HEADER].encode(),
    }
    verify_job(case["public_key_base64"], **told)
    for near in ({"value": told["value"] + b" "}, {"custom_id": case["custom_id"][:-1]}, {"expires_ms": 1}):
        with pytest.raises(Untrusted):
            verify_job(case["public_key_base64"], **{**told, **near})


def test_the_vectors_have_what_programs_get_wrong() -> None:
    """Each of these has been a defect of somebody's: bytes for characters, JSON written anew, a key that rotated."""
    by_name = {case["name"]: case for case in CASES}
    assert len(by_name) == len(CASES)
    assert len({case["headers"][SIGNATURE_HEADER] for case in CASES}) == len(CASES)
    assert max(map(ord, by_name["beyond-the-basic-plane"]["value"])) > 0xFFFF
    assert r"a\/b" in by_name["escapes"]["value"]
    assert '"temperature":1.0' in by_name["numbers"]["value"]
    assert '"metadata":{}' in by_name["empty-metadata"]["value"]
    assert by_name["empty-value"]["value"] == ""
    assert by_name["next-key"]["public_key_base64"] != by_name["plain"]["public_key_base64"]
