"""Whom a record of `generated` that cannot be read was about, as far as it still says so. Pure."""

from typing import Any

import orjson

_ABOUT_ONE = ("fence", "ending")


def named_responses(key: bytes | None, value: bytes | None) -> dict[str, str | None]:
    """Response ids, each with the attempt that wrote about it, or None where that is not known or does not matter.

    Bytes that are no JSON are about the response that is their key. A frame's key is its worker: of such a frame
    nothing is known. Records of an unknown type are about nobody: what they would have meant is not known either.
    """
    try:
        record = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return {} if key is None else {key.decode(errors="replace"): None}
    if not isinstance(record, dict):
        return {}
    kind, response_id, attempt_id = record.get("type"), record.get("response_id"), record.get("attempt_id")
    if kind in _ABOUT_ONE and isinstance(response_id, str):
        # A fence that is lost is one of an attempt whose rows will all be void.
        return {response_id: attempt_id if kind == "ending" and isinstance(attempt_id, str) else None}
    if kind == "frame" and isinstance(response_id, list):
        attempts: list[Any] = attempt_id if isinstance(attempt_id, list) else []
        attempts = attempts + [None] * (len(response_id) - len(attempts))
        return {
            response: attempt if isinstance(attempt, str) else None
            for response, attempt in zip(response_id, attempts[: len(response_id)], strict=True)
            if isinstance(response, str)
        }
    return {}
