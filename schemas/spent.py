"""Records on `spent`: what a tenant has spent of a month, as one partition of `usage` tells it."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Record, Scope


class SpentTotal(Record):
    """Everything that the partition tells below `offset` of what the tenant had accepted in that month.

    Compacted: the latest of each key counts. From it, and from what `usage` holds from there on, the quota store's sums
    are rebuilt when it has lost its memory.
    """

    type: Literal["spent"] = "spent"
    scope: Scope = Field(description="The tenant's; of no key and no project.")
    month: str = Field(pattern=r"^\d{4}-\d{2}$", description="By UTC, of when requests were accepted.")
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    partition: int = Field(ge=0, description="Of `usage`.")
    offset: int = Field(ge=0, description="What stands there or behind it is not counted.")
    log_id: str = Field(default="", description="Which log `usage` was: offsets of another one say nothing of this.")
    nano: dict[str, Annotated[int, Field(ge=0)]] = Field(
        description="Nano-currency by account: `tenant`, `project:<id>`, `key:<id>`."
    )
    told: list[str] = Field(default_factory=list, description="Alerts of the month that stand on `alerts` by then.")

    @property
    def key(self) -> str:
        return f"{self.scope.tenant_id}/{self.month}/{self.currency}/{self.partition}"
