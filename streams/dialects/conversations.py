"""Conversations as OpenAI has them (`/v1/conversations`), and as pages list and show them (`/api/conversations`). Pure.

What a body may hold is bounded before it is looked at, and wrong fields are named.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from schemas.request import Message
from streams.dialects.echo import MAX_METADATA, Metadata, check_metadata, check_pairs
from streams.dialects.fields import WIRE, asked, check_length, invalid, validated
from streams.dialects.neutral import RequestError
from streams.dialects.openai_schema import body_schema
from streams.dialects.responses.input import Item, read_input

MAX_ITEMS: Final = 20
MAX_TITLE_CHARS: Final = 200
WITHOUT_NUL: Final = r"^[^\x00]*$"
"""No text of Postgres has one."""
MAX_OPENING_BYTES: Final = 262_144
"""Of what a conversation begins with, as it is stored: it is read with each of its turns."""


class ConversationBody(BaseModel):
    """The body of `POST /v1/conversations`."""

    model_config = WIRE

    items: Annotated[list[Item], Field(max_length=MAX_ITEMS)] | None = Field(
        default=None, description="What it begins with."
    )
    metadata: Metadata | None = Field(default=None, max_length=MAX_METADATA)


class ConversationChange(BaseModel):
    """The body of `POST /v1/conversations/{id}`."""

    model_config = WIRE

    metadata: Metadata | None = Field(max_length=MAX_METADATA, description="In the place of what it had.")


class NamedConversationBody(BaseModel):
    """The body of `POST /api/conversations`."""

    model_config = WIRE

    title: str = Field(
        default="", max_length=MAX_TITLE_CHARS, pattern=WITHOUT_NUL,
        description="If it has none its first question is it.",
    )  # fmt: skip
    metadata: Metadata | None = Field(default=None, max_length=MAX_METADATA)
    user: str | None = Field(
        default=None, min_length=1, max_length=512,
        description="Whose it is to be, kept only as a pseudonym; of an API key alone.",
    )  # fmt: skip


class NamedConversationChange(BaseModel):
    """The body of `POST /api/conversations/{id}`: what is left out stays."""

    model_config = WIRE

    title: str | None = Field(
        default=None, min_length=1, max_length=MAX_TITLE_CHARS, pattern=WITHOUT_NUL
    )  # fmt: skip
    metadata: Metadata | None = Field(default=None, max_length=MAX_METADATA)


def parse_conversation(body: Mapping[str, Any]) -> tuple[list[Message], dict[str, str]]:
    """What it begins with, and its metadata. Raises RequestError naming the field."""
    given = asked(ConversationBody, body)
    opening: list[Message] = []
    if (items := given.pop("items", None)) is not None:
        opening = _opening(items)
    check_pairs(given.get("metadata"))
    valid = validated(ConversationBody, given)
    check_metadata(valid.metadata)
    return opening, valid.metadata or {}


def parse_change(body: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that it is to have. Raises RequestError."""
    check_pairs(body.get("metadata"))
    # Null asks for something here: for none.
    given = {"metadata": {}, **asked(ConversationChange, body)} if "metadata" in body else body
    valid = validated(ConversationChange, given)
    check_metadata(valid.metadata)
    return valid.metadata or {}


def parse_named(body: Mapping[str, Any]) -> NamedConversationBody:
    """Raises RequestError."""
    check_pairs(body.get("metadata"))
    valid = validated(NamedConversationBody, asked(NamedConversationBody, body))
    check_metadata(valid.metadata)
    return valid


def parse_named_change(body: Mapping[str, Any]) -> NamedConversationChange:
    """Raises RequestError, also where nothing is to change."""
    check_pairs(body.get("metadata"))
    valid = validated(NamedConversationChange, asked(NamedConversationChange, body))
    check_metadata(valid.metadata)
    if valid.title is None and valid.metadata is None:
        raise invalid("title", "Say what is to change: title, metadata, or both.")
    return valid


def _opening(items: object) -> list[Message]:
    """Raises RequestError, which names `items[0]…` as clients write it."""
    if not isinstance(items, list):
        raise invalid("items", "Input should be a list of items.")
    check_length("items", items, MAX_ITEMS)
    if not items:
        return []
    try:
        messages = read_input(items).messages
    except RequestError as error:
        raise _renamed(error) from None
    if sum(len(text.encode()) for message in messages for text in _texts(message)) > MAX_OPENING_BYTES:
        raise invalid("items", f"All of them together should have at most {MAX_OPENING_BYTES} bytes.")
    return messages


def _renamed(error: RequestError) -> RequestError:
    """As it was written: items of a response's `input` are read alike."""
    param = None if error.param is None else error.param.replace("input", "items", 1)
    return RequestError(error.code, error.message.replace("input", "items", 1), param)


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.content] + [call.arguments for call in message.tool_calls]


def conversation_schemas(ref_template: str) -> dict[str, Any]:
    bodies = (ConversationBody, ConversationChange, NamedConversationBody, NamedConversationChange)
    return {each.__name__: body_schema(each, ref_template) for each in bodies}


def conversation_object(conversation_id: str, created_at_ms: int, metadata: Mapping[str, str]) -> dict[str, Any]:
    """As OpenAI tells it."""
    return {
        "id": conversation_id, "object": "conversation", "created_at": created_at_ms // 1_000,
        "metadata": dict(metadata),
    }  # fmt: skip


def messages_of(messages: Sequence[Message], created_at_ms: int, response_id: str | None) -> list[dict[str, Any]]:
    """As a page shows them: texts, and calls as chats have them. `response_id`: of their turn."""
    told: list[dict[str, Any]] = []
    for message in messages:
        shown: dict[str, Any] = {
            "role": message.role, "content": message.text, "created_at": created_at_ms // 1_000,
            "response_id": response_id,
        }  # fmt: skip
        if message.tool_calls:
            shown["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            shown["tool_call_id"] = message.tool_call_id
        told.append(shown)
    return told
