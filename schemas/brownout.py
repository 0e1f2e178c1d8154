"""How far a pool is degraded: records on `brownout` (compacted, keyed by pool), and what that takes from a response."""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import Identifier, Milliseconds, Record, Scope, TokenCount

MAX_LEVEL: Final = 3


class Brownout(BaseModel):
    """What a response was given less of, as its pool was degraded when it was admitted."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    level: int = Field(ge=1, le=MAX_LEVEL, description="Of its pool, by then.")
    max_tokens: TokenCount = Field(description="Each of its answers has so many at most, fewer than it might have had.")


class PoolLevel(Record):
    """The level at which a pool stands, for all who admit to it. Without one it stands at 0."""

    type: Literal["brownout"] = "brownout"
    scope: Scope = Scope(tenant_id="sluice")
    pool: Identifier
    level: int = Field(ge=0, le=MAX_LEVEL)
    since_ms: Milliseconds
    why: str = Field(default="", max_length=200, description="For people: what was measured when it changed.")
