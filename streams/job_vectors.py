"""Published test vectors of a producer's signature: `python -m streams.job_vectors docs/schemas` writes them.

They are for programs that have nothing of Sluice: each case says what goes in, which bytes are signed, and what comes
out. Ed25519 draws no random numbers, so the same code writes the same file.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from streams.signing import job_bytes, sign_job

FILE: Final = "job_signature_vectors.json"
_TOPIC: Final = "local.intake.batch"
_BODY: Final = '{"model":"default","messages":[{"role":"user","content":"Hi"}]'
_JOB: Final = f'{{"schema_version":1,"type":"job","body":{_BODY}}}}}'
_EXPIRES_MS: Final = 1_790_000_000_000


class _Case(NamedTuple):
    """`value` is what the record holds, byte for byte: nothing of it is read or written anew before it is signed."""

    name: str
    about: str
    value: str = _JOB
    custom_id: str = "job-1"
    tenant_id: str = "acme"
    key_id: str = "producer-1"
    topic: str = _TOPIC
    expires_ms: int = _EXPIRES_MS


_CASES: Final = (
    _Case("plain", "A job of ASCII alone."),
    _Case(
        "cancel", "What ends that job: another value under the same custom_id.",
        value='{"schema_version":1,"type":"job_cancel"}',
    ),
    _Case(
        "unicode", "Lengths are those of UTF-8, in bytes; no normalisation: é is two code points in the value.",
        value=_JOB.replace("Hi", "Cafe\u0301, 東京"), custom_id="Bücher-東京-1",
    ),
    _Case(
        "beyond-the-basic-plane", "Four bytes in UTF-8, two units in UTF-16.",
        value=_JOB.replace("Hi", "🦊👩\u200d🚀"), custom_id="🦊-1",
    ),
    _Case(
        "escapes", "An escaped slash, and characters written as \\u: they are signed as they are written.",
        value=_JOB.replace("Hi", r"a\/b \u00e9 \ud83e\udd8a"),
    ),
    _Case(
        "numbers", "1.0, 1e0 and 1 are one number and different bytes.",
        value=_JOB.replace(
            "]}", '],"temperature":1.0,"top_p":1e0,"presence_penalty":-0.0,"max_tokens":64,"seed":9007199254740993}'
        ),
    ),
    _Case(
        "blanks-and-order", "Blanks, the order of fields and the line's end belong to the value.",
        value=f'{{ "type" : "job",\n  "body":\t{_BODY}}}, "schema_version" : 1 }}\n',
    ),
    _Case("empty-metadata", "An empty object.", value=_JOB.replace("]}", '],"metadata":{}}')),
    _Case("empty-value", "No byte of value: its length is there all the same.", value=""),
    _Case("longest-custom-id", "200 characters.", custom_id="x" * 200),
    _Case(
        "borders", "The same characters in a row as in `plain`, and another signature.", tenant_id="acmep",
        key_id="roducer-1",
    ),
    _Case("next-key", "The tenant's next key: it signs alike, and is named by its id.", key_id="producer-2"),
    _Case("another-region", "The full name of the topic is signed.", topic="eu1.intake.batch"),
)  # fmt: skip


def vectors() -> dict[str, Any]:
    """What is published; the same for the same code."""
    return {
        "about": "Signatures of Sluice's batch producers, described in docs/producers.md. Made by"
        " `python -m streams.job_vectors docs/schemas`. The keys are for tests alone.",
        "label": "sluice-job-v1",
        "signed_fields": ["label", "topic", "tenant_id", "key_id", "custom_id", "expires_ms", "value"],
        "cases": [_vector(case) for case in _CASES],
    }


def _vector(case: _Case) -> dict[str, Any]:
    seed = hashlib.sha256(f"Sluice test key {case.key_id}".encode()).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    value = case.value.encode()
    signed: dict[str, Any] = {
        "topic": case.topic, "tenant_id": case.tenant_id, "key_id": case.key_id, "custom_id": case.custom_id,
        "expires_ms": case.expires_ms, "value": value,
    }  # fmt: skip
    return {
        "name": case.name,
        "about": case.about,
        "private_key_pkcs8_base64": base64.b64encode(
            key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        ).decode(),
        "public_key_base64": base64.b64encode(key.public_key().public_bytes_raw()).decode(),
        **signed,
        "expires_ms": str(case.expires_ms),
        "value": case.value,
        "value_base64": base64.b64encode(value).decode(),
        "signed_bytes_base64": base64.b64encode(job_bytes(**signed)).decode(),
        "headers": {name: held.decode() for name, held in sign_job(key, **signed)},
    }


def file_bytes() -> bytes:
    """The file as it is committed: ASCII, so that no editor changes a character."""
    return (json.dumps(vectors(), indent=2) + "\n").encode("ascii")


def main() -> None:
    """`python -m streams.job_vectors FOLDER`."""
    (Path(sys.argv[1]) / FILE).write_bytes(file_bytes())


if __name__ == "__main__":
    main()
