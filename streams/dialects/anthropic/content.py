"""Anthropic's messages and their blocks, read one after the other: the first that is wrong is named."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from schemas.request import MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, MAX_TEXT_CHARS, CalledName, CallId
from streams.dialects.anthropic.parameters import (
    HINTS,
    HINTS_IN_TEXT,
    NOT_OFFERED_IN_TOOL_RESULT,
    NOT_OFFERED_IN_TOOL_USE,
)
from streams.dialects.fields import (
    MAX_PARTS,
    WIRE,
    NotOffered,
    asked,
    check_length,
    dotted,
    invalid,
    list_of,
    unsupported,
    validated,
)

_Kind = TypeVar("_Kind", bound=BaseModel)
_Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
_NONE: Mapping[str, Any] = {}


class TextBlockParam(BaseModel):
    model_config = WIRE

    type: Literal["text"]
    text: _Text


class ThinkingBlockParam(BaseModel):
    """Of an earlier answer: accepted, and of no effect."""

    model_config = WIRE

    type: Literal["thinking"]
    thinking: _Text = ""
    signature: _Text = ""


class RedactedThinkingBlockParam(BaseModel):
    """As `ThinkingBlockParam`."""

    model_config = WIRE

    type: Literal["redacted_thinking"]
    data: _Text = ""


class ToolUseBlockParam(BaseModel):
    model_config = WIRE

    type: Literal["tool_use"]
    id: CallId
    name: CalledName
    input: dict[str, Any]
    input_text: _Text | None = Field(
        default=None,
        description="What the model wrote where that was no JSON object, as answers tell it: an extension.",
    )


_TextBlocks = Annotated[list[TextBlockParam], Field(max_length=MAX_PARTS_OF_MESSAGE - 1, fail_fast=True)]
Texts = Annotated[
    _TextBlocks,
    BeforeValidator(lambda value: list_of("text blocks", value), json_schema_input_type=str | _TextBlocks),
]
"""Written as a string, or as blocks."""


class ToolResultBlockParam(BaseModel):
    model_config = WIRE

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Texts = Field(default_factory=list)
    is_error: bool = False


Block = TextBlockParam | ToolUseBlockParam | ToolResultBlockParam | ThinkingBlockParam | RedactedThinkingBlockParam
_Blocks = Annotated[
    list[Annotated[Block, Field(discriminator="type")]],
    Field(min_length=1, max_length=MAX_PARTS_OF_MESSAGE, fail_fast=True),
]


class MessageParam(BaseModel):
    """`content` is a string or a list of blocks."""

    model_config = WIRE

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        _Blocks, BeforeValidator(lambda value: list_of("blocks", value), json_schema_input_type=str | _Blocks)
    ]


class _Rule(NamedTuple):
    """`places`: where such a block may stand, in messages of a role or in a block that has some of its own."""

    kind: type[BaseModel]
    places: Collection[str]
    not_offered: Mapping[str, NotOffered] = _NONE
    hints: Mapping[str, type] = HINTS


_RULES: Final[Mapping[str, _Rule]] = {
    "text": _Rule(TextBlockParam, ("user", "assistant", "system", "tool_result"), hints=HINTS_IN_TEXT),
    "tool_use": _Rule(ToolUseBlockParam, ("assistant",), NOT_OFFERED_IN_TOOL_USE),
    "tool_result": _Rule(ToolResultBlockParam, ("user",), NOT_OFFERED_IN_TOOL_RESULT),
    "thinking": _Rule(ThinkingBlockParam, ("assistant",)),
    "redacted_thinking": _Rule(RedactedThinkingBlockParam, ("assistant",)),
}
_ROLES: Final = ("user", "assistant", "system")


def valid(kind: type[_Kind], given: object, path: str = "") -> _Kind:
    """Raises RequestError naming the field as Anthropic's clients write it: `messages.0.content`."""
    return validated(kind, given, path, write=dotted)


class Reader:
    """Reads the messages of one body. Methods raise RequestError for the first block that is wrong, and look at nothing
    behind it; what is neither a list nor a string is left to validation.
    """

    def __init__(self) -> None:
        self._blocks = 0

    def messages(self, messages: object) -> object:
        """Without what asks for nothing, each of them validated."""
        if not isinstance(messages, list):
            return messages
        check_length("messages", messages, MAX_MESSAGES)
        return [
            valid(MessageParam, self._message(f"messages.{i}", message), f"messages.{i}")
            for i, message in enumerate(messages)
        ]

    def texts(self, path: str, place: str, content: object) -> object:
        """Blocks as they may stand in `place`; a string is one of text."""
        if isinstance(content, str):
            if len(content) > MAX_TEXT_CHARS:
                raise invalid(path, f"String should have at most {MAX_TEXT_CHARS} characters.")
            return [TextBlockParam(type="text", text=content)]
        if not isinstance(content, list):
            return content
        check_length(path, content, MAX_PARTS_OF_MESSAGE)
        self._blocks += len(content)
        if self._blocks > MAX_PARTS:
            raise invalid("messages", f"All of them together should have at most {MAX_PARTS} blocks.")
        return [self._block(f"{path}.{i}", place, block) for i, block in enumerate(content)]

    def _message(self, path: str, message: object) -> object:
        if not isinstance(message, dict):
            return message
        left = asked(MessageParam, message, hints=HINTS, path=f"{path}.")
        if (role := left.get("role")) in _ROLES and "content" in left:
            left["content"] = self.texts(f"{path}.content", str(role), left["content"])
        return left

    def _block(self, path: str, place: str, block: object) -> object:
        if not isinstance(block, dict) or not isinstance(name := block.get("type"), str):
            raise invalid(path, "Input should be an object with a `type`.")
        if (rule := _RULES.get(name)) is None:
            raise unsupported(f"{path}.type", f"prompts and answers are text, without {name[:60]!r}")
        if place not in rule.places:
            raise invalid(f"{path}.type", f"`{name}` blocks stand in {' or '.join(rule.places)} alone.")
        left = asked(rule.kind, block, rule.not_offered, rule.hints, path=f"{path}.")
        if rule.kind is ToolResultBlockParam and "content" in left:
            left["content"] = self.texts(f"{path}.content", "tool_result", left["content"])
        return valid(rule.kind, left, path)
