"""What every dialect makes of a body: the request in Sluice's own words, or why there is none.

Entrances (the gateway, intake) know a request only in this form; a dialect is the pure way there and back.
"""

import hashlib
import hmac
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Endpoint, Message, OnDisconnect, Prompt, Sampling, ServiceTier, Tool, ToolChoice


class RequestError(Exception):
    """A request that is refused before anything is accepted. `message` and `param` are for the client."""

    def __init__(self, code: EndingCode, message: str = "", param: str | None = None) -> None:
        super().__init__(message or ENDINGS[code].message)
        self.code = code
        self.message = message or ENDINGS[code].message
        self.param = param


class TurnFields(NamedTuple):
    """What a dialect calls a turn as a whole, an answer's calls in it, and of a result the id of its call."""

    turn: str
    calls: str
    result: str


class OwnTurn(BaseModel):
    """What one request says itself, of a conversation that it may go on with. `paths`: where its client wrote each."""

    model_config = ConfigDict(frozen=True)

    messages: list[Message]
    paths: list[str]
    fields: TurnFields


class NeutralRequest(BaseModel):
    """What a body asks for, in Sluice's words. A dialect derives its own, with how the answer is to be told.

    It has messages, or a raw `prompt` that is gone on with as it is, or `inputs` that are embedded.
    """

    model_config = ConfigDict(frozen=True)

    endpoint: Endpoint = "chat.completions"
    model: str
    messages: list[Message]
    prompt: Prompt | None = None
    inputs: list[Prompt] = []
    dimensions: int | None = None
    sampling: Sampling
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    choices: int = 1
    stream: bool = False
    user: str | None = None
    service_tier: ServiceTier = "auto"
    cache_key: str = Field(default="", description="As in `request`.")
    on_disconnect: OnDisconnect = "cancel"
    fallback: bool = True
    background: bool = Field(default=False, description="It is not waited for: its client comes for it.")
    echo: str = Field(default="", description="As in `request`.")
    store: bool = Field(default=False, description="Kept beyond replay, for who goes on with it by its id.")
    turn: OwnTurn | None = Field(default=None, description="The last of `messages`; of what may be stored or go on.")
    previous_response_id: str | None = None
    conversation_id: str | None = Field(default=None, description="It is a turn of that, and goes on with its newest.")
    turns_begun: int | None = Field(default=None, description="In that, when its newest was found; see `NewTurn`.")
    begins: bool = Field(default=False, description="It goes on with nothing that its conversation has said.")
    names: dict[str, str] = Field(default={}, description="Of its own for fields that have several in its dialect.")


def end_user_pseudonym(secret: bytes, tenant_id: str, user: str | None) -> str:
    """Stable per deployment, tenant and user; tells nothing about the user without the secret. Empty for none."""
    if not user:
        return ""
    return hmac.digest(secret, f"end-user\0{tenant_id}\0{user}".encode(), hashlib.sha256).hex()[:32]
