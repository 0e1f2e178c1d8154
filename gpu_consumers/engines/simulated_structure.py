"""What the simulated engine says where an answer is bound to a structure: the smallest thing that satisfies it."""

import json
import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from gpu_consumers.engines.simulated_regex import CannotSay, Steps, shortest_match
from schemas.structure import StructuredOutputs

MAX_PARTS: Final = 4_096
"""Schemas that are looked at for one answer: it has no more values."""
MAX_CHARS: Final = 10_000
_WORD: Final = "text"
_FORMATS: Final = {
    "date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z", "duration": "P1D",
    "email": "fox@example.org", "hostname": "example.org", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000", "uri": "https://example.org/",
}  # fmt: skip
_BEYOND: Final = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "propertyNames",
    "contains", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "discriminator"})
"""Keywords that bind nothing: where two schemas are to hold at once, either's will do."""
_BESIDE_VALUES: Final = frozenset({"const", "enum", "type", "$defs", "definitions", "$schema", "$id", "$comment"})
_KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
    "null": type(None),
}  # fmt: skip


def say(bound_to: StructuredOutputs, source: random.Random) -> str:
    """Text that satisfies it; one of several choices is drawn from `source`. Raises CannotSay."""
    if bound_to.json_schema is not None:
        return json.dumps(instance_of(bound_to.json_schema), ensure_ascii=False, separators=(",", ":"))
    if bound_to.choice is not None:
        return source.choice(bound_to.choice)
    if bound_to.regex is not None:
        return shortest_match(bound_to.regex, MAX_CHARS, Steps())
    if bound_to.grammar is not None:
        raise CannotSay("a grammar is beyond this engine")
    return '{"answer":"text"}'


def instance_of(schema: Mapping[str, Any]) -> Any:
    """The smallest value that satisfies it, always the same; of `oneOf` as of `anyOf` the first branch that can be.

    Raises CannotSay where that is large, where the schema contradicts itself, and for what this engine does not know.
    """
    try:
        return _Maker(schema).make(schema, frozenset())
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise CannotSay("it is no JSON Schema, or one that is beyond this engine") from None


