"""A model's own chat template, which writes what stands around the texts of clients and never sees one of them.

It is rendered with a placeholder for each: contents, names, descriptions, what schemas and arguments say. It may move
these, join them, compare them and ask for the JSON of what holds them. So what of a prompt is a client's is known
whatever it says, and what a template writes itself is its author's.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson
from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.endings import MAX_MESSAGE_CHARS
from schemas.request import Message, Tool, ToolCall
from streams.json_values import count_values, has_more_values

MAX_ARGUMENTS_VALUES = 32_768
"""Of all calls of a chat: a template gets the arguments of further ones as the text that they are."""
MAX_ARGUMENTS_DEPTH = 64
_PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")
_BROKEN_PLACEHOLDER = re.compile(r"[\ue000\ue001]|\\ue00[01]")
"""Of a text that was cut, or that Python printed within a list or an object: what it stands for would be missing."""
_PLACE_TO_FILL = re.compile(r"%[a-z]|\{[^{}]*\}")
"""By the template's `format`."""
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_WORDS_OF_SCHEMAS = frozenset((
    "type", "object", "array", "string", "number", "integer", "boolean", "null", "properties", "required", "items",
    "enum", "title", "description", "default", "const", "format", "pattern", "minimum", "maximum", "minLength",
    "maxLength", "minItems", "maxItems", "uniqueItems", "additionalProperties", "anyOf", "oneOf", "allOf", "not",
    "nullable", "examples", "$ref", "$defs", "definitions",
))  # fmt: skip
"""What templates ask schemas for: said as it is, because it is the same whoever says it."""


def tool_object(tool: Tool) -> dict[str, Any]:
    """As templates know it. Without parameters it takes none."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": {**function, "parameters": tool.parameters or _NO_PARAMETERS}}


def arguments_of(call: ToolCall, most_values: int = MAX_ARGUMENTS_VALUES) -> dict[str, Any] | str:
    """The object that a call's arguments are the JSON of, none being an empty one; else their text."""
    text = call.arguments or "{}"
    if has_more_values(text, most_values):
        return text
    try:
        # orjson is strict, about lone surrogates too; the second pass keeps integers exact.
        orjson.loads(text)
        arguments = json.loads(text)
        count_values(arguments, most_values, MAX_ARGUMENTS_DEPTH)
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


@dataclass(frozen=True, slots=True)
class _Json:
    """What a template wants the JSON of, with placeholders in it."""

    value: object
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What one rendering wants the JSON of: texts that come behind the `given` ones."""

    given: int
    texts: list[_Json] = field(default_factory=list)

    def put(self, text: _Json) -> str:
        self.texts.append(text)
        return _placeholder(self.given + len(self.texts) - 1)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What the template wrote before each text, with the text's index, and behind the last one."""

    before: Sequence[tuple[str, int]]
    end: str
    given: int
    asked: Sequence[_Json]

    def texts(self, given: Sequence[str]) -> Sequence[str]:
        """All that there are indices of: those that were `given`, and JSON of them. Raises jinja2.TemplateError."""
        if not self.asked:
            return given
        texts = list(given)
        for each in self.asked:
            try:
                texts.append(json.dumps(_filled(each.value, texts), **each.options))
            except (TypeError, ValueError) as error:
                raise TemplateError(f"it asks for JSON of what has none: {type(error).__name__}") from error
        return texts

    def shown(self) -> set[int]:
        """Which texts stand in it, be it in others."""
        found: set[int] = set()
        waiting = [index for _, index in self.before]
        while waiting:
            index = waiting.pop()
            if index not in found:
                found.add(index)
                if index >= self.given:
                    waiting += _placed_in(self.asked[index - self.given].value)
        return found


class _OwnPlaceholder(str):
    """Of a text that has to be shown itself, not another that says the same: templates find both equal."""

    __slots__ = ("_shared",)
    _shared: str

    def __new__(cls, own: str, shared: str) -> "_OwnPlaceholder":
        placeholder = super().__new__(cls, own)
        placeholder._shared = shared
        return placeholder

    def __eq__(self, other: object) -> bool:
        return self._shared == (other._shared if isinstance(other, _OwnPlaceholder) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._shared)


