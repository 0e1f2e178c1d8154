"""Records on `dead-letters`: what no stage could parse, with the reason."""

from typing import Literal

from pydantic import Field

from schemas.base import Identifier, Milliseconds, Record, Scope


class DeadLetter(Record):
    """The original bytes (base64, cut at `MAX_DEAD_LETTER_BYTES`) and where they came from."""

    type: Literal["dead_letter"] = "dead_letter"
    scope: Scope = Scope(tenant_id="unknown")
    topic: Identifier
    partition: int = Field(ge=0)
    offset: int = Field(ge=0)
    stage: Identifier
    reason: Literal["not_json", "unknown_version", "unknown_type", "invalid", "untrusted", "stage_failed"]
    detail: str = Field(max_length=2_000, description="Which field and why; never its value.")
    value_base64: str
    truncated: bool = False
    dead_at_ms: Milliseconds


MAX_DEAD_LETTER_BYTES = 65_536
