"""JSON from strangers: strict, bounded in depth and in parts, and never ambiguous."""

import json
from typing import Any, NoReturn

import orjson

from schemas.endings import EndingCode
from streams.dialects.neutral import RequestError
from streams.json_values import has_more_values, separators, without_texts

LARGE_CHARS = 65_536
LARGE_VALUES = 512
MAX_VALUES = 200_000
"""Objects, arrays, strings, numbers: more than any chat needs that fits a body, which could hold millions."""
MAX_KEYS = 2_048
"""Of one object."""
EXACT_VALUES = 4_096
"""Of which so many seem to be, they are counted again without what stands in texts."""
PARSED_BYTES = 2_048
VALUE_BYTES = 96
NAME_BYTES = 128
"""Of memory, with its part of the object's table; what their texts take comes to it."""


def is_large(raw: bytes | str) -> bool:
    """Whether `raw`, and what a dialect makes of it, takes too long for an event loop that has streams to serve."""
    return len(raw) > LARGE_CHARS or separators(raw) > LARGE_VALUES


def parsed_bytes(raw: bytes | str) -> int:
    """How much memory is taken by what `parse_json_object` made of `raw`, at most: it may be thirty times its bytes."""
    text = raw if isinstance(raw, str) else raw.decode()
    size_bytes = len(text)
    escapes = text.count(r"\u")
    if escapes or not text.isascii():
        # One character makes all of its text as wide as itself, and what is no ASCII keeps its UTF-8 beside it.
        # An escape is one; behind a backslash that is escaped itself there may be none.
        size_bytes = 8 * (size_bytes - 5 * (escapes - text.count(r"\\u")))
    if separators(text) > EXACT_VALUES:
        text = without_texts(text)
    values = 1 + separators(text) - text.count("{}") - text.count("[]")
    return PARSED_BYTES + size_bytes + values * VALUE_BYTES + text.count(":") * NAME_BYTES


def parse_json_object(raw: bytes | str, most_values: int = MAX_VALUES) -> dict[str, Any]:
    """The object in `raw`, exactly as written (integers stay integers).

    Raises RequestError for anything but one JSON object: malformed text, invalid UTF-8, lone surrogates, NaN and
    infinities, nesting too deep to parse, too many parts, integers beyond any use, and keys that occur twice.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        refuse_more_values(text, most_values)
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


def refuse_more_values(text: str, most_values: int) -> None:
    """Raises RequestError as `parse_json_object` does."""
    if has_more_values(text, most_values):
        _refuse(f"more than {most_values} values")


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
