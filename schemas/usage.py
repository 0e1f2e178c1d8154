"""Records on `usage`: no text, only counts; bills are rebuilt from them."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import Identifier, Milliseconds, Record, Scope, ScopedRecord, TokenCount
from schemas.billing_rules import BILLING_RULE_VERSION
from schemas.endings import EndingCode


class UsageEvent(ScopedRecord):
    """The one billable event per response and choice, written by post-safety alone.

    A pure function of the response's records on `generated`: a rebuilt post-safety writes identical bytes. Token
    classes are disjoint; input tokens stand on choice 0 only.
    """

    type: Literal["usage"] = "usage"
    usage_id: Identifier = Field(description="`<response_id>/<choice>`; immutable, unique.")
    choice: int = Field(ge=0)
    endpoint: str
    model: str
    requested_model: str
    pool: str
    lane: str
    worker_id: str = Field(description="Worker of the last accepted token; empty when none.")
    attempts: int = Field(ge=0)
    ending: EndingCode
    finish_reason: str
    billable: bool
    billing_rule_version: int = BILLING_RULE_VERSION
    accepted_at_ms: Milliseconds = Field(description="Decides price and month.")
    first_token_at_ms: int = Field(ge=0, description="0: no token.")
    ended_at_ms: Milliseconds
    uncached_input_tokens: TokenCount
    cached_input_tokens: TokenCount
    output_tokens: TokenCount = Field(description="Accepted output tokens that are not reasoning.")
    reasoning_tokens: TokenCount
    released_tokens: TokenCount = Field(description="Output tokens that passed post-safety.")
    reserved_tokens: TokenCount = Field(description="Held by quota until settlement; 0: never reserved.")


class ComputeRecord(ScopedRecord):
    """Unpriced: what an attempt cost its worker, also where nothing was accepted."""

    type: Literal["compute"] = "compute"
    attempt_id: Identifier
    worker_id: Identifier
    pool: str
    model: str
    prompt_tokens: TokenCount
    cached_tokens: TokenCount
    generated_tokens: TokenCount
    engine_ms: int = Field(ge=0)
    outcome: str


class DeliveredCount(ScopedRecord):
    """Unpriced: how many tokens a gateway handed to a viewer's socket."""

    type: Literal["delivered"] = "delivered"
    gateway_id: Identifier
    delivered_tokens: TokenCount


class Presence(Record):
    """Unpriced: a worker had a place to be paid for in this UTC hour, whether it had anything to do or not.

    Of no response and no tenant. Equal ones say the same thing once.
    """

    type: Literal["presence"] = "presence"
    scope: Scope
    worker_id: Identifier
    pool: str
    hour_ms: Milliseconds = Field(description="When the hour began, by the worker's clock.")


AnyUsage = UsageEvent | ComputeRecord | DeliveredCount | Presence
UsageRecord = Annotated[AnyUsage, Field(discriminator="type")]
USAGE: TypeAdapter[AnyUsage] = TypeAdapter(UsageRecord)
