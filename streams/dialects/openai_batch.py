"""OpenAI's batches and files as a pure translation: the body of a batch, and the objects that clients read."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, StringConstraints

from schemas.batch import ENDPOINTS
from streams.dialects.fields import WIRE, NotOffered, asked, invalid, unsupported, validated
from streams.dialects.openai_schema import body_schema

LONGEST_WINDOW_S: Final = 24 * 3_600
SHORTEST_WINDOW_S: Final = 60
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,4})([hms])")
_SECONDS: Final = {"h": 3_600, "m": 60, "s": 1}
_NOT_OFFERED: Final = {
    "output_expires_after": NotOffered((), "the files of a batch are kept for as long as this deployment says")
}
_Key = Annotated[str, StringConstraints(max_length=64)]
_Value = Annotated[str, StringConstraints(max_length=512)]


class BatchBody(BaseModel):
    """The body of `POST /v1/batches`."""

    model_config = WIRE

    input_file_id: str = Field(min_length=1, max_length=200)
    endpoint: str = Field(
        max_length=200, description="What its lines ask; others are refused.", json_schema_extra={"enum": [*ENDPOINTS]}
    )
    completion_window: str = Field(
        max_length=20,
        description="`24h`, or less: a number of hours, minutes (`m`) or seconds (`s`), 60 s at least.",
        json_schema_extra={"pattern": "^(([1-9]|1[0-9]|2[0-4])h|[1-9][0-9]?m)$"},
    )
    metadata: dict[_Key, _Value] | None = Field(default=None, max_length=16)

    @property
    def window_s(self) -> int:
        found = _WINDOW.fullmatch(self.completion_window)
        assert found is not None, "it was parsed"
        return int(found[1]) * _SECONDS[found[2]]


def parse_batch_body(body: Mapping[str, Any]) -> BatchBody:
    """Raises RequestError naming the field."""
    batch = validated(BatchBody, asked(BatchBody, body, _NOT_OFFERED))
    if batch.endpoint not in ENDPOINTS:
        raise unsupported("endpoint", f"lines may ask {', '.join(ENDPOINTS)}")
    if not _WINDOW.fullmatch(batch.completion_window) or not SHORTEST_WINDOW_S <= batch.window_s <= LONGEST_WINDOW_S:
        raise invalid("completion_window", "Input should be 24h, or less.")
    return batch


def batch_body_schema(ref_template: str) -> dict[str, Any]:
    return body_schema(BatchBody, ref_template)


def deleted_object(file_id: str) -> dict[str, Any]:
    return {"id": file_id, "object": "file", "deleted": True}


def list_object(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of a list."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}
