"""What may be asked about usage: the question that gateways and the command put to billing, and its words."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

BucketWidth = Literal["1m", "1h", "1d"]
GroupBy = Literal[
    "model", "project_id", "key_id", "end_user", "endpoint", "lane", "batch", "pool", "region", "ending", "tenant_id",
    "currency", "line_item",
]  # fmt: skip
"""`currency`: amounts of several cannot be added. `line_item`: a model and a class of tokens, of what was charged."""
ExportFormat = Literal["csv", "parquet"]
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
GROUPS: tuple[GroupBy, ...] = tuple(
    group for group in get_args(GroupBy) if group not in ("tenant_id", "currency", "line_item")
)
"""By what a tenant may have its usage told apart; the operator, by tenants too."""
COST_GROUPS: tuple[GroupBy, ...] = (*GROUPS, "line_item")
BUCKET_S: dict[BucketWidth, int] = {"1m": 60, "1h": 3_600, "1d": 86_400}
MAX_BUCKETS: dict[BucketWidth, int] = {"1m": 1_440, "1h": 31 * 24, "1d": 400}
"""Of one page."""
MAX_EXPORT_DAYS: dict[BucketWidth, int] = {"1m": 31, "1h": 400, "1d": 400}
"""Of one file."""
MAX_TIME_S = 2**33
"""Unix time. Before it no bucket begins."""
MAX_NAMES = 100
"""Of one filter."""
TOKEN_CLASSES = (
    "uncached_input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "released_tokens",
)
"""Disjoint, but for what was released: that is of the output."""

Name = Annotated[str, StringConstraints(max_length=200)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_NAMES)]


class InvalidQuery(ValueError):
    """In words for whoever asked; `param` names the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UsageQuery(BaseModel):
    """Responses accepted in [`start_time`, `end_time`), Unix seconds, in UTC buckets, `limit` of them at most.

    Of each filter what it names counts, all where it names nothing. `tenant_id` None is for the operator: all of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant_id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None
    start_time: int = Field(ge=0, le=MAX_TIME_S)
    end_time: int = Field(ge=0, le=MAX_TIME_S)
    bucket_width: BucketWidth = "1d"
    group_by: Annotated[tuple[GroupBy, ...], Field(max_length=len(get_args(GroupBy)))] = ()
    limit: int = Field(default=400, ge=1)
    models: Names = ()
    project_ids: Names = ()
    key_ids: Names = ()
    end_users: Names = ()
    endpoints: Names = ()
    lanes: Names = ()
    batch: bool | None = Field(default=None, description="Whether jobs alone, or all but them; None: both.")

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if self.end_time <= self.start_time:
            raise InvalidQuery("end_time", "end_time must be after start_time")
        if self.limit > MAX_BUCKETS[self.bucket_width]:
            most = MAX_BUCKETS[self.bucket_width]
            raise InvalidQuery("limit", f"limit: at most {most} buckets of {self.bucket_width} at once")
        if len(set(self.group_by)) < len(self.group_by):
            raise InvalidQuery("group_by", "group_by names a field twice")
        return self

    @classmethod
    def asked(cls, **fields: object) -> Self:
        """Raises InvalidQuery."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise fault_of(first, first["loc"]) from None

    def check_export(self) -> None:
        """Raises InvalidQuery where it is of more time than a file may be of."""
        most = MAX_EXPORT_DAYS[self.bucket_width]
        if self.end_time - self.start_time > most * 86_400:
            message = f"end_time must be at most {most} days after start_time in a file by {self.bucket_width}"
            raise InvalidQuery("end_time", message)

    def bucket_starts(self) -> range:
        """Starts of the UTC minutes, hours or days that the interval touches."""
        width_s = BUCKET_S[self.bucket_width]
        return range(self.start_time - self.start_time % width_s, self.end_time, width_s)


def fault_of(error: Mapping[str, Any], place: Sequence[str | int]) -> InvalidQuery:
    """What pydantic says is wrong with a question; `place`: with which field of it."""
    if isinstance(said := error.get("ctx", {}).get("error"), InvalidQuery):
        return said
    param = ".".join(map(str, place)) or "body"
    return InvalidQuery(param, f"{param}: {error['msg']}")


def end_of_bucket(width: BucketWidth, time_s: int) -> int:
    """Where the bucket ends that holds the moment."""
    return time_s - time_s % BUCKET_S[width] + BUCKET_S[width]
