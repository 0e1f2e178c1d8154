"""Structural tags, by which vLLM's parsers bind calls, as grammars of llguidance, the backend that every pool has.

vLLM hands a tag on as it is, and its adapter for llguidance knows only those of an older form.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpu_consumers.parsing.either import BEGINS_JSON

_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""As models have learnt it. Left to choose, a small one fills what it may say with line breaks."""
_NO_SPACING: Final = {"whitespace_flexible": False}
"""As an answer has it that is bound to a schema and nothing else."""


class Inexpressible(Exception):
    """A parser binds its calls by something that has no counterpart here."""


def lark_grammar(structural_tag: str, special_tokens: Mapping[str, int]) -> str:
    """In llguidance's Lark notation. `special_tokens` are the ids of texts that no other tokens spell.

    Raises Inexpressible.
    """
    form = json.loads(structural_tag)["format"]
    writer = _Writer(special_tokens)
    return writer.grammar(writer.free_text(form) if form["type"] == "triggered_tags" else writer.expression(form))


def either_grammar(structural_tag: str | None, special_tokens: Mapping[str, int], schema: Mapping[str, Any]) -> str:
    """As `lark_grammar`, of a tag of calls that must be made: those, or a value of `schema` in their place.

    Raises Inexpressible, also where there is no tag, or the calls may begin as JSON does: `EitherParser` could not tell
    them apart.
    """
    if structural_tag is None:
        raise Inexpressible("it has none for calls")
    form = json.loads(structural_tag)["format"]
    for begin in _beginnings(form):
        if begin.lstrip()[:1] in BEGINS_JSON | {""}:
            raise Inexpressible("its calls begin as JSON does")
    writer = _Writer(special_tokens)
    calls = writer.expression(form)
    writer.rules.append(f"answer: {_json(schema, _NO_SPACING)}")
    return writer.grammar(f"{calls} | answer")


def json_grammar(schema: Mapping[str, Any]) -> str:
    """For an answer that is a value of this schema and nothing else."""
    return f"%llguidance {{}}\nstart: {_json(schema)}\n"


def _json(schema: Mapping[str, Any], spacing: Mapping[str, Any] = _SPACING) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': spacing})}"


def _beginnings(form: Mapping[str, Any]) -> Iterator[str]:
    """What a text of that form may begin with; empty where that is not known."""
    match form:
        case {"type": "const_string", "value": str(text)} | {"type": "tag", "begin": str(text)}:
            yield text
        case {"type": "sequence", "elements": [first, *_]}:
            yield from _beginnings(first)
        case {"type": "or", "elements": forms} | {"type": "tags_with_separator", "at_least_one": True, "tags": forms}:
            for each in forms:
                yield from _beginnings(each)
        case _:
            yield ""


class _Writer:
    """`rules` are those that the expressions refer to."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special_tokens = special_tokens
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self.rules: list[str] = []

    def grammar(self, start: str) -> str:
        return "\n".join(["%llguidance {}", f"start: {start}", *self.rules, ""])

    def expression(self, form: Mapping[str, Any]) -> str:
        match form:
            case {"type": "const_string", "value": str(text)}:
                return self._literal(text)
            case {"type": "json_schema", "style": "json", "json_schema": schema}:
                return _json({} if schema is True else schema)
            case {"type": "sequence", "elements": elements}:
                return " ".join(map(self.expression, elements))
            case {"type": "or", "elements": elements}:
                return self._either(map(self.expression, elements))
            case {"type": "tag", "begin": str(begin)}:
                return self._tag(form, begin)
            case {"type": "tags_with_separator"}:
                return self._separated(form)
        raise Inexpressible(f"a {form['type']} of its structural tag cannot be expressed")

    def free_text(self, form: Mapping[str, Any]) -> str:
        """Any text, in which what follows a trigger has to be one of its tags."""
        if form["at_least_one"] or form["excludes"]:
            raise Inexpressible("a structural tag that bounds the text around calls cannot be expressed")
        self.rules += [r"TEXT: /(.|\n)*/", "rest: TEXT"]
        tags = self._either([self._triggered(trigger, form["tags"]) for trigger in form["triggers"]])
        return f"{tags} | rest" if form["stop_after_first"] else f"{tags}* rest"

    def _triggered(self, trigger: str, tags: Iterable[Mapping[str, Any]]) -> str:
        bodies = [self._tag(tag, tag["begin"][len(trigger) :]) for tag in tags if tag["begin"].startswith(trigger)]
        if trigger in self._special_tokens:
            return self._rule(f"TEXT {self._literal(trigger)} {self._either(bodies)}")
        head = self._rule(f"TEXT {self._literal(trigger)}", "[lazy]")
        return self._rule(f"{head} {self._either(bodies)}")

    def _tag(self, form: Mapping[str, Any], begin: str) -> str:
        ends = [form["end"]] if isinstance(form["end"], str) else form["end"]
        if not isinstance(ends, list):
            raise Inexpressible("a structural tag that ends with a token cannot be expressed")
        end = self._either(map(self._literal, ends))
        return self._rule(f"{self._literal(begin)} {self.expression(form['content'])} {end}")

    def _separated(self, form: Mapping[str, Any]) -> str:
        tags = self._either(map(self.expression, form["tags"]))
        several = tags if form["stop_after_first"] else f"{tags} ({self._literal(form['separator'])} {tags})*"
        return several if form["at_least_one"] else f"({several})?"

    def _either(self, alternatives: Iterable[str]) -> str:
        several = list(alternatives)
        return several[0] if len(several) == 1 else f"({' | '.join(several)})"

    def _literal(self, text: str) -> str:
        parts = self._special.split(text) if self._special is not None else [text]
        return " ".join(
            f"<[{self._special_tokens[part]}]>" if part in self._special_tokens else json.dumps(part)
            for part in parts
            if part
        )

    def _rule(self, expression: str, attributes: str = "") -> str:
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{attributes}: {expression}")
        return name
