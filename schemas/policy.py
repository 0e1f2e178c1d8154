"""Records on `policies`: what tenants denied in answers, for as long as a response may be open that was opened so."""

import hashlib
from collections.abc import Sequence
from typing import Literal, Self

import orjson
from pydantic import Field

from schemas.base import Identifier, Record


class OutputPolicy(Record):
    """The phrases that `Opened.output_policy` names. Written before the first `Opened` that does; never changes.

    It has no scope: it is about a tenant's text, not about a response, and holds for every project, key and trace.
    """

    type: Literal["output_policy"] = "output_policy"
    tenant_id: Identifier
    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="Of `output_deny`; what `Opened.output_policy` holds.")
    output_deny: list[str]

    @classmethod
    def of(cls, tenant_id: str, output_deny: Sequence[str]) -> Self:
        phrases = list(output_deny)
        digest = hashlib.sha256(orjson.dumps(phrases)).hexdigest()
        return cls(tenant_id=tenant_id, digest=digest, output_deny=phrases)

    @property
    def key(self) -> str:
        return f"{self.tenant_id}/{self.digest}"


NOTHING_DENIED = OutputPolicy.of("any", []).digest
"""Needs no record."""
