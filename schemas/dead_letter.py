"""Records on `dead-letters`: what no stage could parse, with the reason."""

import base64
from typing import Literal, Self

from pydantic import Field

from schemas.base import Identifier, Milliseconds, Record, Scope

DeadReason = Literal["not_json", "unknown_version", "unknown_type", "invalid", "untrusted", "stage_failed"]


class DeadLetter(Record):
    """The original bytes (base64, cut at `MAX_DEAD_LETTER_BYTES`) and where they came from.

    Its scope is `unknown`: a record that cannot be read, or trusted, does not say whose it is.
    """

    type: Literal["dead_letter"] = "dead_letter"
    scope: Scope = Scope(tenant_id="unknown")
    topic: Identifier
    partition: int = Field(ge=0)
    offset: int = Field(ge=0)
    stage: Identifier
    reason: DeadReason
    detail: str = Field(max_length=2_000, description="Which field and why; never its value.")
    value_base64: str
    truncated: bool = False
    dead_at_ms: Milliseconds

    @classmethod
    def of(
        cls,
        topic: str,
        partition: int,
        offset: int,
        value: bytes | None,
        *,
        stage: str,
        reason: DeadReason,
        detail: str,
        dead_at_ms: int,
    ) -> Self:
        """The letter of a record; the same record, stage and time give the same bytes."""
        kept = value or b""
        return cls(
            topic=topic,
            partition=partition,
            offset=offset,
            stage=stage,
            reason=reason,
            detail=detail[:2_000],
            value_base64=base64.b64encode(kept[:MAX_DEAD_LETTER_BYTES]).decode(),
            truncated=len(kept) > MAX_DEAD_LETTER_BYTES,
            dead_at_ms=dead_at_ms,
        )

    @property
    def key(self) -> str:
        """Where the record stood: letters about the same record share it."""
        return f"{self.topic}-{self.partition}-{self.offset}"


MAX_DEAD_LETTER_BYTES = 65_536
