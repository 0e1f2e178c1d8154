"""What each lane is entitled to: one table, for who routes, who reads ahead and who gives slots out."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.request import LANES, Lane

MAX_FLOORS = 0.8
"""Of all lanes together: something has to be left to strict order."""

_Share = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="How much of the bounds of a queue, and of what is read ahead, it and those below may fill.",
    ),
]
_Floor = Annotated[
    float,
    Field(ge=0, le=0.5, description="Of a worker's `max_running`: while it holds less, it goes before lanes above it."),
]
_Patience = Annotated[
    int,
    Field(ge=0, description="With nothing in the engine, and nothing begun for so long, it goes first once. 0: never."),
]


class LanePolicy(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_share: _Share
    floor: _Floor
    starves_after_ms: _Patience
    waits_for_first_tokens: bool = Field(
        description="Whether somebody does: then small tenants of it may use what workers keep free (`headroom`)."
    )


class _Interactive(LanePolicy):
    queue_share: _Share = 1.0
    floor: _Floor = 0.0
    starves_after_ms: _Patience = 0
    waits_for_first_tokens: bool = True


class _Standard(LanePolicy):
    queue_share: _Share = 0.8
    floor: _Floor = 0.1
    starves_after_ms: _Patience = 5_000
    waits_for_first_tokens: bool = True


class _Batch(LanePolicy):
    queue_share: _Share = 0.5
    floor: _Floor = 0.1
    starves_after_ms: _Patience = 60_000
    waits_for_first_tokens: bool = False


class LanePolicies(BaseModel):
    """By lane. Lanes are strictly ordered above their floors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    interactive: _Interactive = _Interactive()
    standard: _Standard = _Standard()
    batch: _Batch = _Batch()

    def of(self, lane: Lane) -> LanePolicy:
        policy: LanePolicy = getattr(self, lane.value)
        return policy

    @model_validator(mode="after")
    def _keep_the_order(self) -> Self:
        shares = [self.of(lane).queue_share for lane in LANES]
        if shares != sorted(shares, reverse=True):
            raise ValueError("queue_share: a lane has more than one above it")
        if (floors := sum(self.of(lane).floor for lane in LANES)) > MAX_FLOORS:
            raise ValueError(f"floor: {floors:.2f} of all lanes together, more than {MAX_FLOORS}")
        return self


LANE_POLICIES = LanePolicies()
"""Unless an operator says otherwise."""
