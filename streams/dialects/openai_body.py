"""Reading the messages that OpenAI's clients send, whatever the endpoint."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field

from schemas.request import (
    MAX_MESSAGES,
    MAX_PARTS_OF_MESSAGE,
    MAX_TEXT_CHARS,
    MAX_TOOL_CALLS,
    CallId,
    Message,
    TextPart,
)
from streams.dialects.fields import (
    MAX_PARTS,
    WIRE,
    NotOffered,
    asked,
    check_length,
    invalid,
    list_of,
    unsupported,
    validated,
)
from streams.dialects.neutral import OwnTurn, TurnFields
from streams.dialects.openai_parameters import (
    HINTS_IN_MESSAGE,
    HINTS_IN_PART,
    NOT_OFFERED_IN_MESSAGE,
    NOT_OFFERED_PARTS,
    NOT_OFFERED_ROLES,
)
from streams.dialects.openai_tools import ChatCall, asked_calls, neutral_call
from streams.dialects.tool_turns import check_turns


class ChatTextPart(BaseModel):
    model_config = WIRE

    type: Literal["text"]
    text: str = Field(max_length=MAX_TEXT_CHARS)


def _text_as_part(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list_of("text parts", content)


_Parts = Annotated[list[ChatTextPart], Field(min_length=1, max_length=MAX_PARTS_OF_MESSAGE, fail_fast=True)]
_Content = Annotated[_Parts, BeforeValidator(_text_as_part, json_schema_input_type=str | _Parts)]
_AnyParts = Annotated[list[ChatTextPart], Field(max_length=MAX_PARTS_OF_MESSAGE, fail_fast=True)]
_AnyContent = Annotated[_AnyParts, BeforeValidator(_text_as_part, json_schema_input_type=str | _AnyParts | None)]
_Name = Annotated[str | None, Field(max_length=64, description="Kept; today's chat templates do not show it.")]


class ChatMessage(BaseModel):
    """`content` is a string or a list of text parts."""

    model_config = WIRE

    role: Literal["system", "developer", "user", "assistant"]
    name: _Name = None
    content: _Content


class CallingMessage(BaseModel):
    """An assistant's that calls tools, whether it says something or not."""

    model_config = WIRE

    role: Literal["assistant"]
    name: _Name = None
    content: _AnyContent = Field(default_factory=list)
    tool_calls: list[ChatCall] = Field(min_length=1, max_length=MAX_TOOL_CALLS, fail_fast=True)


class ToolMessage(BaseModel):
    """The result of one call."""

    model_config = WIRE

    role: Literal["tool"]
    name: _Name = None
    tool_call_id: CallId
    content: _Content


ChatTurn = ChatMessage | CallingMessage | ToolMessage
FIELDS: Final = TurnFields("messages", calls="tool_calls", result="tool_call_id")
_NOT_OFFERED: Final[Mapping[type[BaseModel], Mapping[str, NotOffered]]] = {
    kind: {name: row for name, row in NOT_OFFERED_IN_MESSAGE.items() if name not in kind.model_fields}
    for kind in (ChatMessage, CallingMessage, ToolMessage)
}


def neutral_message(message: ChatTurn) -> Message:
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=[TextPart(text=part.text) for part in message.content],
        name=message.name,
        tool_calls=[neutral_call(call) for call in _calls_of(message)],
        tool_call_id=message.tool_call_id if isinstance(message, ToolMessage) else None,
    )


def own_turn(messages: Sequence[ChatTurn], *, goes_on: bool = False) -> OwnTurn:
    """Raises RequestError for a result of no call, and for a call without a result.

    What `goes_on` may hold results of calls that were made before it: `continuation` looks at those.
    """
    neutral = [neutral_message(message) for message in messages]
    paths = [f"messages[{index}]" for index in range(len(neutral))]
    if not goes_on:
        check_turns(neutral, paths.__getitem__, calls=FIELDS.calls, result=FIELDS.result)
    return OwnTurn(messages=neutral, paths=paths, fields=FIELDS)


def asked_messages(messages: object) -> object:
    """Messages without what asks for nothing, each of them validated; what is no list is left to validation.

    Raises RequestError for the first one that is wrong, and looks at nothing behind it.
    """
    if not isinstance(messages, list):
        return messages
    check_length("messages", messages, MAX_MESSAGES)
    valid: list[ChatTurn] = []
    parts = 0
    for i, message in enumerate(messages):
        path, kind = f"messages[{i}]", _kind_of(message)
        valid.append(validated(kind, _asked_of_message(path, kind, message), path))
        parts += len(valid[-1].content) + len(_calls_of(valid[-1]))
        if parts > MAX_PARTS:
            raise invalid("messages", f"All of them together should have at most {MAX_PARTS} parts and calls.")
    return valid


def _kind_of(message: object) -> type[ChatTurn]:
    if not isinstance(message, dict):
        return ChatMessage
    if message.get("role") == "tool":
        return ToolMessage
    return CallingMessage if message.get("role") == "assistant" and message.get("tool_calls") else ChatMessage


def _calls_of(message: ChatTurn) -> list[ChatCall]:
    return message.tool_calls if isinstance(message, CallingMessage) else []


def _asked_of_message(path: str, kind: type[ChatTurn], message: object) -> object:
    if not isinstance(message, dict):
        return message
    if message.get("role") in NOT_OFFERED_ROLES:
        raise unsupported(f"{path}.role")
    left = asked(kind, message, _NOT_OFFERED[kind], HINTS_IN_MESSAGE, path=f"{path}.")
    if isinstance(parts := left.get("content"), list):
        check_length(f"{path}.content", parts, MAX_PARTS_OF_MESSAGE)
        left["content"] = [_asked_of_part(f"{path}.content[{i}].", part) for i, part in enumerate(parts)]
    if kind is CallingMessage:
        left["tool_calls"] = asked_calls(f"{path}.tool_calls", left["tool_calls"])
    return left


def _asked_of_part(path: str, part: object) -> object:
    if not isinstance(part, dict):
        return part
    if part.get("type") in NOT_OFFERED_PARTS:
        raise unsupported(f"{path}type")
    return asked(ChatTextPart, part, hints=HINTS_IN_PART, path=path)
