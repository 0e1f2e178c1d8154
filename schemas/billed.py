"""Records on `billed` (compacted, one key): how far billing is, for who lets requests in while that can be billed."""

from typing import Literal

from pydantic import Field

from schemas.base import Milliseconds, Record, Scope


class Billed(Record):
    """The last one counts, however old it is: while billing says nothing, `through_ms` stays where it was."""

    type: Literal["billed"] = "billed"
    scope: Scope = Scope(tenant_id="sluice")
    through_ms: Milliseconds = Field(description="All that was on `usage` by then is in the tables. 0: not known.")
    lost_records: int = Field(ge=0, description="How many the log no longer has of those that are in no table.")
    told_at_ms: Milliseconds
