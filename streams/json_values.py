"""How many values JSON has and how deep it is, counted no further than asked, and before anything is made of it."""

import re
from typing import Any

_PLAIN_STRING = re.compile(r'"[^"]*(?:"|\Z)')
"""Without escapes. One that nobody closes ends with the text."""


class TooManyValues(ValueError):
    """There are more than asked for."""


class TooDeep(ValueError):
    """It is nested deeper than asked for."""


def count_values(value: object, most: int, depth: int) -> int:
    """Objects, arrays, strings, numbers: with `value` itself, without the names in objects.

    Raises TooManyValues and TooDeep, before it has looked at more than `most`.
    """
    level: list[Any] = [value]
    found = 0
    while level:
        if not depth:
            raise TooDeep
        found += len(level)
        depth -= 1
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
            if found + len(inner) > most:
                raise TooManyValues
        level = inner
    return found


def separators(raw: bytes | str) -> int:
    """Each value but the first stands behind one: there are no more values than these, and fewer where texts have
    some, or objects and arrays are empty."""
    if isinstance(raw, str):
        return raw.count("{") + raw.count("[") + raw.count(",")
    return raw.count(b"{") + raw.count(b"[") + raw.count(b",")


def has_more_values(text: str, most: int) -> bool:
    """Whether there are more separators than `most` outside texts."""
    if len(text) <= most or separators(text) <= most:
        return False
    plain = _without_escapes(text)
    if plain.count('"') > 4 * (most + 1):
        return True  # No more than two strings are one value, with its name.
    return separators(_PLAIN_STRING.sub("0", plain)) > most


def without_texts(text: str) -> str:
    """With a number in the place of each string."""
    return _PLAIN_STRING.sub("0", _without_escapes(text))


def _without_escapes(text: str) -> str:
    return text.replace("\\\\", "").replace('\\"', "")
