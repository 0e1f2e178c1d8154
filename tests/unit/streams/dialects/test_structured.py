"""An answer may be bound to a structure: asked for in several ways, told to engines in one, and bounded before."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.lib._parsing import type_to_response_format_param

from schemas.endings import EndingCode
from schemas.request import Sampling
from schemas.structure import MAX_CHOICES, StructuredOutputs
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_text_completion import parse_completion_request
from streams.dialects.schema_bounds import MAX_CHARS, MAX_DEPTH, MAX_PROPERTIES, MAX_VALUES, check_schema
from streams.dialects.schema_bounds import MAX_CHOICES as MAX_ENUMERATED
from streams.dialects.structured import structure_by_schema

HELLO: Mapping[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]
BY_SCHEMA = StructuredOutputs(json=SCHEMA)


def json_schema(schema: object, **more: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}}


@pytest.mark.parametrize(
    ("asked", "structure"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "text", "json_schema": None}, "guided_json": None}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
        (json_schema(SCHEMA), BY_SCHEMA),
        (json_schema(SCHEMA, strict=True, description="A place."), BY_SCHEMA),
        (json_schema(SCHEMA, strict=None, description=None), BY_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, BY_SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, BY_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}}, BY_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, StructuredOutputs(json_object=True)),
        ({"structured_outputs": {"regex": "[a-z]+"}}, StructuredOutputs(regex="[a-z]+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, StructuredOutputs(choice=["yes", "no"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputs(grammar='start: "a"')),
        ({"guided_json": SCHEMA}, BY_SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, BY_SCHEMA),
        ({"guided_regex": "a|b"}, StructuredOutputs(regex="a|b")),
        ({"guided_choice": ["yes"]}, StructuredOutputs(choice=["yes"])),
        ({"guided_grammar": 'start: "a"'}, StructuredOutputs(grammar='start: "a"')),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, StructuredOutputs(regex="a")),
    ],
    ids=lambda value: str(value)[:60],
)
def test_every_way_to_ask_says_the_same_to_the_engine(asked: dict[str, Any], structure: StructuredOutputs) -> None:
    assert parse_chat_request({**HELLO, **asked}).sampling == Sampling(structured_outputs=structure)
    completion = parse_completion_request({"model": "m", "prompt": "Hello", "max_tokens": 9, **asked})
    assert completion.sampling == Sampling(structured_outputs=structure, max_tokens=9)


class Train(pydantic.BaseModel):
    kind: Literal["train"]
    number: int = pydantic.Field(ge=1)


class Walk(pydantic.BaseModel):
    kind: Literal["walk"]


class Stop(pydantic.BaseModel):
    """A list that is linked by itself."""

    name: str
    next: "Stop | None" = None


class Journey(pydantic.BaseModel):
    stops: list[Stop]
    by: Train | Walk = pydantic.Field(discriminator="kind")
    tags: dict[str, str | None] = {}


@pytest.mark.parametrize("kind", [Stop, Journey])
def test_what_openais_package_makes_of_a_class_is_taken_as_it_is(kind: type[pydantic.BaseModel]) -> None:
    asked: Any = type_to_response_format_param(kind)
    chat = parse_chat_request({**HELLO, "response_format": asked})
    assert chat.sampling.structured_outputs == StructuredOutputs(json=asked["json_schema"]["schema"])


JSON_OBJECT = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_up"}}])
@pytest.mark.parametrize("asked", [json_schema(SCHEMA), JSON_OBJECT], ids=["schema", "object"])
def test_a_call_that_must_be_made_leaves_no_text_to_bind(asked: dict[str, Any], choice: object) -> None:
    chat = parse_chat_request({**HELLO, **asked, "tools": TOOLS, "tool_choice": choice})
    assert chat.tools
    assert chat.sampling == parse_chat_request(HELLO).sampling


@pytest.mark.parametrize("asked", [json_schema(SCHEMA), JSON_OBJECT, {"guided_json": SCHEMA}], ids=str)
def test_an_answer_may_call_tools_and_is_bound_where_it_calls_none(asked: dict[str, Any]) -> None:
    chat = parse_chat_request({**HELLO, **asked, "tools": TOOLS})
    assert chat.tools
    assert chat.tool_choice is not None
    assert chat.tool_choice.mode == "auto"
    assert chat.sampling == parse_chat_request({**HELLO, **asked}).sampling


def test_tools_that_are_not_to_be_called_may_stand_beside_a_structure() -> None:
    chat = parse_chat_request({**HELLO, **json_schema(SCHEMA), "tools": TOOLS, "tool_choice": "none"})
    assert chat.sampling.structured_outputs == BY_SCHEMA


def test_a_record_of_who_does_not_ask_stays_as_it_was() -> None:
    assert "structured" not in Sampling().model_dump_json()


@pytest.mark.parametrize("structure", [BY_SCHEMA, StructuredOutputs(choice=["a", "b"])], ids=["schema", "choice"])
def test_a_record_keeps_what_was_asked(structure: StructuredOutputs) -> None:
    sampling = Sampling(structured_outputs=structure)
    kind = "json" if structure.json_schema else "choice"
    assert list(json.loads(sampling.model_dump_json())["structured_outputs"]) == [kind]
    assert Sampling.model_validate_json(sampling.model_dump_json()) == sampling


@pytest.mark.parametrize(
    ("asked", "param", "why"),
    [
        ({"response_format": {}}, "response_format.type", "Field required"),
        ({"response_format": "json"}, "response_format", "valid dictionary"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Field required"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
         "response_format.json_schema.schema", "Field required"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
         "response_format.json_schema.name", "Field required"),
        (json_schema("city"), "response_format.json_schema.schema", "should hold a JSON object"),
        (json_schema(["city"]), "response_format.json_schema.schema", "valid dictionary"),
        (json_schema(SCHEMA, strict="yes"), "response_format.json_schema.strict", "boolean"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": SCHEMA}}},
         "response_format.json_schema", "Only a format of type json_schema"),
        ({"structured_outputs": {}}, "structured_outputs", "Exactly one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "Exactly one of"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "True"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "should hold a JSON object"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1"),
        ({"guided_regex": "a\x00"}, "guided_regex", "pattern"),
        ({"guided_regex": "a" * 4_097}, "guided_regex", "at most 4096"),
        ({"guided_grammar": " \n"}, "guided_grammar", "pattern"),
        ({"guided_grammar": "a" * 16_385}, "guided_grammar", "at most 16384"),
        ({"guided_grammar": "start: %json {}"}, "guided_grammar", "no JSON Schema"),
        ({"guided_grammar": ' {"grammars": []}'}, "guided_grammar", "no JSON Schema"),
        ({"guided_choice": []}, "guided_choice", "at least 1"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]", "valid string"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice", f"at most {MAX_CHOICES}"),
        ({"guided_choice": ["a" * 1_001]}, "guided_choice[0]", "at most 1000"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex as well"),
        ({**json_schema(SCHEMA), "guided_json": SCHEMA}, "guided_json", "response_format as well"),
        ({**json_schema(SCHEMA), "ignore_eos": True}, "ignore_eos", "says where the answer ends"),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens", "says where the answer ends"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_name(asked: dict[str, Any], param: str, why: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, **asked})
    assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)
    assert refused.value.message.startswith(f"{param}: ")
    assert why in refused.value.message


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "backend": "x"}}, "structured_outputs.backend"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format.schema"),
        (json_schema(SCHEMA, examples=[]), "response_format.json_schema.examples"),
        (json_schema(SCHEMA, strict=True, description="x", examples=[]), "response_format.json_schema.examples"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
        ({"guided_regex": "a", "tools": TOOLS}, "tools"),
        ({"guided_choice": ["a"], "tools": TOOLS, "tool_choice": "required"}, "tools"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_what_is_not_offered_is_refused_by_name(asked: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, **asked})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, param)


def nested(levels: int, inner: object = True) -> dict[str, Any]:
    """That many objects in each other."""
    schema: Any = inner
    for _ in range(levels):
        schema = {"items": schema}
    return schema  # type: ignore[no-any-return]


def patterns(count: int) -> list[dict[str, Any]]:
    return [{"pattern": f"^.*a.{{{number}}}b.*$"} for number in range(count)]


def properties(count: int) -> dict[str, Any]:
    return {"properties": {f"p{number}": True for number in range(count)}}


TOO_MUCH: dict[str, tuple[dict[str, Any], str]] = {
    "deep": (nested(MAX_DEPTH + 1), "nest at most 64"),
    "very deep": (nested(900), "nest at most 64"),
    "deep data": ({"const": nested(MAX_DEPTH)}, "nest at most 64"),
    "deep in lists": ({"anyOf": [{"anyOf": [nested(MAX_DEPTH - 3)]}]}, "nest at most 64"),
    "a megabyte of text": ({"description": "x" * 1_000_000}, "100,000 characters"),
    "a megabyte of names": ({"x" * 1_000_000: True}, "100,000 characters"),
    "long names together": ({"$defs": {"x" * 60_000: {"y" * 60_000: 1}}}, "100,000 characters"),
    "a megabyte of figures": ({"$defs": {f"p{n}": {"minimum": 10**300} for n in range(400)}}, "100,000 characters"),
    "many values": ({"examples": [0] * (MAX_VALUES + 1)}, "10,000 values"),
    "many properties": (properties(MAX_PROPERTIES + 1), "2,000 properties"),
    "many properties together": ({"anyOf": [properties(MAX_PROPERTIES // 2 + 1)] * 2}, "2,000 properties"),
    "a large enumeration": ({"enum": list(range(MAX_ENUMERATED + 1))}, "2,000 values in enumerations"),
    "enumerations together": ({"anyOf": [{"enum": ["x"] * 1_001}] * 2}, "2,000 values in enumerations"),
    "a billion items": ({"type": "array", "maxItems": 10**9}, "10,000 items"),
    "a float of items": ({"type": "array", "maxItems": 1e300}, "10,000 items"),
    "items together": ({"anyOf": [{"minItems": 5_000}, {"maxItems": 5_001}]}, "10,000 items"),
    "a large multiple": ({"multipleOf": 99_999_989}, "multiply to less than 10,000"),
    "a fine multiple": ({"multipleOf": 0.0123457}, "multiply to less than 10,000"),
    "multiples together": ({"allOf": [{"multipleOf": 101}, {"multipleOf": 103}]}, "multiply to less than 10,000"),
    "a reference elsewhere": ({"$ref": "http://example.org/schema"}, "$ref should refer"),
    "a reference to a file": ({"items": {"$ref": "other.json#/a"}}, "$ref should refer"),
    "another reference elsewhere": ({"$defs": {"a": {"$dynamicRef": "b#c"}}}, "$dynamicRef should refer"),
    "patterns together": ({"allOf": patterns(9)}, "at most 8 different patterns"),
    "patterns by reference": (
        {"$defs": {f"d{n}": {**each, "$ref": f"#/$defs/d{n + 1}"} for n, each in enumerate(patterns(9))}},
        "at most 8 different patterns",
    ),
    "patterns beside choices": ({"anyOf": patterns(8), "pattern": "z"}, "at most 8 different patterns"),
    "a reference to what is data": ({"default": {"maxItems": 10**9}, "$ref": "#/default"}, "nothing within default"),
    "a reference within data": ({"enum": [[{}]], "items": {"$ref": "#/enum/0/0"}}, "nothing within enum"),
    "an escaped reference": ({"examples": [{}], "$ref": "#/%65xamples/0"}, "nothing within examples"),
}


@pytest.mark.parametrize(("schema", "why"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_schema_that_is_too_large_is_refused_wherever_it_stands(schema: dict[str, Any], why: str) -> None:
    for asked, param in (
        (json_schema(schema), "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": schema}}, "structured_outputs.json"),
        ({"guided_json": schema}, "guided_json"),
    ):
        with pytest.raises(RequestError) as refused:
            parse_chat_request({**HELLO, **asked})
        assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)
        assert why in refused.value.message
    with pytest.raises(RequestError) as refused:
        structure_by_schema(schema, "text.format.schema")
    assert refused.value.param == "text.format.schema"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        nested(MAX_DEPTH),
        properties(MAX_PROPERTIES),
        {"enum": list(range(MAX_ENUMERATED))},
        {"description": "x" * (MAX_CHARS - len("description"))},
        {
            "minItems": -1,
            "maxItems": 10_000,
            "properties": {"minItems": {}, "multipleOf": {"const": {"maxItems": 10**9}}},
        },
        {"anyOf": [{"multipleOf": step} for step in (0.01, 1e-05, 10**12, 0.25, 7, 0.07, -60, 0)]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#"}}}},
        {"properties": {"$ref": {"type": "string"}, "enum": {"type": "string"}}, "$defs": {"$ref": {"items": True}}},
        {"const": {"$ref": "http://example.org"}, "enum": [{"$ref": "x"}], "default": {"enum": [0] * 3_000}},
        {"allOf": patterns(8) * 2},
        {"properties": {f"p{n}": {"anyOf": [each, {"type": "null"}]} for n, each in enumerate(patterns(20))}},
        {
            "$ref": "#/$defs/default",
            "$defs": {"default": {"properties": {"enum": {}}}, "a": {"$ref": "#/properties/enum"}},
        },
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_just_fits_or_only_looks_like_a_keyword_is_taken(schema: dict[str, Any]) -> None:
    assert structure_by_schema(schema, "x") == StructuredOutputs(json=schema)


def steps(work: Callable[[], object]) -> int:
    """Calls of functions, whether Python's or C's, until `work` has ended or refused."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        with suppress(ValueError):
            work()
    finally:
        sys.setprofile(None)
    return calls


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["#", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["properties", "enum", "$defs", "$ref", "anyOf", "const", "items", "a", "b"]), inner,
            max_size=4,
        )
    ),
    max_leaves=40,
)  # fmt: skip


@given(schema=st.dictionaries(st.sampled_from(["properties", "enum", "$ref", "items"]), VALUES), wide=st.integers(0, 5))
@example(schema=nested(40), wide=5)
def test_no_schema_takes_more_steps_than_it_has_values_or_may_have(schema: dict[str, Any], wide: int) -> None:
    """The same part again and again is a tree that has `4 ** wide` of it."""
    for _ in range(wide):
        schema = {"anyOf": [schema] * 4}
    values = min(1 + sum(1 for _ in parts(schema)), MAX_VALUES + 1)
    assert steps(lambda: check_schema(schema)) <= 30 + 30 * values


def parts(value: object) -> Any:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield each
        yield from parts(each)


def test_of_hundred_thousands_of_members_few_are_looked_at() -> None:
    many: dict[str, Any] = {f"p{number}": {} for number in range(200_000)}
    schemas: list[dict[str, Any]] = [{"properties": many}, {"anyOf": [{}] * 200_000}, {"enum": [0] * 200_000}]
    for schema in [many, *schemas]:
        assert steps(lambda schema=schema: check_schema(schema)) < 50  # type: ignore[misc]


def test_a_truth_value_is_no_number() -> None:
    check_schema({"multipleOf": True, "minItems": False})
