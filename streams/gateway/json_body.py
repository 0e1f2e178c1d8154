"""JSON from strangers: strict, bounded in depth, and never ambiguous."""

import json
from typing import Any, NoReturn

import orjson

from schemas.endings import EndingCode
from streams.gateway.errors import RequestError


def parse_json_object(raw: bytes | str) -> dict[str, Any]:
    """The object in `raw`, exactly as written (integers stay integers).

    Raises RequestError for anything but one JSON object: malformed text, invalid UTF-8, lone surrogates, NaN and
    infinities, nesting too deep to parse, integers beyond any use, and keys that occur twice.
    """
    try:
        # orjson is strict about syntax, encoding and depth; the second pass sees what it hides: repeated keys.
        orjson.loads(raw)
        value = json.loads(raw, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except RecursionError:
        _refuse("nested too deeply")
    except orjson.JSONDecodeError as error:
        _refuse("nested too deeply" if "depth" in str(error) else str(error))
    except ValueError as error:
        _refuse(str(error)[:200])
    if not isinstance(value, dict):
        _refuse("expected an object")
    return value


def _refuse(why: str) -> NoReturn:
    raise RequestError(EndingCode.INVALID_REQUEST, f"The body is not valid JSON: {why}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # One pass: whoever sends it has not been authenticated yet, and may send millions of keys.
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:80]!r} occurs twice")
        found[name] = value
    return found
