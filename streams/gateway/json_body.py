"""JSON from strangers: strict, bounded in depth and in parts, and never ambiguous."""

import json
import re
from typing import Any, NoReturn

import orjson

from schemas.endings import EndingCode
from streams.dialects.neutral import RequestError

LARGE_CHARS = 65_536
"""What is larger takes too long to parse on an event loop that has streams to serve."""
MAX_CONTAINERS = 200_000
"""Objects and arrays: more than any chat needs that fits a body. A body of nothing else would hold millions."""
MAX_KEYS = 2_048
"""Of one object."""
_STRING = re.compile(r'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""One that nobody closes ends with the text: looked for again from each of its quotes, it would take hours."""


def parse_json_object(raw: bytes | str) -> dict[str, Any]:
    """The object in `raw`, exactly as written (integers stay integers).

    Raises RequestError for anything but one JSON object: malformed text, invalid UTF-8, lone surrogates, NaN and
    infinities, nesting too deep to parse, too many parts, integers beyond any use, and keys that occur twice.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        if _containers(text) > MAX_CONTAINERS:
            _refuse(f"more than {MAX_CONTAINERS} objects and arrays")
        # orjson is strict about syntax, encoding and depth; the second pass sees what it hides: repeated keys.
        orjson.loads(raw)
        value = json.loads(text, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except RecursionError:
        _refuse("nested too deeply")
    except UnicodeDecodeError as error:
        raise RequestError(
            EndingCode.INVALID_REQUEST, f"The body is not valid UTF-8 (byte offset {error.start})."
        ) from None
    except orjson.JSONDecodeError as error:
        _refuse("nested too deeply" if "depth" in str(error) else str(error))
    except ValueError as error:
        _refuse(str(error)[:200])
    if not isinstance(value, dict):
        _refuse("expected an object")
    return value


def _containers(text: str) -> int:
    """How many objects and arrays there are at most: found before anything is made of them."""
    if len(text) <= MAX_CONTAINERS:
        return 0
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        text = _STRING.sub("", text)
    return text.count("{") + text.count("[")


def _refuse(why: str) -> NoReturn:
    raise RequestError(EndingCode.INVALID_REQUEST, f"The body is not valid JSON: {why}.") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise ValueError(f"an object has more than {MAX_KEYS} keys")
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    found.clear()
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name[:80]!r} occurs twice")
        found[name] = value
    return found
