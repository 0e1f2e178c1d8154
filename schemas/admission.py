"""What travels between the admission stages; on topics only where the stages are split."""

from operator import not_
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import Identifier, ScopedRecord, TokenCount, is_absent
from schemas.brownout import Brownout
from schemas.endings import MAX_MESSAGE_CHARS, EndingCode
from schemas.fallback import Fallback, FallbackReason
from schemas.generated import MAX_MOVES, Opened, QueueAhead
from schemas.request import Lane, Request
from schemas.verdict import Verdict


class StandIn(BaseModel):
    """The smaller model that answers, with how long its answers may be, and why."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: Identifier
    max_tokens: TokenCount
    reason: FallbackReason


class Decision(BaseModel):
    """Where an admitted response goes, for life. Stored with its reservation, set once."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pool: Identifier
    lane: Lane
    lane_partition: int = Field(ge=0)
    generated_partition: int = Field(ge=0)
    worker_id: str | None = Field(default=None, description="Whom the router had in mind; None when no worker lived.")
    brownout: Brownout | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    lowered_from: Lane | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    stand_in: StandIn | None = Field(default=None, description="None: the model that was asked for answers.")
    further: list[Identifier] = Field(
        default_factory=list, max_length=MAX_MOVES, exclude_if=not_, description="As in `opened`."
    )

    @property
    def lane_asked(self) -> Lane:
        """Whichever it waits in, it is reserved for as what it is."""
        return self.lowered_from or self.lane


class Failed(BaseModel):
    """The ending that moved a response: how it ends where no further place takes it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    code: EndingCode
    message: str = Field(default="", max_length=MAX_MESSAGE_CHARS)
    param: str | None = Field(default=None, max_length=200)


class Move(ScopedRecord):
    """Post-safety asks admission to put a response into the lane of another pool: nothing was generated where it was.

    It follows from the log alone, so the same one may come again; `move` counts them.
    """

    type: Literal["move"] = "move"
    move: int = Field(ge=1)
    generated_partition: int = Field(ge=0)
    begins_at: int = Field(ge=0, description="Behind the record there that moved it; read-backs start here.")
    tried: list[Identifier] = Field(max_length=MAX_MOVES + 1, description="Pools that have had it.")
    attempts: int = Field(
        default=0, ge=0, exclude_if=not_,
        description="How many of those so far were lost with their worker or its engine, for all that is known.",
    )  # fmt: skip
    failed: Failed
    opened: Opened


class Admission(ScopedRecord):
    """A validated request and what later stages have added to it."""

    type: Literal["admission"] = "admission"
    request: Request
    model: Identifier = Field(description="Canonical name of the model that answers.")
    pool: Identifier
    lane: Lane
    prompt_token_ids: list[int] = Field(min_length=1)
    input_ends: list[int] = Field(default_factory=list, exclude_if=not_, description="As in `admitted`.")
    cache_id: str = Field(
        default="", max_length=64, exclude_if=not_, description="Of its tenant's alone: the same for what begins alike."
    )
    max_tokens: TokenCount = Field(
        description="Output bound after the context window, tenant limits and the level of its pool."
    )
    brownout: Brownout | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    reserved_tokens: TokenCount = Field(default=0, description="What quota holds; 0 before the quota stage.")
    limits: dict[str, int] = Field(default_factory=dict, exclude_if=not_, description="As in `opened`.")
    verdict: Verdict | None = Field(default=None, description="Pre-safety's, once it has decided.")
    decision: Decision | None = Field(default=None, description="Set by an earlier delivery, or by routing.")
    queued: QueueAhead | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    fallback: Fallback | None = Field(default=None, exclude_if=is_absent, description="As in `opened`.")
    replayed: bool = Field(default=False, description="The decision is one that stood already.")
