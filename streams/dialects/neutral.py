"""What every dialect makes of a body: the request in Sluice's own words, or why there is none.

Entrances (the gateway, intake) know a request only in this form; a dialect is the pure way there and back.
"""

import hashlib
import hmac

from pydantic import BaseModel, ConfigDict

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Message, OnDisconnect, Sampling, ServiceTier


class RequestError(Exception):
    """A request that is refused before anything is accepted. `message` and `param` are for the client."""

    def __init__(self, code: EndingCode, message: str = "", param: str | None = None) -> None:
        super().__init__(message or ENDINGS[code].message)
        self.code = code
        self.message = message or ENDINGS[code].message
        self.param = param


class ChatRequest(BaseModel):
    """What a body asks for, in Sluice's words."""

    model_config = ConfigDict(frozen=True)

    model: str
    messages: list[Message]
    sampling: Sampling
    stream: bool
    include_usage: bool
    usage_so_far: bool
    user: str | None
    service_tier: ServiceTier
    on_disconnect: OnDisconnect


def end_user_pseudonym(secret: bytes, tenant_id: str, user: str | None) -> str:
    """Stable per deployment, tenant and user; tells nothing about the user without the secret. Empty for none."""
    if not user:
        return ""
    return hmac.digest(secret, f"end-user\0{tenant_id}\0{user}".encode(), hashlib.sha256).hex()[:32]
