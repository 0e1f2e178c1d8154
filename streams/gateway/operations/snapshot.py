"""What `/api/operations` answers. Names and numbers alone: nothing that a client asked or was answered is in it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.request import Lane
from streams.gateway.service.circuit import Dependency

Rate = Annotated[float | None, Field(description="Per second; null until two looks were taken.")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class TopicFlow(_Part):
    """`topic` is named without its region."""

    topic: str
    records_per_s: Rate


class GroupLag(_Part):
    """`group` is the process's: `gateway`, `admission`, `worker`, `post-safety`, `settlement`, `billing`."""

    group: str
    topic: str
    lag: int = Field(description="Records not yet committed.")


class LaneFlow(_Part):
    pool: str
    lane: Lane
    records_per_s: Rate
    open: int = Field(description="Requests whose end is not committed: they wait, or are being answered.")
    waiting: int | None = Field(description="Of these, in front of engines; null where no worker says.")
    left_per_s: float | None = Field(
        description="So many a second have left that queue of late, while something waited; null: not measured."
    )
    wait_ms: int | None = Field(description="That one that comes now would wait, about; null: not measured.")


class PoolNow(_Part):
    pool: str
    level: int = Field(description="How far it is degraded, from 0 to 3.")
    since_ms: int | None = Field(description="When it came to be so; null: it never was otherwise.")
    why: str = Field(description="What was measured then.")


class WorkerNow(_Part):
    """What its last heartbeat says."""

    worker_id: str
    pool: str
    model: str
    engine: str
    state: Literal["starting", "ready", "draining", "failed", "gone"] = Field(
        description="`gone`: its lease has passed, and no router sends it anything any more."
    )
    running: int
    max_running: int
    waiting: int
    oldest_waiting_ms: int
    kv_blocks_used: int
    kv_blocks_total: int
    prompt_tokens: int = Field(description="Of prompts whose answers began within the last minute, about.")
    cached_tokens: int = Field(description="Of these, what was in the engine's prefix cache.")
    tokens_per_second: float
    beat_ago_ms: int
    failing: str = Field(
        description="Of its last requests, how many its engine failed: it is tried by one at a time. Empty: it works."
    )


class GatewayNow(_Part):
    """This gateway alone: others of the region say theirs."""

    gateway_id: str
    open_responses: int
    viewers: int
    delivered_tokens_per_s: Rate
    open_circuits: list[Dependency] = Field(
        description="What has answered nobody here lately: who would have to ask it is refused at once, or served"
        " without it, and one at a time tries."
    )


class FirstTokenTimes(_Part):
    """From acceptance to the first token handed to a socket of this gateway, of the last `window_s` seconds."""

    window_s: int
    answers: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class EndingCount(_Part):
    code: str
    reason: str
    count: int
    is_error: bool


class RecentEnding(_Part):
    at_ms: int
    code: str
    reason: str
    model: str = Field(description="Empty where it is none of this deployment.")
    completion_tokens: int
    is_error: bool


class OperationsNow(_Part):
    """How the dataflow of a region stands, as one of its gateways sees it."""

    object: Literal["operations"] = "operations"
    at_ms: int
    region: str
    log_state: Literal["looking", "seen", "unavailable"] = Field(
        description="`looking`: ask again in two seconds. `unavailable`: Kafka does not say; this is what it said last."
    )
    looked_ago_ms: int | None
    topics: list[TopicFlow]
    groups: list[GroupLag]
    lanes: list[LaneFlow]
    pools: list[PoolNow]
    workers: list[WorkerNow]
    gateway: GatewayNow
    first_token: FirstTokenTimes
    endings: list[EndingCount] = Field(description="Of this gateway, of the last `first_token.window_s` seconds.")
    recent_endings: list[RecentEnding]


def operations_schema(template: str) -> dict[str, Any]:
    return OperationsNow.model_json_schema(ref_template=template, mode="serialization")
