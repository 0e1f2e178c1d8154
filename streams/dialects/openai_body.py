"""Reading what OpenAI's clients send, whatever the endpoint: messages, what asks for nothing, and errors by path."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from schemas.endings import EndingCode
from schemas.request import MAX_TEXT_CHARS, Message, TextPart
from streams.dialects.neutral import RequestError
from streams.dialects.openai_parameters import (
    HINTS_IN_MESSAGE,
    HINTS_IN_PART,
    NOT_OFFERED_IN_MESSAGE,
    NOT_OFFERED_PARTS,
    NOT_OFFERED_ROLES,
    NotOffered,
)

_JSON_NAMES: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}
_Body = TypeVar("_Body", bound=BaseModel)
WIRE = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ChatTextPart(BaseModel):
    model_config = WIRE

    type: Literal["text"]
    text: str = Field(max_length=MAX_TEXT_CHARS)


def list_of(what: str, value: object) -> object:
    """Of what may also be one string: pydantic's own words would ask for a list alone."""
    if isinstance(value, list):
        return value
    raise ValueError(f"Input should be a string or a list of {what}")


_Parts = Annotated[list[ChatTextPart], Field(min_length=1, max_length=256, fail_fast=True)]


class ChatMessage(BaseModel):
    """`content` is a string or a list of text parts."""

    model_config = WIRE

    role: Literal["system", "developer", "user", "assistant"]
    name: str | None = Field(default=None, max_length=64, description="Kept; today's chat templates do not show it.")
    content: _Parts

    @field_validator("content", mode="before", json_schema_input_type=str | _Parts)
    @classmethod
    def _text_as_part(cls, content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        return list_of("text parts", content)


def neutral_message(message: ChatMessage) -> Message:
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=[TextPart(text=part.text) for part in message.content],
        name=message.name,
    )


def asked(
    path: str, given: Mapping[str, Any], not_offered: Mapping[str, NotOffered], hints: Mapping[str, type]
) -> dict[str, Any]:
    """The fields that ask for something. Raises RequestError for the first in the table's order that is not offered.

    `path` is what stands before a field's name.
    """
    left = {name: value for name, value in given.items() if value is not None}
    for name, rule in not_offered.items():
        if name in left:
            value = left.pop(name)
            if not any(_is_same(value, neutral) for neutral in rule.asks_for_nothing):
                raise _unsupported(path, name, rule.why)
    for name, kind in hints.items():
        if not isinstance(left.pop(name, None), kind | None):
            what = _JSON_NAMES[kind]
            raise RequestError(EndingCode.INVALID_REQUEST, f"{path}{name}: Input should be {what}.", f"{path}{name}")
    return left


def asked_messages(messages: object) -> object:
    """Messages without what asks for nothing. What is merely malformed is left to validation."""
    if not isinstance(messages, list):
        return messages
    return [_asked_of_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def validated(kind: type[_Body], given: Mapping[str, Any]) -> _Body:
    """Raises RequestError naming the field, as a client would write it: `messages[0].content`."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error) from None


def _is_same(value: object, neutral: object) -> bool:
    """As JSON: `True == 1` in Python alone."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unsupported(path: str, name: str, why: str = "") -> RequestError:
    param = f"{path}{name}"[:200]
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{param} is not supported{': ' if why else ''}{why}.", param)


def _asked_of_message(path: str, message: object) -> object:
    if not isinstance(message, dict):
        return message
    if message.get("role") in NOT_OFFERED_ROLES:
        raise _unsupported(f"{path}.", "role")
    left = asked(f"{path}.", message, NOT_OFFERED_IN_MESSAGE, HINTS_IN_MESSAGE)
    if isinstance(parts := left.get("content"), list):
        left["content"] = [_asked_of_part(f"{path}.content[{i}].", part) for i, part in enumerate(parts)]
    return left


def _asked_of_part(path: str, part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") in NOT_OFFERED_PARTS:
        raise _unsupported(path, "type")
    return asked(path, part, {}, HINTS_IN_PART)


def _explain(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return _unsupported("", param)
    why = first["msg"].removeprefix("Value error, ")  # what pydantic says before the words of a validator here
    return RequestError(EndingCode.INVALID_REQUEST, f"{param}: {why}.", param)


def _path(location: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return "".join(parts).removeprefix(".")[:200]
