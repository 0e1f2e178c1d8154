"""How a receiver knows that a message is ours and new: as Standard Webhooks says (`webhook-id`, `-timestamp`,
`-signature`), so libraries of others check it. Pure.

Each receiver has a secret of its own, made of the deployment's, so none can sign for another.
"""

import base64
import hashlib
import hmac

import orjson

from schemas.alert import Alert
from streams.keyring import Keyring
from streams.signing import framed

OPERATOR = ""
"""In the place of a tenant: who runs the deployment."""


def receiver_secrets(keyring: Keyring, tenant_id: str) -> list[bytes]:
    """The current one first. Messages are signed with all of them, so a rotation loses none."""
    return [
        hmac.digest(secret, framed(b"sluice-webhook-v1", tenant_id.encode()), hashlib.sha256)
        for secret in keyring.accepted
    ]


def shown_secret(secret: bytes) -> str:
    """As receivers' libraries take it."""
    return f"whsec_{base64.b64encode(secret).decode()}"


def body_of(alert: Alert) -> bytes:
    """The same bytes for the same record."""
    data = alert.model_dump(mode="json", exclude={"type", "schema_version", "stage_ms"})
    return orjson.dumps({"type": f"{alert.kind}.{alert.state}", "timestamp_ms": alert.told_at_ms, "data": data})


def signed_headers(secrets: list[bytes], event_id: str, sent_at_s: int, body: bytes) -> dict[str, str]:
    """Over the id, the time and the body."""
    content = b".".join((event_id.encode(), str(sent_at_s).encode(), body))
    codes = (base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode() for secret in secrets)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(sent_at_s),
        "webhook-signature": " ".join(f"v1,{code}" for code in codes),
        "content-type": "application/json",
        "user-agent": "sluice-webhooks",
    }
