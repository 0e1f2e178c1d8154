"""Structural tags in llguidance's notation; what it accepts then stands beside vLLM's parsers."""

import json
from typing import Any

import pytest

from gpu_consumers.parsing.grammars import Inexpressible, either_grammar, lark_grammar

ANY = '%json {"x-guidance": {"whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?"}}'


def tag(begin: str = "<c>f", end: Any = "</c>", **content: Any) -> dict[str, Any]:
    form = content or {"type": "json_schema", "style": "json", "json_schema": True}
    return {"type": "tag", "begin": begin, "content": form, "end": end}


def separated(*tags: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "tags_with_separator", "tags": list(tags), "separator": "", "at_least_one": True,
        "stop_after_first": False, **more,
    }  # fmt: skip


def lark(form: dict[str, Any], **special_tokens: int) -> list[str]:
    text = lark_grammar(json.dumps({"type": "structural_tag", "format": form}), special_tokens)
    assert text.startswith("%llguidance {}\n")
    return text.splitlines()[1:]


def test_calls_one_after_the_other() -> None:
    assert lark(separated(tag(), tag("<c>g", ["</c>", "!"]))) == [
        "start: (part_0 | part_1) ( (part_0 | part_1))*",
        f'part_0: "<c>f" {ANY} "</c>"',
        f'part_1: "<c>g" {ANY} ("</c>" | "!")',
    ]
    assert lark(separated(tag(), stop_after_first=True))[0] == "start: part_0"
    assert lark(separated(tag(), at_least_one=False, separator=", "))[0] == 'start: (part_0 (", " part_0)*)?'


def test_special_tokens_are_named_by_their_ids() -> None:
    special = {"<c>": 7, "<c>f": 8}
    text = lark_grammar(json.dumps({"format": tag("<c>f<c> g")}), special)
    assert '<[8]> <[7]> " g" %json' in text


def test_text_with_calls_in_it() -> None:
    form = {
        "type": "triggered_tags", "triggers": ["<c>"], "tags": [tag(), tag("<c>g")], "at_least_one": False,
        "stop_after_first": False, "excludes": [],
    }  # fmt: skip
    assert lark(form) == [
        "start: part_5* rest",
        r"TEXT: /(.|\n)*/",
        "rest: TEXT",
        f'part_2: "f" {ANY} "</c>"',
        f'part_3: "g" {ANY} "</c>"',
        'part_4[lazy]: TEXT "<c>"',
        "part_5: part_4 (part_2 | part_3)",
    ]
    assert lark({**form, "stop_after_first": True})[0] == "start: part_5 | rest"
    with pytest.raises(Inexpressible):
        lark({**form, "at_least_one": True})


def test_what_has_no_counterpart_is_refused() -> None:
    for form in (
        {"type": "any_tokens"},
        tag(type="json_schema", style="qwen_xml", json_schema={}),
        tag(end={"type": "token", "token": 3}),
        {**tag(), "begin": {"type": "token", "token": 3}},
    ):
        with pytest.raises(Inexpressible):
            lark(form)


CITY = {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
HERMES = (
    tag('<c>\n{"name": "f", "arguments": ', "}\n</c>", type="json_schema", style="json", json_schema=CITY),
    tag(
        '<c>\n{"name": "g", "arguments": ', "}\n</c>", type="json_schema", style="json", json_schema={"type": "object"}
    ),
)
F = '<c>\n{"name": "f", "arguments": {"city": "Paris"}}\n</c>'
G = '<c>\n{"name": "g", "arguments": {"a": [1, {}]}}\n</c>'


def either(*forms: dict[str, Any], schema: dict[str, Any] = CITY, **more: Any) -> str:
    return either_grammar(json.dumps({"format": separated(*forms, **more)}), {}, schema)


@pytest.mark.parametrize(
    ("says", "accepted"),
    [
        (F, True),
        (G + F + G, True),
        ('{"city":"Rome"}', True),
        ("", False),
        ("Well.", False),
        ('{"city":"Berlin"}', False),
        ('{"city":"Rome"} ', False),
        ('{"city": "Rome"}', False),
        ('{"city":"Rome"}' + F, False),
        (F + '{"city":"Rome"}', False),
        ("Well. " + F, False),
        (F.replace("Paris", "Berlin"), False),
        (G.replace('{"a": [1, {}]}', "[]"), False),
        (F.replace('"f"', '"h"'), False),
        (F[:-4], False),
    ],
)
def test_what_an_answer_says_that_is_calls_or_fits_a_schema(says: str, accepted: bool) -> None:
    assert _accepts(either(*HERMES), says) == accepted


def test_a_call_that_has_to_be_alone_is() -> None:
    grammar = either(*HERMES, stop_after_first=True)
    assert [_accepts(grammar, says) for says in (F, F + G, '{"city":"Rome"}')] == [True, False, True]


def test_a_schema_stays_apart_from_those_of_the_calls() -> None:
    schema = {"$ref": "#/$defs/city", "$defs": {"city": {"const": "<c>"}}, "x-guidance": {"whitespace_flexible": True}}
    grammar = either(*HERMES, schema=schema)
    assert [_accepts(grammar, says) for says in ('"<c>"', ' "<c>"', F, "1")] == [True, False, True, False]


@pytest.mark.parametrize("begin", ['{"name": "f"', '\n[{"name"', '"f', "5", "true", "", " "])
def test_calls_that_begin_as_json_does_cannot_stand_beside_it(begin: str) -> None:
    with pytest.raises(Inexpressible):
        either(tag("<c>"), tag(begin))
    with pytest.raises(Inexpressible):
        either_grammar(None, {}, CITY)


def _accepts(grammar: str, says: str) -> bool:
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error()
    tokens = tokenizer.tokenize_str(says)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())
