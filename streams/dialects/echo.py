"""What responses repeat of their requests, as a request's record carries it: JSON."""

import json
from typing import Annotated, Any

from pydantic import StringConstraints

from streams.dialects.fields import invalid

MAX_METADATA = 16
MAX_METADATA_CHARS = 12_288
"""As JSON, where each character may take several: so there is room for it in every echo."""

Metadata = dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]]


def written(echo: object) -> str:
    return json.dumps(echo, ensure_ascii=False, separators=(",", ":"))


def echoed(echo: str) -> dict[str, Any]:
    """Whatever dialect wrote it; nothing of none."""
    found: dict[str, Any] = json.loads(echo) if echo else {}
    return found


def check_pairs(metadata: object) -> None:
    """Before any of them is looked at. Raises RequestError."""
    if isinstance(metadata, dict) and len(metadata) > MAX_METADATA:
        raise invalid("metadata", f"There should be at most {MAX_METADATA} pairs.")


def check_metadata(metadata: Metadata | None) -> None:
    """Raises RequestError."""
    if metadata and len(written(metadata)) > MAX_METADATA_CHARS:
        raise invalid("metadata", f"It should have at most {MAX_METADATA_CHARS} characters as JSON.")
