"""Records on `verdicts`: what safety decided, without the text it decided on."""

from operator import not_
from typing import Literal

from pydantic import Field

from schemas.base import ScopedRecord


class Verdict(ScopedRecord):
    """A decision of pre- or post-safety."""

    type: Literal["verdict"] = "verdict"
    stage: Literal["pre-safety", "post-safety"]
    decision: Literal["allow", "refuse", "halt"]
    rule: str = Field(default="", description="Name of the rule that decided; empty for allow.")
    kind: str = Field(
        default="",
        max_length=40,
        exclude_if=not_,
        description="Pre-safety, of a refusal: `phrase`, `pattern`, or `disguise`, a phrase that was disguised.",
    )
    disguise: str = Field(
        default="",
        max_length=200,
        exclude_if=not_,
        description="How: `leet`, `stretched`, `spaced`, `rot13`, `reversed`, `base64`, `hex`, `percent`, or several of"
        " them with `+`, the outer one first.",
    )
    category: str = Field(
        default="",
        max_length=100,
        exclude_if=not_,
        description="Of the rule that decided, as the tenant has it: one of the hazards of MLCommons' AILuminate 1.0.",
    )
    policy_digest: str = Field(
        default="",
        max_length=64,
        exclude_if=not_,
        description="SHA-256 of all that the tenant's policy says of prompts; empty where it denies nothing.",
    )
    span_sha256: str = Field(
        default="", description="Hash of the matched, normalised text; of a pattern's match, of the pattern."
    )
    sequence_number: int = Field(default=0, ge=0, description="Post-safety: last sequence released.")
