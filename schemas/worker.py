"""Records on `workers` (compacted, keyed by worker id): what routers know of workers."""

from operator import not_
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.base import Identifier, Milliseconds, Record, Scope
from schemas.generated import QueueAhead
from schemas.request import Lane

MAX_TENANTS = 64
MAX_MOVED = 256

OfTenants = Annotated[dict[Identifier, Annotated[int, Field(ge=0)]], Field(max_length=MAX_TENANTS)]
"""Of the tenants that have most."""
OfTenantsByLane = dict[Lane, OfTenants]


class LaneQueue(BaseModel):
    """What waits of one lane in front of the batch of a worker's engine, and what has left there since it counts: for
    the batch, or because it ended. Requests; `left_tokens` are theirs as they counted in `queued_tokens`.

    Of `first_tokens`, since the same time, those were late that came later than the lane's target
    (`brownout.LANE.first_token_ms`). Of what has left, `spilled` went to other workers of the pool, unstarted.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    waiting: int = Field(default=0, ge=0)
    left: int = Field(default=0, ge=0)
    left_tokens: int = Field(default=0, ge=0)
    spilled: int = Field(default=0, ge=0, exclude_if=not_)
    spilled_tokens: int = Field(default=0, ge=0, exclude_if=not_)
    oldest_ms: int = Field(default=0, ge=0, exclude_if=not_, description="What of this has waited longest.")
    first_tokens: int = Field(default=0, ge=0, exclude_if=not_)
    late_first_tokens: int = Field(default=0, ge=0, exclude_if=not_)


class EngineFailing(BaseModel):
    """Its engine fails request after request. Until `until_ms` it is sent nothing, and then one request at a time.

    It ends with the first heartbeat that lacks this.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    until_ms: Milliseconds
    failed: int = Field(ge=0, description="Of its last `attempts`, before they had a token.")
    attempts: int = Field(ge=0)


class WorkerState(Record):
    """One worker's heartbeat. A router takes a worker as dead once `beat_at_ms + lease_ms` has passed."""

    type: Literal["worker"] = "worker"
    scope: Scope = Scope(tenant_id="sluice")
    worker_id: Identifier
    pool: Identifier
    model: Identifier
    engine: Literal["vllm", "simulated"]
    state: Literal["starting", "ready", "draining", "failed"]
    beat_at_ms: Milliseconds
    lease_ms: int = Field(gt=0)
    lane_partitions: dict[Lane, list[int]] = Field(default_factory=dict, description="What it consumes now.")
    held_up: dict[Lane, list[int]] = Field(
        default_factory=dict, description="What is assigned to it, and is to be sent nothing now."
    )
    home_partitions: list[int] = Field(default_factory=list, description="Partitions of `generated` it writes.")
    running: int = Field(default=0, ge=0, description="Answers in the engine's batch.")
    waiting: int = Field(default=0, ge=0, description="Answers that wait, in front of the engine or in it.")
    queued_tokens: int = Field(default=0, ge=0, description="Prompts plus bounded output of what waits, about.")
    queued_of: OfTenants = Field(
        default_factory=dict, exclude_if=not_, description="How many of these tokens are whose."
    )
    waiting_of: OfTenants = Field(
        default_factory=dict, exclude_if=not_, description="Whose the answers are that wait in front of the engine."
    )
    queues: dict[Lane, LaneQueue] = Field(
        default_factory=dict, exclude_if=not_, description="Of every lane; none where it does not say."
    )
    moved: dict[Identifier, QueueAhead] = Field(
        default_factory=dict, max_length=MAX_MOVED, exclude_if=not_,
        description="Of responses that it has just given to another worker: where they wait now.",
    )  # fmt: skip
    counts_since_ms: Milliseconds = Field(default=0, exclude_if=not_, description="What has left its `queues`.")
    given_of: OfTenantsByLane = Field(
        default_factory=dict,
        exclude_if=not_,
        description="What has left its engine since then, of whom, by weight: prompts, and twice what was generated.",
    )
    ahead_of: OfTenantsByLane = Field(
        default_factory=dict, exclude_if=not_, description="Whose turn comes later in a lane, and by how much of that."
    )
    max_running: int = Field(default=0, ge=0)
    kv_blocks_used: int = Field(default=0, ge=0)
    kv_blocks_total: int = Field(default=0, ge=0)
    prompt_tokens: int = Field(
        default=0, ge=0, exclude_if=not_, description="Of prompts whose answers began within the last minute, about."
    )
    cached_tokens: int = Field(
        default=0, ge=0, exclude_if=not_, description="Of these, what was in the engine's prefix cache."
    )
    oldest_waiting_ms: int = Field(default=0, ge=0)
    tokens_per_second: float = Field(default=0, ge=0)
    failing: EngineFailing | None = Field(default=None, exclude_if=not_)
    accepts_seed: bool = Field(default=True, description="vLLM on CPU dies of a seed that is left to it.")

    def is_failing(self, now_ms: int) -> bool:
        """Whether nobody is to send it anything now."""
        return self.failing is not None and now_ms < self.failing.until_ms

    def is_live(self, now_ms: int) -> bool:
        """Whether its lease still runs."""
        return self.beat_at_ms + self.lease_ms > now_ms
