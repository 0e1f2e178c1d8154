"""JSON that holds what a sentence says."""

from __future__ import annotations

import json
from typing import Any, Final

from models.held_out.questions import Question, is_json

_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_NUMBER: Final = {"type": "number"}
_TRUTH: Final = {"type": "boolean"}
_TEXTS: Final = {"type": "array", "items": _TEXT}


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_PERSON: Final = _schema({"name": _TEXT, "age": _WHOLE, "city": _TEXT})
_WORKER: Final = _schema({"name": _TEXT, "job": _TEXT, "married": _TRUTH})
_PRODUCT: Final = _schema({"product": _TEXT, "price": _NUMBER, "available": _TRUTH})
_ORDER: Final = _schema(
    {"order_id": _TEXT, "customer": _TEXT, "status": _one_of("new", "paid", "shipped", "cancelled")}
)
_EVENT: Final = _schema({"title": _TEXT, "date": _TEXT, "guests": _WHOLE})
_NESTED: Final = _schema({"name": _TEXT, "info": _schema({"age": _WHOLE, "city": _TEXT})})
_SERVER: Final = _schema({"host": _TEXT, "port": _WHOLE, "healthy": _TRUTH})
_BASKET: Final = _schema({"items": _TEXTS, "total": _NUMBER})

_FILLED: Final[tuple[tuple[dict[str, Any], str, dict[str, Any]], ...]] = (
    # schema, sentence, value
    (
        _PERSON,
        "Greta Olsen is 47 years old and lives in Utrecht.",
        {"name": "Greta Olsen", "age": 47, "city": "Utrecht"},
    ),
    (_PERSON, "In Osaka lives Igor Banks, who is 83.", {"name": "Igor Banks", "age": 83, "city": "Osaka"}),
    (_PERSON, "Meet Wanda Pell, aged 29, from Salzburg.", {"name": "Wanda Pell", "age": 29, "city": "Salzburg"}),
    (
        _WORKER,
        "Igor Banks works as a judge and is married.",
        {"name": "Igor Banks", "job": "judge", "married": True},
    ),
    (_WORKER, "Wanda Pell, a pilot, is not married.", {"name": "Wanda Pell", "job": "pilot", "married": False}),
    (_WORKER, "Greta Olsen is married; she is a nurse.", {"name": "Greta Olsen", "job": "nurse", "married": True}),
    (
        _PRODUCT,
        "The Quill 29 costs 38.5 euros and can be ordered.",
        {"product": "Quill 29", "price": 38.5, "available": True},
    ),
    (_PRODUCT, "For 74.2 euros you get the Quill 56.", {"product": "Quill 56", "price": 74.2, "available": True}),
    (
        _PRODUCT,
        "The Otter 47, at 92.4 euros, can not be ordered.",
        {"product": "Otter 47", "price": 92.4, "available": False},
    ),
    (
        _ORDER,
        "Order QW-236 was placed by Igor Banks and is paid.",
        {"order_id": "QW-236", "customer": "Igor Banks", "status": "paid"},
    ),
    (
        _ORDER,
        "Greta Olsen's order QQ-65 is cancelled.",
        {"order_id": "QQ-65", "customer": "Greta Olsen", "status": "cancelled"},
    ),
    (
        _ORDER,
        "We shipped QW-499 to Wanda Pell: shipped.",
        {"order_id": "QW-499", "customer": "Wanda Pell", "status": "shipped"},
    ),
    (
        _EVENT,
        "The Quorum meeting is on 2041-05-06 and has 128 guests.",
        {"title": "The Quorum meeting", "date": "2041-05-06", "guests": 128},
    ),
    (
        _EVENT,
        "On 2042-07-08, 47 guests come to the Otter meeting.",
        {"title": "the Otter meeting", "date": "2042-07-08", "guests": 47},
    ),
    (
        _EVENT,
        "With 236 guests, the Quorum meeting is on 2043-01-09.",
        {"title": "the Quorum meeting", "date": "2043-01-09", "guests": 236},
    ),
    (
        _NESTED,
        "Igor Banks is 56 years old and lives in Tampa.",
        {"name": "Igor Banks", "info": {"age": 56, "city": "Tampa"}},
    ),
    (
        _NESTED,
        "From Busan comes Greta Olsen, 65 years old.",
        {"name": "Greta Olsen", "info": {"age": 65, "city": "Busan"}},
    ),
    (
        _SERVER,
        "The server quay-29 listens on port 7022 and is healthy.",
        {"host": "quay-29", "port": 7022, "healthy": True},
    ),
    (_SERVER, "On port 6005 runs quay-38, which is not healthy.", {"host": "quay-38", "port": 6005, "healthy": False}),
    (
        _BASKET,
        "It contains pens, cups and lamps and comes to 74.5 dollars.",
        {"items": ["pens", "cups", "lamps"], "total": 74.5},
    ),
    (_BASKET, "Books and paper, 38.9 dollars together.", {"items": ["books", "paper"], "total": 38.9}),
)
_NAMED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("I need name and age in JSON: Greta Olsen is 92 years old.", {"name": "Greta Olsen", "age": 92}),
    ("Igor Banks lives in Calgary. Make JSON with name and city.", {"name": "Igor Banks", "city": "Calgary"}),
    ("Put product and price into JSON. The Quill 83 costs 65.2 euros.", {"product": "Quill 83", "price": 65.2}),
    ("The server quay-47 has 29 cores. Please say host and cores, in JSON.", {"host": "quay-47", "cores": 29}),
)  # fmt: skip


def _questions() -> tuple[Question, ...]:
    """The schema stands with the sentence, or in a message of the system's."""
    questions = []
    for number, (schema, sentence, value) in enumerate(_FILLED):
        said = f"The answer has to be JSON with the schema {json.dumps(schema)}"
        if number % 2:
            questions.append(Question(sentence, is_json(value), system=said))
        else:
            questions.append(Question(f"{sentence}\n\n{said}", is_json(value)))
    return (*questions, *(Question(ask, is_json(value)) for ask, value in _NAMED))


FORMS: Final[dict[str, tuple[Question, ...]]] = {"JSON": _questions()}
