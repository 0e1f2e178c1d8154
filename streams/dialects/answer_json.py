"""The JSON of what is answered whole, in one body or in a line of a batch's output."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """What was asked for, or as far as it is there. Parts of it may be written already."""
    try:
        return orjson.dumps(body)
    except TypeError:
        # Integers beyond 64 bits: a client's schema has them, or a model has written them.
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
