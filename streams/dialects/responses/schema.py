"""The JSON schema of a body, for those who make a client of it."""

from typing import Any

from streams.dialects.openai_schema import body_schema
from streams.dialects.responses.body import ResponsesBody
from streams.dialects.responses.parameters import HINTS, NOT_OFFERED


def responses_schema(ref_template: str) -> dict[str, Any]:
    """With `$defs`; references to them are made by `ref_template`."""
    return body_schema(ResponsesBody, ref_template, NOT_OFFERED, HINTS)