class _Maker:
    """Makes one instance. `within` are the references that lead to a place: none is followed twice."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._parts = 0
        self._chars = 0
        self._steps = Steps()

    def make(self, schema: object, within: frozenset[str]) -> Any:
        self._spend()
        if schema is True:
            return None
        if not isinstance(schema, dict):
            raise CannotSay("nothing satisfies it")
        if "allOf" in schema:
            return self.make(self._all_of(schema), within)
        if "$ref" in schema:
            return self._referred(schema, within)
        for name in ("anyOf", "oneOf"):
            if name in schema:
                return self._first_of(schema, name, within)
        for name in _BEYOND:
            if name in schema:
                raise CannotSay(f"{name} is beyond this engine")
        if "const" in schema or "enum" in schema:
            return self._given(schema)
        return self._of_type(schema, within)

    def _given(self, schema: Mapping[str, Any]) -> Any:
        if others := schema.keys() - _NOTES - _BESIDE_VALUES:
            raise CannotSay(f"{min(others)} beside enum or const is beyond this engine")
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        for value in values:
            if _is_of_type(value, schema.get("type")) and schema.get("const", value) == value:
                self._spend(len(json.dumps(value)))
                return value
        raise CannotSay("none of its values will do")

    def _spend(self, chars: int = 0) -> None:
        self._parts += 1
        self._chars += chars
        if self._is_spent():
            raise CannotSay("the smallest instance is too large")

    def _is_spent(self) -> bool:
        return self._parts > MAX_PARTS or self._chars > MAX_CHARS or self._steps.left < 0

    def _all_of(self, schema: Mapping[str, Any]) -> object:
        merged: object = _without(schema, "allOf")
        for other in schema["allOf"]:
            self._spend()
            merged = _merged(merged, other)
        return merged

    def _referred(self, schema: Mapping[str, Any], within: frozenset[str]) -> Any:
        reference = schema["$ref"]
        if reference in within:
            raise CannotSay("it holds itself without an end")
        return self.make(_merged(self._at(reference), _without(schema, "$ref")), within | {reference})

    def _first_of(self, schema: Mapping[str, Any], name: str, within: frozenset[str]) -> Any:
        rest = _without(schema, name)
        why = CannotSay(f"{name} has no branch")
        for branch in schema[name]:
            try:
                return self.make(_merged(branch, rest), within)
            except CannotSay as error:
                why = error
            if self._is_spent():
                break
        raise why

    def _at(self, reference: str) -> object:
        place: Any = self._document
        for part in reference.removeprefix("#").split("/")[1:]:
            place = place[int(part) if isinstance(place, list) else part.replace("~1", "/").replace("~0", "~")]
        return place

    def _of_type(self, schema: Mapping[str, Any], within: frozenset[str]) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "null")
        match kind[0] if isinstance(kind, list) else kind:
            case "object":
                return self._object(schema, within)
            case "array":
                return self._array(schema, within)
            case "string":
                return self._string(schema)
            case "integer" | "number" as number:
                return _number(schema, whole=number == "integer")
            case "boolean":
                return True
            case "null":
                return None
        raise CannotSay("its type is unknown")

    def _object(self, schema: Mapping[str, Any], within: frozenset[str]) -> dict[str, Any]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        required = dict.fromkeys(schema.get("required", ()))
        lacking = max(schema.get("minProperties", 0) - len(required), 0)
        optional = [name for name in properties if name not in required][:lacking]
        names = [name for name in properties if name in required or name in optional]
        names += [name for name in required if name not in properties]
        names += self._new_names(lacking - len(optional), {*properties, *required})
        if len(names) > schema.get("maxProperties", len(names)):
            raise CannotSay("maxProperties is below what is required")
        self._spend(sum(map(len, names)))
        return {name: self.make(properties.get(name, others), within) for name in names}

    def _new_names(self, count: int, taken: set[str]) -> list[str]:
        names: list[str] = []
        while len(names) < count:
            self._spend()
            name = f"name{self._parts}"
            if name not in taken:
                names.append(name)
        return names

    def _array(self, schema: Mapping[str, Any], within: frozenset[str]) -> list[Any]:
        first, others = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(others, list):
            first, others = others, schema.get("additionalItems", True)
        count = schema.get("minItems", 0)
        if count > schema.get("maxItems", count):
            raise CannotSay("minItems is above maxItems")
        if count > 1 and schema.get("uniqueItems"):
            raise CannotSay("uniqueItems is beyond this engine")
        return [self.make(first[at] if at < len(first) else others, within) for at in range(count)]

    def _string(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", MAX_CHARS)
        self._spend(least)
        if "pattern" in schema:
            text = shortest_match(schema["pattern"], MAX_CHARS, self._steps)
        elif "format" in schema:
            text = _FORMATS[schema["format"]]
        else:
            text = _WORD[:most].ljust(least, "a")
        if not least <= len(text) <= most:
            raise CannotSay("the length of a text is beyond this engine")
        self._spend(len(text))
        return text


def _without(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def _merged(one: Any, other: Any) -> Any:
    """The schema that asks for both. Raises CannotSay where that takes more than putting them side by side."""
    if isinstance(one, bool):
        return other if one else False
    if isinstance(other, bool):
        return one if other else False
    merged = {**one, **other}
    for name in one.keys() & other.keys() - _NOTES:
        mine, theirs = one[name], other[name]
        if name == "properties":
            shared = {key: {"allOf": [mine[key], theirs[key]]} for key in mine.keys() & theirs.keys()}
            merged[name] = {key: shared.get(key, value) for key, value in {**mine, **theirs}.items()}
        elif name == "required":
            merged[name] = [*mine, *theirs]
        elif mine != theirs:
            raise CannotSay(f"two of {name} for one value are beyond this engine")
    return merged


def _is_of_type(value: object, kinds: str | list[str] | None) -> bool:
    if kinds is None:
        return True
    return any(
        isinstance(value, _KINDS[kind]) and isinstance(value, bool) == (kind == "boolean")
        for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    """Zero where that will do, else one next to a bound."""
    step = Fraction(str(schema.get("multipleOf", 1)))
    if whole and step.denominator != 1:
        raise CannotSay("multipleOf is beyond this engine")
    is_stepped = whole or "multipleOf" in schema
    low = _bounds(schema, "minimum", "exclusiveMinimum")
    high = _bounds(schema, "maximum", "exclusiveMaximum")
    for candidate in _candidates(max(low, default=None), min(high, default=None), step, is_stepped=is_stepped):
        if all(bound <= candidate for bound in low) and all(candidate <= bound for bound in high):
            is_excluded = any(
                name in schema and Fraction(str(schema[name])) == candidate
                for name in ("exclusiveMinimum", "exclusiveMaximum")
            )
            if not is_excluded:
                return int(candidate) if candidate.denominator == 1 else float(candidate)
    raise CannotSay("its bounds leave no number, or none that this engine finds")


def _bounds(schema: Mapping[str, Any], *names: str) -> list[Fraction]:
    return [Fraction(str(schema[name])) for name in names if name in schema]


def _candidates(low: Fraction | None, high: Fraction | None, step: Fraction, *, is_stepped: bool) -> Iterator[Fraction]:
    yield Fraction(0)
    if low is not None:
        yield ceil(low / step) * step if is_stepped else low
        yield (floor(low / step) + 1) * step
    if high is not None:
        yield floor(high / step) * step if is_stepped else high
        yield (ceil(high / step) - 1) * step
    if low is not None and high is not None and not is_stepped:
        yield (low + high) / 2
