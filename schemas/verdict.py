"""Records on `verdicts`: what safety decided, without the text it decided on."""

from typing import Literal

from pydantic import Field

from schemas.base import ScopedRecord


class Verdict(ScopedRecord):
    """A decision of pre- or post-safety."""

    type: Literal["verdict"] = "verdict"
    stage: Literal["pre-safety", "post-safety"]
    decision: Literal["allow", "refuse", "halt"]
    rule: str = Field(default="", description="Name of the rule that decided; empty for allow.")
    span_sha256: str = Field(default="", description="Hash of the matched, normalised text.")
    sequence_number: int = Field(default=0, ge=0, description="Post-safety: last sequence released.")
