"""JSON Schemas from strangers: how large they may be, found by a walk that takes no more steps than that.

What is bounded beside their size are the numbers that an engine's grammar grows with. Without that, ten bytes
(`maxItems`, a billion) end its process for want of memory, or keep it busy until it is ended (`multipleOf`, a large
prime). So do a few dozen patterns that hold together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import unquote

MAX_DEPTH: Final = 64
"""Of objects and arrays in each other, the outermost included: what vLLM takes."""
MAX_CHARS: Final = 100_000
MAX_VALUES: Final = 10_000
MAX_PROPERTIES: Final = 2_000
MAX_CHOICES: Final = 2_000
MAX_ITEMS: Final = 10_000
MAX_MULTIPLE: Final = 10_000
"""Of the digits of all different `multipleOf`, without zeros around them, multiplied: they may be asked for at once."""
MAX_JOINED_PATTERNS: Final = 8
"""Different ones, where they may be asked for at once: whether any text fits them all takes twice as long with each."""

_MOST: Final = {
    "characters": MAX_CHARS,
    "values": MAX_VALUES,
    "properties": MAX_PROPERTIES,
    "values in enumerations": MAX_CHOICES,
    "items in all its minItems and maxItems": MAX_ITEMS,
}
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are schemas, under names that are no keywords."""
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are no schemas, whatever they look like."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_OTHERS: Final = frozenset({"$ref", "anyOf", "oneOf"})
"""Keywords whose schemas hold beside what else a schema says."""
_JOINED: Final = frozenset(
    {"pattern", "patternProperties", "properties", "additionalProperties", "items", "prefixItems"}
)
_RELATING: Final = _OTHERS.union(_REFERENCES, ("allOf", "pattern"))
"""Most schemas have none of them, and need not be looked at for each."""

_Kind = Literal["schema", "by name", "data"]


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ValueError, in words for the client, for a schema that is too large or refers to what is not in it."""
    _Walk().go(schema)


class _Walk:
    def __init__(self) -> None:
        self._spent = Counter[str]()
        self._steps: set[int] = set()
        self._patterns: set[str] = set()
        self._joins = False

    def go(self, schema: Mapping[str, Any]) -> None:
        waiting: list[tuple[object, _Kind, int]] = [(schema, "schema", 1)]
        while waiting:
            value, kind, depth = waiting.pop()
            if isinstance(value, str):
                self._spend("characters", len(value))
                continue
            if not isinstance(value, dict | list):
                self._spend("characters", len(str(value)))
                continue
            if depth > MAX_DEPTH:
                raise ValueError(f"Objects and arrays should nest at most {MAX_DEPTH} levels deep")
            self._spend("values", len(value))
            if isinstance(value, list):
                waiting += [(each, kind, depth + 1) for each in value]
            else:
                self._spend("characters", sum(map(len, value)))
                if kind == "schema":
                    self._look_at_keywords(value)
                waiting += [(each, inner, depth + 1) for each, inner in _members(value, kind)]

    def _spend(self, what: str, count: int) -> None:
        self._spent[what] += count
        if self._spent[what] > _MOST[what]:
            raise ValueError(f"A schema should have at most {_MOST[what]:,} {what}")

    def _look_at_keywords(self, schema: Mapping[str, Any]) -> None:
        for keyword, what in (("properties", "properties"), ("enum", "values in enumerations")):
            if isinstance(members := schema.get(keyword), dict | list):
                self._spend(what, len(members))
        for keyword in ("minItems", "maxItems"):
            if isinstance(count := schema.get(keyword), int | float) and not isinstance(count, bool):
                self._spend("items in all its minItems and maxItems", max(int(count), 0))
        if isinstance(step := schema.get("multipleOf"), int | float) and not isinstance(step, bool):
            self._multiply(step)
        if _RELATING.isdisjoint(schema):
            return
        self._join(schema)
        for keyword in _REFERENCES:
            if keyword in schema and isinstance(target := schema[keyword], str):
                _check_target(keyword, target)

    def _join(self, schema: Mapping[str, Any]) -> None:
        if not self._joins:
            others = _OTHERS & schema.keys()
            self._joins = "allOf" in schema or len(others) > 1 or (len(others) == 1 and not _JOINED.isdisjoint(schema))
        if "pattern" in schema and isinstance(pattern := schema["pattern"], str):
            self._patterns.add(pattern)
        if self._joins and len(self._patterns) > MAX_JOINED_PATTERNS:
            raise ValueError(
                f"A schema that joins others (by allOf, or beside its $ref or anyOf) should have at most"
                f" {MAX_JOINED_PATTERNS} different patterns"
            )

    def _multiply(self, step: float) -> None:
        digits = str(step).partition("e")[0].replace(".", "").strip("-0") or "1"
        if len(digits) < len(str(MAX_MULTIPLE)):
            self._steps.add(int(digits))
            product = 1
            for each in self._steps:
                product *= each
            if product < MAX_MULTIPLE:
                return
        raise ValueError(f"The digits of all its multipleOf should multiply to less than {MAX_MULTIPLE:,}")


def _members(value: Mapping[str, Any], kind: _Kind) -> Iterator[tuple[object, _Kind]]:
    for name, member in value.items():
        yield member, _kind_of(name, kind)


def _kind_of(name: str, kind: _Kind) -> _Kind:
    """What stands under that name in something of that kind."""
    if kind != "schema":
        return "schema" if kind == "by name" else "data"
    if name in _BY_NAME:
        return "by name"
    return "data" if name in _DATA else "schema"


def _check_target(keyword: str, target: str) -> None:
    """What is data here would be a schema there, and nobody has looked how large it is."""
    if not target.startswith("#"):
        raise ValueError(f"{keyword} should refer to a part of the same schema (`#/…`)")
    kind: _Kind = "schema"
    for name in unquote(target).split("/")[1:]:
        kind = _kind_of(name, kind)
        if kind == "data":
            raise ValueError(f"{keyword} should refer to a schema, and to nothing within {name}")
