"""What a tool can be, and how it is named, described, asked for and answered from.

A kind has few names, and so have its parameters: a model so small can learn to fill them in half an hour, and not to
read just any in its prompt.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from models.corpus.turns import Call, Tool

Slots: TypeAlias = Mapping[str, Any]
"""What one use of a tool is about, by name: what it is asked with, and what comes out."""

_FAILURES: Final = (
    "timeout", "no connection", "permission denied", "service unavailable", "rate limit exceeded", "not found",
    "internal error", "invalid key", "quota used up", "bad gateway", "the service is closed", "try again later",
)  # fmt: skip
_WHOLE_SLOT: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of a tool's, filled from the slot of that name."""

    slot: str
    names: tuple[str, ...]
    schema: Mapping[str, Any]
    descriptions: tuple[str, ...]
    optional: bool = False
    """Not every tool of its kind has it, and a call gives it only where it was asked for."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Tools that do the same."""

    purpose: str
    """A prompt never offers two of one purpose."""
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    asks: tuple[str, ...]
    draw: Callable[[random.Random], dict[str, Any]]
    """All slots."""
    results: tuple[Any, ...]
    """What it gives back, with slots: JSON values, or texts."""
    answer: str
    follow_ups: tuple[str, ...] = ()
    """Asks for the same of something else."""
    asks_for_several: tuple[str, ...] = ()
    """With one place for a list of what fills its first parameter."""
    vague_asks: tuple[str, ...] = ()
    """Without what a call needs."""
    question: str = ""
    """What the model then asks."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as one prompt has it."""

    kind: Kind
    tool: Tool
    parameter_names: Mapping[str, str]
    """By slot."""

    def asks(self, templates: tuple[str, ...]) -> list[str]:
        """Those that speak only of what it takes."""
        missing = {each.slot for each in self.kind.parameters if each.slot not in self.parameter_names}
        return [each for each in templates if missing.isdisjoint(_WHOLE_SLOT.findall(each))]

    def task(self, rng: random.Random) -> Task:
        """Something to use it for."""
        return Task(self, self.kind.draw(rng), rng.choice(self.asks(self.kind.asks)))

    def follow_up(self, rng: random.Random, before: Task) -> Task:
        """The same once more, of another thing, in few words."""
        slots = self.kind.draw(rng)
        kept = {
            each.slot: before.slots[each.slot] for each in self.kind.parameters if f"{{{each.slot}}}" in before.template
        }
        template = rng.choice(self.asks(self.kind.follow_ups))
        asked = set(_WHOLE_SLOT.findall(template))
        return Task(self, {**slots, **{slot: kept[slot] for slot in kept if slot not in asked}}, template, set(kept))


@dataclass(frozen=True, slots=True)
class Task:
    """One use of a tool."""

    offer: Offer
    slots: Slots
    template: str
    said_before: frozenset[str] | set[str] = frozenset()
    """Slots of optional parameters that an earlier question filled."""

    @property
    def ask(self) -> str:
        """The question."""
        return self.template.format(**self.slots)

    @property
    def call(self) -> Call:
        """In the order in which the tool lists its parameters."""
        named = self.offer.parameter_names
        optional = {each.slot for each in self.offer.kind.parameters if each.optional}
        given = {*_WHOLE_SLOT.findall(self.template), *self.said_before}
        arguments = {name: self.slots[slot] for slot, name in named.items() if slot not in optional or slot in given}
        return Call(self.offer.tool.name, arguments)

    def result(self, rng: random.Random) -> str:
        """What the tool gives back."""
        value = _filled(rng.choice(self.offer.kind.results), self.slots)
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=rng.choice(((",", ":"), (", ", ": "))))

    @property
    def answer(self) -> str:
        """What the model then says."""
        return self.offer.kind.answer.format(**self.slots)


def failure(rng: random.Random) -> tuple[str, str]:
    """What a tool gives back that fails, and what the model then says."""
    reason = rng.choice(_FAILURES) if rng.random() < 0.7 else f"error {rng.randint(100, 599)}"
    shapes = (
        json.dumps({"error": reason}), json.dumps({"status": "error", "message": reason}), f"Error: {reason}",
        json.dumps({"ok": False, "reason": reason}), f"failed: {reason}",
    )  # fmt: skip
    return rng.choice(shapes), f"I'm sorry, the call failed: {reason}."


def offered(rng: random.Random, kind: Kind) -> Offer:
    """A tool of that kind, under names that are drawn."""
    taken = [each for each in kind.parameters if not each.optional or rng.random() < 0.5]
    names = {each.slot: rng.choice(each.names) for each in taken}
    properties: dict[str, Any] = {}
    for each in taken:
        schema = dict(each.schema)
        if rng.random() < 0.15:
            schema["description"] = rng.choice(each.descriptions)
        properties[names[each.slot]] = schema
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [names[each.slot] for each in taken if not each.optional]:
        parameters["required"] = required
    return Offer(kind, Tool(rng.choice(kind.names), rng.choice(kind.descriptions), parameters), names)


def _filled(template: Any, slots: Slots) -> Any:
    """A slot that is a whole value keeps its type."""
    match template:
        case str():
            whole = _WHOLE_SLOT.fullmatch(template)
            return slots[whole[1]] if whole else template.format(**slots)
        case Mapping():
            return {name: _filled(each, slots) for name, each in template.items()}
        case list():
            return [_filled(each, slots) for each in template]
    return template