class _Texts:
    """The texts of a chat, each of them once; those that have to be shown `owed` wherever they stand."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.owed: list[int] = []
        self._index: dict[str, int] = {}
        self._values_left = MAX_ARGUMENTS_VALUES

    def place(self, text: str) -> str:
        index = self._index.setdefault(text, len(self.all))
        if index == len(self.all):
            self.all.append(text)
        return _placeholder(index)

    def place_owed(self, text: str) -> str:
        shared = self.place(text)
        self.owed.append(len(self.all))
        self.all.append(text)
        return _OwnPlaceholder(_placeholder(self.owed[-1]), shared)

    def arguments(self, call: ToolCall) -> object:
        arguments = arguments_of(call, self._values_left)
        if isinstance(arguments, dict):
            self._values_left -= count_values(arguments, self._values_left, MAX_ARGUMENTS_DEPTH)
        return self.placed(arguments)

    def placed(self, value: object) -> object:
        """A JSON value with placeholders in the place of its texts."""
        match value:
            case str():
                return value if value in _WORDS_OF_SCHEMAS else self.place(value)
            case list():
                return [self.placed(each) for each in value]
            case Mapping():
                return {self.placed(name): self.placed(each) for name, each in value.items()}
        return value


class ChatTemplate:
    """Renders as Hugging Face's libraries do, so that templates written for them work."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_template_error
        environment.filters["tojson"] = _tojson
        self._template: Template = environment.from_string(source)
        self._own_texts = _own_texts(environment.parse(source))

    def may_write(self, marker: str) -> bool:
        """Whether the template writes it, be it composed of a text of its own and a role, in whichever case."""
        wanted = marker.casefold()
        return bool(wanted.strip()) and any(_holds_or_joins(text, wanted) for text in self._own_texts)

    def of_roles(self, roles: Sequence[str], *, asks: bool) -> Rendered:
        """Of messages without calls or results: the texts are theirs, in order. Raises jinja2.TemplateError."""
        messages = [{"role": role, "content": _placeholder(i)} for i, role in enumerate(roles)]
        return self._render(messages, None, len(roles), asks=asks)

    def of_chat(self, messages: Sequence[Message], tools: Sequence[Tool], *, asks: bool) -> tuple[Rendered, list[str]]:
        """With its texts. Raises jinja2.TemplateError, also where a tool, a call or a result is not shown."""
        texts = _Texts()
        called: dict[str | None, str] = {}
        told = [_told(message, texts, called) for message in messages]
        offered = [_offered(tool, texts) for tool in tools]
        rendered = self._render(told, offered or None, len(texts.all), asks=asks)
        if not rendered.shown().issuperset(texts.owed):
            raise TemplateError("it does not show all tools, calls and results")
        return rendered, texts.all

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        texts: int,
        *,
        asks: bool,
    ) -> Rendered:
        asked = _Asked(texts)
        try:
            written = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=asks, **{_ASKED: asked}
            )
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"it fails with {type(error).__name__}") from error
        before = []
        end = 0
        for match in _PLACEHOLDER.finditer(written):
            before.append((written[end : match.start()], int(match[1])))
            end = match.end()
        if _BROKEN_PLACEHOLDER.search("".join([*(text for text, _ in before), written[end:]])):
            raise TemplateError("it cuts a text, or prints one within a list or an object")
        return Rendered(before, written[end:], texts, asked.texts)


def _own_texts(template: nodes.Template) -> frozenset[str]:
    """Whatever a template's author wrote to be shown, and what is left of it around a place to fill in."""
    texts = {data.data for data in template.find_all(nodes.TemplateData)}
    texts |= {const.value for const in template.find_all(nodes.Const) if isinstance(const.value, str)}
    texts |= {part for text in texts for part in _PLACE_TO_FILL.split(text)}
    return frozenset(text.casefold() for text in texts if text)


def _holds_or_joins(text: str, marker: str) -> bool:
    """Whether the marker stands in the text, or may come of what is written behind or before it. A mere letter at
    its edge is no sign of that.
    """
    if marker in text:
        return True
    cuts = range(1, len(marker))
    return (not marker[0].isalnum() and any(text.endswith(marker[:cut]) for cut in cuts)) or (
        not marker[-1].isalnum() and any(text.startswith(marker[cut:]) for cut in cuts)
    )


def _offered(tool: Tool, texts: _Texts) -> dict[str, Any]:
    function: dict[str, Any] = tool_object(tool)["function"]
    told = {name: texts.place(text) for name, text in function.items() if isinstance(text, str)}
    told["name"] = texts.place_owed(tool.name)
    return {"type": "function", "function": {**told, "parameters": texts.placed(function["parameters"])}}


def _told(message: Message, texts: _Texts, called: dict[str | None, str]) -> dict[str, Any]:
    """`called`: the names of the calls so far, by id."""
    told: dict[str, Any] = {"role": message.role, "content": ""}
    if message.text or not message.tool_calls:
        place = texts.place_owed if message.role == "tool" else texts.place
        told["content"] = place(message.text)
    if message.tool_calls:
        called |= {call.id: call.name for call in message.tool_calls}
        told["tool_calls"] = [
            {
                "id": texts.place(call.id),
                "type": "function",
                "function": {"name": texts.place_owed(call.name), "arguments": texts.arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        told["tool_call_id"] = texts.place(message.tool_call_id or "")
        told["name"] = texts.place(called.get(message.tool_call_id, ""))
    return told


_ASKED = "sluice_asked"


@pass_context
def _tojson(
    context: Context, value: object, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """With the options that Hugging Face's own has."""
    options = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    asked: _Asked = context[_ASKED]
    return asked.put(_Json(value, options))


def _raise_template_error(message: str) -> NoReturn:
    """What chat templates call for roles and parts that they do not know."""
    raise TemplateError(message)


def template_refusal(error: TemplateError) -> str:
    """What a client is told. Templates see placeholders instead of contents, so their words repeat nobody's text."""
    return f"The model's chat template refuses the messages: {error}"[:MAX_MESSAGE_CHARS]


def _placeholder(index: int) -> str:
    return f"\ue000{index}\ue001"


def _filled(value: object, texts: Sequence[str]) -> object:
    """With the texts in the place of their placeholders."""
    match value:
        case str():
            return _PLACEHOLDER.sub(lambda match: texts[int(match[1])], value)
        case list() | tuple():
            return [_filled(each, texts) for each in value]
        case Mapping():
            return {_filled(name, texts): _filled(each, texts) for name, each in value.items()}
    return value


def _placed_in(value: object) -> Iterator[int]:
    match value:
        case str():
            yield from (int(match[1]) for match in _PLACEHOLDER.finditer(value))
        case list() | tuple():
            for each in value:
                yield from _placed_in(each)
        case Mapping():
            for name, each in value.items():
                yield from _placed_in(name)
                yield from _placed_in(each)
