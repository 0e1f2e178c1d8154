"""Records on `parked`: responses that wait for a worker, so that a reader of `generated` need not go back to them."""

from typing import Literal

from pydantic import Field

from schemas.base import Identifier, Record
from schemas.generated import Opened


class Parked(Record):
    """A response that was opened and not begun when it was parked. The latest of each key counts.

    It counts for who was told of its `owner` by the commit of `generated`, and for nobody else.
    """

    type: Literal["parked"] = "parked"
    owner: Identifier = Field(description="Who wrote it: one member of post-safety, while it held the partition.")
    opened_offset: int = Field(ge=0, description="Of its `opened` in the same partition of `generated`.")
    ended_offset: int | None = Field(default=None, ge=0, description="Of the record there that ended it, once read.")
    begun_offset: int | None = Field(
        default=None,
        ge=0,
        exclude_if=lambda offset: offset is None,
        description="Of the fence behind which it was read until it ended. None: nobody had begun it.",
    )
    opened: Opened

    @property
    def key(self) -> str:
        return f"{self.owner}/{self.opened.response_id}"
