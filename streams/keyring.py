"""Which secret serves which purpose: one of its own where there is one, else one that is made of the deployment's.

An operator rotates a secret by naming the new one, and the old one as `previous`: what was made with the old one still
counts, until the operator takes it away.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


class Purpose(StrEnum):
    """Named as the field of `secrets` that sets it."""

    REQUEST_SIGNING = "request_signing"
    RESPONSE_IDS = "response_ids"
    DERIVED_IDS = "derived_ids"
    BILLING = "billing"
    END_USER_PSEUDONYMS = "end_user_pseudonyms"
    BROWSER_TOKENS = "browser_tokens"
    ALERT_WEBHOOKS = "alert_webhooks"


# The deployment's secret itself: the release before knows no other, and pseudonyms must not change.
_UNDERIVED = frozenset({Purpose.REQUEST_SIGNING, Purpose.END_USER_PSEUDONYMS})


@dataclass(frozen=True, slots=True)
class Keyring:
    """`current` makes what others check; any of `accepted` proves it. The current one is the first of them."""

    accepted: tuple[bytes, ...] = field(repr=False)

    @property
    def current(self) -> bytes:
        return self.accepted[0]

    def is_proved_by(self, shown: str) -> bool:
        """In a time that tells nothing of any of them."""
        found = shown.encode()
        return any([hmac.compare_digest(found, password) for password in self.accepted])  # noqa: C419 - all, always


def derived_keyring(purpose: Purpose, deployment_secrets: Sequence[str]) -> Keyring:
    """Of the deployment's secret, and of the one before it."""
    made = [_derived(secret, purpose) for secret in deployment_secrets]
    if purpose is Purpose.BILLING:
        made += deployment_secrets  # what a gateway of the release before sends
    return Keyring(tuple(text.encode() for text in made))


def _derived(deployment_secret: str, purpose: Purpose) -> str:
    """HKDF-SHA-256 (RFC 5869) under a label."""
    if purpose in _UNDERIVED:
        return deployment_secret
    label = f"sluice-{purpose}-v1".encode()
    return HKDF(SHA256(), length=32, salt=None, info=label).derive(deployment_secret.encode()).hex()
