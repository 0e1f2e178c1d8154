"""What all records share: version, scope, stage timestamps, encoding."""

from operator import not_
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Literal[1] = 1

Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Milliseconds = Annotated[int, Field(ge=0, le=2**53)]
TokenCount = Annotated[int, Field(ge=0, le=2**31)]
MAX_ECHO_CHARS = 32_768


def is_absent(value: object) -> bool:
    """With `exclude_if`: what nobody asked for is left out, the same bytes as before there was a field."""
    return value is None


def is_one(value: object) -> bool:
    """As `is_absent`, of a count that is one unless somebody asked for more."""
    return value == 1


Echo = Annotated[
    str,
    Field(
        max_length=MAX_ECHO_CHARS,
        exclude_if=not_,  # The release before takes no unknown field.
        description="JSON of what the request's dialect repeats of it whenever it tells the response; for nobody else.",
    ),
]


class Scope(BaseModel):
    """Who a record belongs to and under which rules; the same on every record of one response."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    tenant_id: Identifier = Field(description="The organisation that owns and pays for the response.")
    project_id: str = Field(default="default", max_length=200, description="Sub-division of the tenant.")
    key_id: str = Field(default="", max_length=200, description="Which API or producer key was used, never the key.")
    end_user: str = Field(default="", max_length=200, description="Pseudonym of the tenant's own end user.")
    region: str = Field(default="local", max_length=32, description="Region whose topics and stores may hold it.")
    policy_version: int = Field(default=1, ge=0, description="Version of the tenant's safety policy applied.")
    encryption_key_id: str = Field(default="", max_length=200, description="Key of encrypted payloads; empty: none.")
    traceparent: str = Field(
        default="",
        max_length=100,
        description="W3C trace context of the request. Empty on frames and releases: `opened` and `started` have it.",
    )


class Record(BaseModel):
    """A versioned event. Unknown fields are ignored; an unknown `schema_version` fails validation.

    `encode` gives the same bytes for equal records: field order is declaration order.
    """

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1] = Field(default=SCHEMA_VERSION, description="Version of this record's schema.")
    stage_ms: dict[str, int] = Field(
        default_factory=dict, description="Unix time in milliseconds at which each stage finished with it."
    )

    def encode(self) -> bytes:
        return self.model_dump_json().encode()


class ScopedRecord(Record):
    """A record about one response."""

    response_id: Identifier = Field(description="`resp_<region>-<reply partition>_<uuid>`.")
    scope: Scope
