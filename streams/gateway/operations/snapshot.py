"""What `/api/operations` answers. Names and numbers alone: nothing that a client asked or was answered is in it, and of
whom are tenants named, no user of theirs.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streams.gateway.service.circuit import Dependency
from streams.pools_now import LaneNow, PoolNow, ShareNow, WorkerNow

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


class LaneFlow(LaneNow):
    records_per_s: Rate
    open: int = Field(description="Requests whose end is not committed: they wait, or are being answered.")


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
    shares: list[ShareNow] = Field(description="Pool by pool, the largest first, 64 of each at most.")
    workers: list[WorkerNow]
    gateway: GatewayNow
    first_token: FirstTokenTimes
    endings: list[EndingCount] = Field(description="Of this gateway, of the last `first_token.window_s` seconds.")
    recent_endings: list[RecentEnding]


def operations_schema(template: str) -> dict[str, Any]:
    return OperationsNow.model_json_schema(ref_template=template, mode="serialization")
