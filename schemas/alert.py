"""Records on `alerts`: what somebody should know, in figures. Neither a prompt nor a secret is ever in them.

What is raised is resolved by a second record of the same id when it ends. Whoever raises it may write either of them
again, so readers know an alert by its `event_id`.
"""

import hashlib
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints

from schemas.base import Identifier, Milliseconds, Record

MAX_FIGURES = 32
Kind = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
FigureName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Figure = int | Annotated[str, StringConstraints(max_length=200)]
Severity = Literal["info", "warning", "critical"]
State = Literal["raised", "resolved"]

BILLING_DIFFERENCE: Kind = "billing_difference"
BILLING_LAG: Kind = "billing_lag"
BUDGET_THRESHOLD: Kind = "budget_threshold"


class Alert(Record):
    """One thing that began, or ended. `kind`, `tenant_id`, `subject` and `since_ms` make its id."""

    type: Literal["alert"] = "alert"
    alert_id: str = Field(pattern=r"^alert_[0-9a-f]{32}$")
    kind: Kind
    state: State = "raised"
    severity: Severity
    tenant_id: str = Field(default="", max_length=200, description="Whose it is beside the operator; empty: nobody's.")
    subject: Identifier = Field(description="What it is about, such as a budget or an hour.")
    message: str = Field(max_length=500, description="For people.")
    figures: dict[FigureName, Figure] = Field(default_factory=dict, max_length=MAX_FIGURES)
    since_ms: Milliseconds = Field(
        description="When it began, of a budget when its month did; the same in the record that resolves it."
    )
    told_at_ms: Milliseconds = Field(description="When this was found.")

    @classmethod
    def raised(
        cls,
        kind: Kind,
        subject: str,
        severity: Severity,
        message: str,
        *,
        since_ms: int,
        told_at_ms: int,
        tenant_id: str = "",
        figures: dict[str, int | str] | None = None,
    ) -> Self:
        """With the id that follows from what it says."""
        return cls(
            alert_id=alert_id(kind, tenant_id, subject, since_ms), kind=kind, severity=severity, tenant_id=tenant_id,
            subject=subject, message=message, figures=figures or {}, since_ms=since_ms, told_at_ms=told_at_ms,
        )  # fmt: skip

    def resolved(self, told_at_ms: int) -> Self:
        """The record that ends it."""
        return self.model_copy(update={"state": "resolved", "told_at_ms": told_at_ms})

    @property
    def event_id(self) -> str:
        """Tells one record from all others that are not its copy."""
        return f"{self.alert_id}.{self.state}"

    @property
    def key(self) -> str:
        """On the topic: what begins and what ends stand in one partition, in that order."""
        return self.alert_id


def alert_id(kind: str, tenant_id: str, subject: str, since_ms: int) -> str:
    parts = (kind.encode(), tenant_id.encode(), subject.encode(), str(since_ms).encode())
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return f"alert_{hashlib.sha256(framed).hexdigest()[:32]}"
