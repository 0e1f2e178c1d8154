"""What the simulated engine says where an answer is bound: always the same, small, and valid by others' measure."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_consumers.engines import simulated_text
from gpu_consumers.engines.port import EngineDelta, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.engines.simulated_regex import MAX_STEPS, CannotSay, Steps, shortest_match
from gpu_consumers.engines.simulated_structure import MAX_CHARS, MAX_PARTS, instance_of
from gpu_consumers.engines.simulated_text import SENTENCES, Vocabulary
from schemas.request import Sampling
from schemas.structure import StructuredOutputs
from streams.engine_args import SimulatedEngineSettings
from tests.unit.gpu_consumers.engines.simulated_runs import run

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with vLLM")

NODE: dict[str, Any] = {
    "type": "object", "required": ["name", "next"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({}, None),
        ({"type": "object"}, {}),
        ({"properties": {"a": {"type": "boolean"}, "b": {}}, "required": ["a"]}, {"a": True}),
        ({"type": "object", "required": ["x"], "additionalProperties": {"type": "null"}}, {"x": None}),
        ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "minProperties": 1}, {"a": 1}),
        ({"type": "array", "items": {"type": "integer", "minimum": 3}, "minItems": 2}, [3, 3]),
        ({"type": "array", "prefixItems": [{"const": "a"}], "items": {"const": "b"}, "minItems": 3}, ["a", "b", "b"]),
        ({"type": "string"}, "text"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "minLength": 6}, "textaa"),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, "AA-0"),
        ({"type": "string", "format": "date"}, "2026-01-02"),
        ({"type": ["string", "null"]}, "text"),
        ({"type": "string", "enum": ["red", "green"]}, "red"),
        ({"const": {"deep": [1]}}, {"deep": [1]}),
        ({"type": "integer", "exclusiveMinimum": 4, "maximum": 5}, 5),
        ({"type": "integer", "maximum": -3, "multipleOf": 4}, -4),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "number", "minimum": 0.1, "maximum": 0.2}, 0.1),
        ({"anyOf": [{"not": {}}, {"type": "boolean"}]}, True),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}], "title": "Either"}, 0),
        ({"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 1}}}], "type": "object"}, {"a": 1}),
        (
            {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 7}}}],
             "type": "object", "required": ["a"]},
            {"a": 7},
        ),
        ({"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}, {"name": "text", "next": None}),
        ({"$defs": {"a/b": {"const": 1}}, "$ref": "#/$defs/a~1b"}, 1),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_the_smallest_instance_satisfies_its_schema(schema: dict[str, Any], instance: object) -> None:
    assert instance_of(schema) == instance
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(instance)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": MAX_PARTS},
        {"type": "array", "minItems": 10**12},
        {"type": "array", "minItems": 4_000, "items": {"const": "x" * 1_000}},
        {"type": "array", "minItems": 4_000, "items": {"required": ["x" * 1_000], "type": "object"}},
        {"type": "array", "minItems": 2, "uniqueItems": True},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "string", "minLength": MAX_CHARS + 1},
        {"type": "string", "minLength": 5, "maxLength": 4},
        {"type": "string", "format": "color"},
        {"type": "string", "pattern": "(?=a)b"},
        {"type": "object", "minProperties": 10**12},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "integer", "minimum": 1, "maximum": 0},
        {"type": "number", "exclusiveMinimum": True},
        {"type": "animal"},
        {"type": 5}, {"enum": []}, {"anyOf": []}, {"anyOf": 5}, {"required": 7, "type": "object"}, {"$ref": 5},
        {"$ref": "#/nowhere"}, {"$ref": "#"}, {"not": {}}, {"allOf": [False]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"required": ["b"], "properties": {"b": {"$ref": "#"}}}}},
        {"$ref": "#/$defs/0", "$defs": {str(at): {"$ref": f"#/$defs/{at + 1}"} for at in range(3_000)}},
        {"$ref": "#/$defs/0",
         "$defs": {str(at): {"type": "array", "minItems": 2, "items": {"$ref": f"#/$defs/{at + 1}"}}
                   for at in range(60)} | {"60": {}}},
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_it_cannot_satisfy_or_is_not_small_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(CannotSay):
        instance_of(schema)


NUMBERS = st.integers(-20, 20) | st.floats(-20, 20, width=16)
LEAVES = (
    st.sampled_from([{}, {"type": "boolean"}, {"type": "null"}, {"const": "é"}, {"enum": [2, "b"]}])
    | st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": st.integers(0, 9), "maxLength": st.integers(0, 9)}
    )
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["integer", "number"])},
        optional={
            "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
            "multipleOf": st.integers(1, 7),
        },
    )
)  # fmt: skip


def _composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "b", "name2"])
    return (
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "properties": st.dictionaries(names, inner),
                "required": st.lists(names, unique=True),
                "additionalProperties": inner | st.booleans(),
                "minProperties": st.integers(0, 4),
                "maxProperties": st.integers(0, 4),
            },
        )
        | st.fixed_dictionaries(
            {"type": st.just("array")},
            optional={
                "items": inner,
                "prefixItems": st.lists(inner, min_size=1, max_size=3),
                "minItems": st.integers(0, 3),
                "maxItems": st.integers(0, 3),
            },
        )
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
        | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
        | st.just({"$ref": "#/$defs/shared"})
    )


@settings(max_examples=200)
@given(schema=st.recursive(LEAVES, _composed, max_leaves=12), shared=LEAVES)
def test_whatever_it_says_is_valid(schema: dict[str, Any], shared: dict[str, Any]) -> None:
    document = {"allOf": [schema], "$defs": {"shared": shared}}
    try:
        instance = instance_of(document)
    except CannotSay:
        assume(False)
    jsonschema.Draft202012Validator(document).validate(instance)
    assert instance_of(document) == instance


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yes|no", "yes"), ("[a-c]{2,5}x?", "aa"), (r"\d{3}-\d{4}", "000-0000"), (r"^\w+@\w+\.com$", "a@a.com"),
        ("[^a]", "0"), (r"[^\w\s]", "-"), ("(a|b)*c", "c"), ("(?:ab){3}", "ababab"), (r"\S\D\W", "aa "), (".", "a"),
        ("é+", "é"),
    ],
)  # fmt: skip
def test_a_regular_expression_is_answered_by_a_short_match(pattern: str, text: str) -> None:
    assert shortest_match(pattern, 100, Steps()) == text
    assert re.fullmatch(pattern, text)


def test_nothing_is_repeated_in_vain() -> None:
    assert shortest_match("(){1000000000}a", 100, Steps()) == "a"


@pytest.mark.parametrize(
    "pattern", ["(", "a{101}", "(a{1000}){1000}", r"(a)\1", "(?=a)a", r"\bword", "a^b", "$a", "(" * 4_096, r"[^\s\S]"]
)
def test_other_expressions_are_refused(pattern: str) -> None:
    with pytest.raises(CannotSay):
        shortest_match(pattern, 100, Steps())


def test_a_class_is_looked_at_once_however_often_it_is_repeated() -> None:
    members = "".join(map(chr, range(0x4E00, 0x4E00 + 3_900)))
    steps = Steps()
    assert shortest_match(f"[^{members}]{{{MAX_CHARS}}}", MAX_CHARS, steps) == "a" * MAX_CHARS
    assert MAX_STEPS - steps.left < 3 * len(members) + 3 * MAX_CHARS


def test_an_expression_that_says_little_and_takes_long_is_refused() -> None:
    with pytest.raises(CannotSay, match="too long"):
        shortest_match(f"(?:{'()' * 1_900}a){{{MAX_CHARS}}}", MAX_CHARS, Steps())


def test_all_expressions_of_a_schema_together_may_take_as_long_as_one() -> None:
    pattern = "".join(map(chr, range(0x4E00, 0x4E00 + 1_000)))
    names = [f"{number}" for number in range(200)]
    schema = {
        "type": "object", "required": names, "additionalProperties": {"type": "string", "pattern": f"[^{pattern}]"}
    }  # fmt: skip
    with pytest.raises(CannotSay, match="too long"):
        instance_of(schema)
    assert len(instance_of({**schema, "required": names[:50]})) == 50


def test_long_blanks_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Counted:
        def match(self, text: str, position: int) -> re.Match[str] | None:
            searched.append(position)
            return pieces.match(text, position)

    pieces = simulated_text._PIECE
    monkeypatch.setattr(simulated_text, "_PIECE", Counted())
    blanks = " " * MAX_CHARS
    spelt = Vocabulary().spell(f'"{blanks}"')
    assert "".join(spelt.texts) == f'"{blanks}"'
    assert len(searched) == 2


def answer(structure: StructuredOutputs, **sampling: Any) -> list[EngineDelta]:
    core = SimulatedCore(SimulatedEngineSettings())
    asked = Sampling(structured_outputs=structure, **{name: sampling[name] for name in sampling.keys() - {"tokens"}})
    core.submit(EngineRequest("r", [1, 2, 3], asked, sampling.get("tokens", 500)), 0.0)
    return run(core)


def test_an_answer_ends_where_its_structure_does() -> None:
    schema = {"type": "object", "properties": {"fox": {"type": "string"}, "🦊": {}}, "required": ["fox", "🦊"]}
    deltas = answer(StructuredOutputs(json=schema), bad_words=["fox"], allowed_token_ids=[3])
    assert json.loads("".join(delta.text for delta in deltas)) == {"fox": "text", "🦊": None}
    assert [delta.finish for delta in deltas if delta.finish] == ["stop"]
    assert all(len(delta.token_ids) == 1 for delta in deltas)


def test_an_answer_may_be_cut_as_any_other() -> None:
    deltas = answer(StructuredOutputs(json_object=True), tokens=3)
    assert (len(deltas), deltas[-1].finish) == (3, "length")


def test_a_choice_is_drawn_by_the_seed() -> None:
    choices = [f"choice {number}" for number in range(20)]
    said = ["".join(delta.text for delta in answer(StructuredOutputs(choice=choices), seed=seed)) for seed in range(8)]
    assert set(said) <= set(choices)
    assert len(set(said)) > 1
    assert said[0] == "".join(delta.text for delta in answer(StructuredOutputs(choice=choices), seed=0))


def test_a_grammar_is_refused_by_name() -> None:
    [refused] = answer(StructuredOutputs(grammar='start: "a"'))
    assert (refused.refused_param, refused.error) == ("structured_outputs", "a grammar is beyond this engine")


def test_nothing_is_learned_from_a_client() -> None:
    vocabulary = Vocabulary()
    told = vocabulary.tokenize(SENTENCES[0])
    spelt = vocabulary.spell('{"quagga 🦊": " fox"}')
    assert vocabulary.decode(spelt.token_ids) == "".join(spelt.texts) == '{"quagga 🦊": " fox"}'
    assert max(spelt.token_ids) <= max(told.token_ids)
    assert vocabulary.tokenize(SENTENCES[0]).token_ids == told.token_ids
