"""Anthropic's bodies as requests: `POST /v1/messages` and `/v1/messages/count_tokens`.

What is accepted beside the fields of the bodies stands in `streams.dialects.anthropic.parameters`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from schemas.request import (
    MAX_MESSAGES,
    MAX_OUTPUT_TOKENS,
    MAX_STOP_STRINGS,
    MAX_TOOLS,
    Endpoint,
    Message,
    OnDisconnect,
    Sampling,
    StopString,
    Tool,
)
from schemas.structure import StructuredOutputs
from streams.dialects.anthropic.content import MessageParam, Reader, Texts, valid
from streams.dialects.anthropic.parameters import HINTS, NOT_OFFERED, NOT_OFFERED_IN_OUTPUT_CONFIG
from streams.dialects.anthropic.tools import ToolChoiceParam, ToolParam, asked_tools, neutral_choice, neutral_tools
from streams.dialects.anthropic.turns import neutral_turns
from streams.dialects.fields import WIRE, MayFallBack, NotOffered, asked
from streams.dialects.neutral import NeutralRequest
from streams.dialects.openai_schema import body_schema
from streams.dialects.structured import JsonSchema, structure_beside_tools


class MetadataParam(BaseModel):
    model_config = WIRE

    user_id: str | None = Field(default=None, max_length=512, description="Kept only as a pseudonym.")


class JsonOutputFormatParam(BaseModel):
    model_config = WIRE

    type: Literal["json_schema"]
    definition: JsonSchema = Field(alias="schema")


class OutputConfigParam(BaseModel):
    model_config = WIRE

    format: JsonOutputFormatParam | None = Field(default=None, description="What an answer is bound to.")


class CountTokensBody(BaseModel):
    """The body of `POST /v1/messages/count_tokens`: all that a prompt is made of."""

    model_config = WIRE

    model: str = Field(min_length=1, max_length=200)
    messages: list[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    system: Texts = Field(default_factory=list)
    tools: list[ToolParam] = Field(default_factory=list, max_length=MAX_TOOLS, fail_fast=True)
    tool_choice: ToolChoiceParam | None = None
    output_config: OutputConfigParam | None = None


class MessagesBody(CountTokensBody):
    """The body of `POST /v1/messages`: every parameter that is honoured, and no other."""

    max_tokens: int = Field(ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000_000, description="0: off.")
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] = Field(
        default_factory=list
    )
    stream: bool = False
    metadata: MetadataParam | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"
    on_disconnect: OnDisconnect = Field(
        default="cancel", description="What happens when the last viewer is gone: an extension."
    )
    fallback: MayFallBack = True


class MessagesRequest(NeutralRequest):
    endpoint: Endpoint = "messages"


class CountTokens(BaseModel):
    """A prompt whose tokens are counted."""

    model: str
    messages: list[Message]
    tools: list[Tool]


_Kind = TypeVar("_Kind", bound=CountTokensBody)
_OBJECTS: Mapping[str, tuple[type[BaseModel], Mapping[str, NotOffered]]] = {
    "output_config": (OutputConfigParam, NOT_OFFERED_IN_OUTPUT_CONFIG),
    "tool_choice": (ToolChoiceParam, {}),
    "metadata": (MetadataParam, {}),
}


def parse_messages_request(body: Mapping[str, Any]) -> MessagesRequest:
    """Raises RequestError naming the field, as a client would write it: `messages.0.content`."""
    given = _read(MessagesBody, body)
    tools, structure = neutral_tools(given.tools), _structure(given.output_config)
    tool_choice = neutral_choice(given.tool_choice, tools)
    structure = structure_beside_tools(structure, tool_choice)
    return MessagesRequest(
        model=given.model,
        messages=neutral_turns(given.system, given.messages),
        sampling=Sampling(
            max_tokens=given.max_tokens, temperature=given.temperature, top_p=given.top_p, top_k=given.top_k,
            stop=given.stop_sequences, structured_outputs=structure,
        ),
        tools=tools,
        tool_choice=tool_choice,
        stream=given.stream,
        user=given.metadata.user_id if given.metadata else None,
        service_tier="default" if given.service_tier == "standard_only" else "auto",
        on_disconnect=given.on_disconnect,
        fallback=given.fallback,
    )  # fmt: skip


def parse_count_tokens(body: Mapping[str, Any]) -> CountTokens:
    """Raises RequestError as `parse_messages_request` does."""
    given = _read(CountTokensBody, body)
    tools = neutral_tools(given.tools)
    neutral_choice(given.tool_choice, tools)
    return CountTokens(model=given.model, messages=neutral_turns(given.system, given.messages), tools=tools)


def messages_schemas(ref_template: str) -> dict[str, dict[str, Any]]:
    """Of the bodies by name, as `openai_schema.chat_schema`."""
    return {
        kind.__name__: body_schema(kind, ref_template, NOT_OFFERED, HINTS) for kind in (MessagesBody, CountTokensBody)
    }


def _structure(config: OutputConfigParam | None) -> StructuredOutputs | None:
    if config is None or config.format is None:
        return None
    return StructuredOutputs(json=config.format.definition)


def _read(kind: type[_Kind], body: Mapping[str, Any]) -> _Kind:
    given = asked(kind, body, NOT_OFFERED, HINTS)
    for name, (inner_kind, not_offered) in _OBJECTS.items():
        if isinstance(inner := given.get(name), dict):
            given[name] = asked(inner_kind, inner, not_offered, path=f"{name}.")
    if isinstance(config := given.get("output_config"), dict) and isinstance(form := config.get("format"), dict):
        config["format"] = asked(JsonOutputFormatParam, form, path="output_config.format.")
    reader = Reader()
    if "system" in given:
        given["system"] = reader.texts("system", "system", given["system"])
    if "messages" in given:
        given["messages"] = reader.messages(given["messages"])
    if "tools" in given:
        given["tools"] = asked_tools(given["tools"])
    return valid(kind, given)
