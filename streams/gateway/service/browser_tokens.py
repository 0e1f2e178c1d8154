"""What a key lends to a page for some minutes: a token that names its tenant, key, project, expiry, scopes and user.

It is `st-sluice-<claims>.<code>`: JSON, and an HMAC-SHA-256 over it, the region and the digest of its key; both
base64url. So it needs no store, fits into a header and a subprotocol, and is that key's alone, whichever one has its id
later. Pure.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from streams.signing import framed

_PREFIX = "st-sluice-"
_TOKEN = re.compile(rf"{_PREFIX}([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{{43}})", re.ASCII)
_LABEL = b"sluice-browser-token-v1"


class Claims(BaseModel):
    """What a token says of itself. `expires_at_s`: Unix time from which on it is none."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    tenant_id: str
    key_id: str
    project_id: str
    expires_at_s: int
    scopes: list[str]
    end_user: str = ""
    """The pseudonym of whom it was minted for; empty: of nobody in particular."""


def mint(secret: bytes, region: str, key_sha256: str, claims: Claims) -> str:
    text = _base64(claims.model_dump_json().encode())
    return f"{_PREFIX}{text}.{_code(secret, region, key_sha256, text)}"


def looks_like_token(shown: str) -> bool:
    """No API key that is made here does."""
    return shown.startswith(_PREFIX)


def claimed(token: str) -> Claims | None:
    """What it claims, whoever made it up: `is_proved` tells. None for what has another form."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    try:
        return Claims.model_validate_json(base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)))
    except (binascii.Error, ValidationError):
        return None


def is_proved(secrets: Sequence[bytes], region: str, key_sha256: str, token: str) -> bool:
    """Whether it was minted with one of the secrets from the key of that digest, in that region.

    Of what `claimed` could read. Takes the same time wherever the codes differ.
    """
    text, _, code = token.removeprefix(_PREFIX).rpartition(".")
    codes = [_code(secret, region, key_sha256, text) for secret in secrets]
    return any([hmac.compare_digest(code, right) for right in codes])  # noqa: C419 - all of them, every time


def _code(secret: bytes, region: str, key_sha256: str, text: str) -> str:
    signed = framed(_LABEL, region.encode(), key_sha256.encode(), text.encode())
    return _base64(hmac.digest(secret, signed, hashlib.sha256))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
