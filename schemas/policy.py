"""Records on `policies`: what tenants denied in answers, for as long as a response may be open that was opened so."""

import hashlib
from collections.abc import Sequence
from typing import Literal, Self

import orjson
from pydantic import Field

from schemas.base import Identifier, Record

OutputMode = Literal["hold_back", "parallel", "full_review"]
DEFAULT_MODE: OutputMode = "hold_back"


def _is_default(mode: object) -> bool:
    return mode == DEFAULT_MODE


class OutputPolicy(Record):
    """The phrases that `Opened.output_policy` names, and how much of an answer is seen before it was looked at. Written
    before the first `Opened` that does; never changes.

    It has no scope: it is about a tenant's text, not about a response, and holds for every project, key and trace.
    """

    type: Literal["output_policy"] = "output_policy"
    tenant_id: Identifier
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="Of all else here; what `Opened.output_policy` holds.")
    output_deny: list[str]
    mode: OutputMode = Field(
        default=DEFAULT_MODE, exclude_if=_is_default, description="What is seen before it was looked at."
    )

    @classmethod
    def of(cls, tenant_id: str, output_deny: Sequence[str], mode: OutputMode = DEFAULT_MODE) -> Self:
        """Where nothing is denied there is nothing to look for: then the mode says nothing."""
        phrases = list(output_deny)
        if not phrases:
            mode = DEFAULT_MODE
        named = phrases if mode == DEFAULT_MODE else [mode, phrases]
        return cls(
            tenant_id=tenant_id, digest=hashlib.sha256(orjson.dumps(named)).hexdigest(), output_deny=phrases, mode=mode
        )

    @property
    def key(self) -> str:
        return f"{self.tenant_id}/{self.digest}"


NOTHING_DENIED = OutputPolicy.of("any", []).digest
"""Needs no record."""
