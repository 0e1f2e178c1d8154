"""Sentences whose values are wanted as JSON, with the schema in the prompt, or the names of the fields."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from models.corpus.turns import Conversation, Message
from models.corpus.words import capitalised, city, full_name, number, syllables


@dataclass(frozen=True, slots=True, eq=False)
class _Field:
    """Something that may be said of a subject."""

    name: str
    draw: Callable[[random.Random], Any]
    said: str
    """What is said, with a place for the value."""
    schema: Mapping[str, Any]
    said_if_false: str = ""
    """Of a boolean, whose `said` has no place."""

    def says(self, value: Any) -> str:
        if isinstance(value, bool):
            return self.said if value else self.said_if_false
        return self.said.format(_shown(value))

    def notes(self, value: Any) -> str:
        """The same as a note: what it is, and the value."""
        return f"{self.name.replace('_', ' ')}: {_shown(value)}"


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case list():
            *others, last = value
            return f"{', '.join(others)} and {last}" if others else str(last)
    return str(value)


@dataclass(frozen=True, slots=True)
class _Subject:
    """Something that has fields, of which the first names it."""

    name: _Field
    fields: tuple[_Field, ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """Some fields of a subject, in the order of the JSON."""

    subject: _Subject
    fields: Sequence[_Field]
    within: str
    """If not empty, the name of an object that holds the last two."""

    @property
    def schema(self) -> dict[str, Any]:
        """Which JSON fits it."""
        return _object_schema(self._nested({each.name: dict(each.schema) for each in self.fields}, _object_schema))

    def filled(self, values: Mapping[str, Any]) -> str:
        """Compact JSON, in the order of the schema."""
        whole = self._nested({each.name: values[each.name] for each in self.fields}, dict)
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))

    def _nested(self, members: dict[str, Any], made: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        if not self.within:
            return members
        *others, before_last, last = members.items()
        return {**dict(others), self.within: made(dict((before_last, last)))}


def _object_schema(members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members)}


_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_TRUTH: Final = {"type": "boolean"}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}


def _truth(name: str, said: str, said_if_false: str) -> _Field:
    return _Field(name, lambda rng: rng.random() < 0.5, said, _TRUTH, said_if_false)


def _one_of(name: str, said: str, *values: str) -> _Field:
    return _Field(name, lambda rng: rng.choice(values), said, {"type": "string", "enum": list(values)})


def _some_of(name: str, said: str, *values: str) -> _Field:
    return _Field(name, lambda rng: rng.sample(values, rng.randint(1, 3)), said, _TEXTS)


def _whole(name: str, said: str, most_digits: int) -> _Field:
    return _Field(name, lambda rng: number(rng, most_digits), said, _WHOLE)


def _decimal(name: str, said: str) -> _Field:
    return _Field(name, lambda rng: float(f"{number(rng, 3)}.{rng.randint(1, 9)}"), said, _NUMBER)


def _text(name: str, said: str, draw: Callable[[random.Random], str]) -> _Field:
    return _Field(name, draw, said, _TEXT)


def _day(rng: random.Random) -> str:
    return f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _word(rng: random.Random) -> str:
    return capitalised(syllables(rng, 2))


def _address(rng: random.Random) -> str:
    return f"{syllables(rng, 2)}@example.com"


def _host(rng: random.Random) -> str:
    return f"{syllables(rng, 1)}-{number(rng, 2)}"


def _code(rng: random.Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTXYZ')}{rng.choice('ABCDEFGHKLMNPRSTXYZ')}-{number(rng, 4)}"


_JOBS: Final = (
    "baker", "teacher", "nurse", "painter", "pilot", "farmer", "engineer", "cook", "judge", "singer", "carpenter",
)  # fmt: skip

_SUBJECTS: Final = (
    _Subject(
        _text("name", "{}", full_name),
        (
            _whole("age", "is {} years old", 2),
            _text("city", "lives in {}", city),
            _text("job", "works as a {}", lambda rng: rng.choice(_JOBS)),
            _truth("married", "is married", "is not married"),
            _some_of("hobbies", "likes {}", "chess", "tennis", "music", "hiking", "art"),
            _text("email", "has the address {}", _address),
        ),
    ),
    _Subject(
        _text("product", "The {}", lambda rng: f"{_word(rng)} {number(rng, 2)}"),
        (
            _decimal("price", "costs {} euros"),
            _one_of("color", "is {}", "red", "blue", "green", "black", "white"),
            _whole("stock", "is there {} times", 4),
            _truth("available", "can be ordered", "can not be ordered"),
        ),
    ),
    _Subject(
        _text("title", "{}", lambda rng: f"The {_word(rng)} meeting"),
        (
            _text("city", "takes place in {}", city),
            _text("date", "is on {}", _day),
            _whole("guests", "has {} guests", 3),
            _truth("public", "is open to all", "is not open to all"),
        ),
    ),
    _Subject(
        _text("order_id", "Order {}", _code),
        (
            _text("customer", "was placed by {}", full_name),
            _decimal("total", "comes to {} dollars"),
            _one_of("status", "is {}", "new", "paid", "shipped", "cancelled"),
            _some_of("items", "contains {}", "pens", "paper", "lamps", "cups", "books"),
        ),
    ),
    _Subject(
        _text("host", "The server {}", _host),
        (
            _whole("port", "listens on port {}", 4),
            _whole("cores", "has {} cores", 2),
            _truth("healthy", "is healthy", "is not healthy"),
            _one_of("region", "stands in {}", "north", "south", "east", "west"),
        ),
    ),
)

_SCHEMA_SAID: Final = (
    "Answer in JSON that fits this schema: {0}", "Return JSON with this schema: {0}", "JSON schema: {0}", "Schema: {0}",
    "Answer with JSON only. The schema is {0}", "Extract the data as JSON.\n{0}", "Fill this JSON schema: {0}",
    "Respond with a JSON object that matches this schema:\n{0}",
)  # fmt: skip
_FIELDS_SAID: Final = (
    "Give me {0} as JSON.", "Answer in JSON with the fields {0}.", "As JSON with {0}.", "Return {0} as a JSON object.",
    "Extract {0} as JSON.", "Write {0} as JSON.", "I want a JSON object with {0}.",
)  # fmt: skip


def form_conversation(rng: random.Random) -> Conversation:
    """One sentence or a few, each of which becomes JSON of the same form."""
    form = _form(rng)
    said = _instruction(rng, form)
    turns: list[Message] = []
    if rng.random() < 0.4:
        turns.append(Message("system", said))
        for _ in range(rng.choice((1, 1, 2, 3))):
            turns += _sentence_and_json(rng, form, "")
    else:
        turns += _sentence_and_json(rng, form, said)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            turns += _sentence_and_json(rng, form, "")
    return Conversation(tuple(turns))


def _form(rng: random.Random) -> _Form:
    subject = rng.choice(_SUBJECTS)
    taken = [subject.name, *rng.sample(subject.fields, rng.randint(1, 3))]
    if rng.random() < 0.2:
        rng.shuffle(taken)
    return _Form(subject, taken, "info" if len(taken) > 2 and rng.random() < 0.1 else "")


def _instruction(rng: random.Random, form: _Form) -> str:
    kind = rng.random()
    if kind < 0.7 or form.within:
        return rng.choice(_SCHEMA_SAID).format(
            json.dumps(form.schema, separators=rng.choice(((",", ":"), (", ", ": "))))
        )
    *others, last = (each.name for each in form.fields)
    return rng.choice(_FIELDS_SAID).format(f"{', '.join(others)} and {last}")


def _sentence_and_json(rng: random.Random, form: _Form, said: str) -> list[Message]:
    values = {each.name: each.draw(rng) for each in form.fields}
    sentence = _notes(rng, form, values) if rng.random() < 0.2 else _sentence(rng, form, values)
    ask = sentence
    if said:
        ask = rng.choice((f"{said}\n{sentence}", f"{sentence}\n{said}", f"{said} {sentence}", f"{sentence} {said}"))
    return [Message("user", ask), Message("assistant", form.filled(values))]


def _notes(rng: random.Random, form: _Form, values: Mapping[str, Any]) -> str:
    notes = [each.notes(values[each.name]) for each in form.fields]
    rng.shuffle(notes)
    return rng.choice(("; ", ", ", "\n", ". ")).join(notes)


def _sentence(rng: random.Random, form: _Form, values: Mapping[str, Any]) -> str:
    told = {each: each.says(values[each.name]) for each in form.fields}
    subject = told.pop(form.subject.name, None) or form.subject.name.says(form.subject.name.draw(rng))
    clauses = list(told.values())
    rng.shuffle(clauses)
    *others, last = clauses
    shape = rng.random()
    if shape < 0.5 or not others:
        return f"{subject} {', '.join(others)}{' and ' if others else ''}{last}."
    if shape < 0.7:
        return " ".join(f"{subject} {clause}." for clause in clauses)
    if shape < 0.85:
        return f"{subject} ({', '.join(others)}) {last}."
    return f"About {subject}: {'; '.join(clauses)}."
