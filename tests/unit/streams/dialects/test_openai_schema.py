"""The published schema of a chat's body says what is accepted, for those who make a client of it."""

from typing import Any

from streams.dialects.openai_parameters import HINTS, NOT_OFFERED, NOT_OFFERED_WITH_A_PROMPT
from streams.dialects.openai_schema import chat_schema, completion_schema
from tests.unit.streams.dialects.recorded import RECORDED

SCHEMA = chat_schema("#/$defs/{model}")


def _types(schema: dict[str, Any]) -> set[str]:
    if "anyOf" in schema:
        return set().union(*(_types(each) for each in schema["anyOf"]))
    given = schema.get("type", schema.get("$ref", ""))
    return set(given) if isinstance(given, list) else {given}


def test_what_may_be_one_string_is_published_so() -> None:
    assert _types(SCHEMA["properties"]["stop"]) == {"string", "array", "null"}
    assert _types(SCHEMA["$defs"]["ChatMessage"]["properties"]["content"]) == {"string", "array"}


def test_a_raw_prompt_is_published_in_its_four_forms() -> None:
    published = completion_schema("#/$defs/{model}")
    assert published["required"] == ["model", "prompt"]
    forms = published["properties"]["prompt"]["anyOf"]
    assert [(form["type"], form.get("items", {}).get("type")) for form in forms] == [
        ("string", None), ("array", "integer"), ("array", "string"), ("array", "array"),
    ]  # fmt: skip
    assert [form.get("maxItems") for form in forms[2:]] == [1, 1]
    for name, row in NOT_OFFERED_WITH_A_PROMPT.items():
        assert published["properties"][name]["enum"] == [None, *row.asks_for_nothing]


def test_null_asks_for_the_default_of_all_but_what_must_be_there() -> None:
    assert SCHEMA["required"] == ["model", "messages"]
    for name, published in SCHEMA["properties"].items():
        nullable = None in published["enum"] if "enum" in published else "null" in _types(published)
        assert nullable == (name not in ("model", "messages")), name


def test_what_is_not_offered_is_published_with_the_values_that_ask_for_nothing() -> None:
    for name, row in NOT_OFFERED.items():
        assert SCHEMA["properties"][name]["enum"] == [None, *row.asks_for_nothing]
        assert row.why in SCHEMA["properties"][name]["description"]
    for name in HINTS:
        assert "no effect" in SCHEMA["properties"][name]["description"]


def test_every_field_that_a_recorded_client_sends_is_published() -> None:
    sent = {name for recorded in RECORDED for name, value in recorded["body"].items() if value is not None}
    assert sent <= SCHEMA["properties"].keys()
