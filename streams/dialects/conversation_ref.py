"""The conversation that a request names: its id, or an object with it, as OpenAI's packages have either."""

from typing import Any

from pydantic import BaseModel, Field

from streams.dialects.fields import WIRE, asked, invalid, validated


class ConversationRef(BaseModel):
    model_config = WIRE

    id: str = Field(min_length=1, max_length=200)


def or_its_id(schema: dict[str, Any]) -> None:
    """Adds to the JSON schema of a field that the id alone is taken too."""
    schema["anyOf"] = [{"type": "string", "minLength": 1, "maxLength": 200}, *schema["anyOf"]]


def asked_conversation(given: object) -> object:
    """An object as what it is; raises RequestError for what is neither that nor a text."""
    if isinstance(given, dict):
        return validated(ConversationRef, asked(ConversationRef, given, path="conversation."), "conversation")
    if isinstance(given, str) and 1 <= len(given) <= 200:
        return ConversationRef(id=given)
    raise invalid("conversation", "Input should be the id of a conversation, or an object with it.")


def echoed_conversation(ref: ConversationRef | None) -> dict[str, Any] | None:
    return None if ref is None else {"id": ref.id}


def stores(store: bool | None, ref: ConversationRef | None, *, by_default: bool) -> bool:
    """Whether a request is to be stored: a turn of a conversation always is. Raises RequestError where it says no."""
    if ref is None:
        return by_default if store is None else store
    if store is False:
        raise invalid("store", "A turn of a conversation is stored; leave out store or conversation.")
    return True
