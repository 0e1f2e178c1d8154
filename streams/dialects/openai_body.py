"""Reading what OpenAI's clients send, whatever the endpoint: messages, what asks for nothing, and errors by path."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from schemas.endings import EndingCode
from schemas.request import MAX_MESSAGES, MAX_PARTS_OF_MESSAGE, MAX_TEXT_CHARS, Message, TextPart
from streams.dialects.neutral import RequestError
from streams.dialects.openai_parameters import (
    HINTS_IN_MESSAGE,
    HINTS_IN_PART,
    NOT_OFFERED_IN_MESSAGE,
    NOT_OFFERED_PARTS,
    NOT_OFFERED_ROLES,
    NotOffered,
)

_NOTHING: Mapping[str, Any] = {}
_JSON_NAMES: dict[type, str] = {str: "a string", dict: "an object", list: "a list"}
_Body = TypeVar("_Body", bound=BaseModel)
WIRE = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
MAX_PARTS = 4_096
"""Of all messages together."""


class ChatTextPart(BaseModel):
    model_config = WIRE

    type: Literal["text"]
    text: str = Field(max_length=MAX_TEXT_CHARS)


def list_of(what: str, value: object) -> object:
    """Of what may also be one string: pydantic's own words would ask for a list alone."""
    if isinstance(value, list):
        return value
    raise ValueError(f"Input should be a string or a list of {what}")


_Parts = Annotated[list[ChatTextPart], Field(min_length=1, max_length=MAX_PARTS_OF_MESSAGE, fail_fast=True)]


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
    kind: type[BaseModel],
    given: Mapping[str, Any],
    not_offered: Mapping[str, NotOffered] = _NOTHING,
    hints: Mapping[str, type] = _NOTHING,
    *,
    path: str = "",
) -> dict[str, Any]:
    """The fields that ask for something: no more of them than `kind` has.

    Raises RequestError for the first in the table's order that is not offered, and for one that nobody knows where
    there are more than `kind` has. `path` is what stands before a field's name.
    """
    left = {name: value for name, value in given.items() if value is not None}
    for name, rule in not_offered.items():
        if name in left:
            value = left.pop(name)
            if not any(_is_same(value, neutral) for neutral in rule.asks_for_nothing):
                raise _unsupported(f"{path}{name}", rule.why)
    for name, json_type in hints.items():
        if not isinstance(left.pop(name, None), json_type | None):
            what = _JSON_NAMES[json_type]
            raise RequestError(EndingCode.INVALID_REQUEST, f"{path}{name}: Input should be {what}.", f"{path}{name}")
    if len(left) > len(kind.model_fields):
        # Validation would list all that it does not know, to name one.
        raise _unsupported(path + next(name for name in left if name not in kind.model_fields))
    return left


def asked_messages(messages: object) -> object:
    """Messages without what asks for nothing, each of them validated; what is no list is left to validation.

    Raises RequestError for the first one that is wrong, and looks at nothing behind it.
    """
    if not isinstance(messages, list):
        return messages
    _check_length("messages", messages, MAX_MESSAGES)
    valid, parts = [], 0
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        valid.append(validated(ChatMessage, _asked_of_message(path, message), path))
        parts += len(valid[-1].content)
        if parts > MAX_PARTS:
            why = f"messages: All of them together should have at most {MAX_PARTS} parts."
            raise RequestError(EndingCode.INVALID_REQUEST, why, "messages")
    return valid


def validated(kind: type[_Body], given: object, path: str = "") -> _Body:
    """Raises RequestError naming the field, as a client would write it: `messages[0].content`.

    `path` is what stands before `given`'s own.
    """
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, path) from None


def _check_length(path: str, elements: list[Any], most: int) -> None:
    if len(elements) > most:
        raise RequestError(EndingCode.INVALID_REQUEST, f"{path}: List should have at most {most} items.", path)


def _is_same(value: object, neutral: object) -> bool:
    """As JSON: `True == 1` in Python alone."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _unsupported(path: str, why: str = "") -> RequestError:
    param = path[:200]
    return RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{param} is not supported{': ' if why else ''}{why}.", param)


def _asked_of_message(path: str, message: object) -> object:
    if not isinstance(message, dict):
        return message
    if message.get("role") in NOT_OFFERED_ROLES:
        raise _unsupported(f"{path}.role")
    left = asked(ChatMessage, message, NOT_OFFERED_IN_MESSAGE, HINTS_IN_MESSAGE, path=f"{path}.")
    if isinstance(parts := left.get("content"), list):
        _check_length(f"{path}.content", parts, MAX_PARTS_OF_MESSAGE)
        left["content"] = [_asked_of_part(f"{path}.content[{i}].", part) for i, part in enumerate(parts)]
    return left


def _asked_of_part(path: str, part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") in NOT_OFFERED_PARTS:
        raise _unsupported(f"{path}type")
    return asked(ChatTextPart, part, hints=HINTS_IN_PART, path=path)


def _explain(error: ValidationError, path: str) -> RequestError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = _path(path, first["loc"])
    if first["type"] == "extra_forbidden":
        return _unsupported(param)
    why = first["msg"].removeprefix("Value error, ")  # what pydantic says before the words of a validator here
    return RequestError(EndingCode.INVALID_REQUEST, f"{param}: {why}.", param)


def _path(path: str, location: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location if part != "[key]")
    return f"{path}{''.join(parts)}".removeprefix(".")[:200]
