"""OpenAI's Responses: a body as a request.

What is accepted beside the fields of `ResponsesBody` stands in `streams.dialects.responses.parameters`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field

from schemas.base import MAX_ECHO_CHARS
from schemas.request import (
    MAX_MESSAGES,
    MAX_OUTPUT_TOKENS,
    MAX_TEXT_CHARS,
    MAX_TOOLS,
    Message,
    RepetitionDetection,
    Sampling,
    ServiceTier,
    TextPart,
)
from schemas.request import Tool as NeutralTool
from schemas.request import ToolChoice as NeutralChoice
from schemas.structure import StructuredOutputs
from streams.dialects.conversation_ref import (
    ConversationRef,
    asked_conversation,
    echoed_conversation,
    or_its_id,
    stores,
)
from streams.dialects.echo import MAX_METADATA, Metadata, check_metadata, check_pairs, written
from streams.dialects.fields import (
    WIRE,
    MayFallBack,
    NotOffered,
    PromptCacheKey,
    asked,
    check_length,
    invalid,
    unsupported,
    validated,
)
from streams.dialects.neutral import NeutralRequest, OwnTurn
from streams.dialects.openai_parameters import NOT_OFFERED_IN_STREAM_OPTIONS
from streams.dialects.openai_tools import FunctionName
from streams.dialects.responses.input import FIELDS, Item, read_input
from streams.dialects.responses.parameters import (
    HINTS,
    HINTS_IN_TOOL,
    INCLUDABLE,
    NOT_OFFERED,
    NOT_OFFERED_IN_REASONING,
    NOT_OFFERED_IN_TOOL,
)
from streams.dialects.responses.text_format import TextConfig, asked_text, structure_of
from streams.dialects.sampling_body import SamplingBody
from streams.dialects.structured import (
    StructuredOutputsBody,
    asked_outputs,
    only_structure,
    structure_beside_tools,
)
from streams.dialects.tool_turns import check_tool_count, check_tools, settled_choice

_OWN: Final = "only functions of the client's own are called"
_MODES: Final = ("none", "auto", "required")


class ResponsesStreamOptions(BaseModel):
    model_config = WIRE


class ResponsesReasoning(BaseModel):
    model_config = WIRE


class FunctionTool(BaseModel):
    model_config = WIRE

    type: Literal["function"]
    name: FunctionName
    description: str = Field(default="", max_length=MAX_TEXT_CHARS)
    parameters: dict[str, Any] | None = Field(default=None, description="JSON Schema of its arguments.")
    strict: bool = Field(default=False, description="Binds its arguments to their schema.")


class FunctionChoice(BaseModel):
    model_config = WIRE

    type: Literal["function"]
    name: FunctionName


class ResponsesBody(SamplingBody):
    """The body of `POST /v1/responses`: every parameter that is honoured, and no other."""

    model_config = WIRE

    model: str = Field(min_length=1, max_length=200)
    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)]
    instructions: str | None = Field(default=None, max_length=MAX_TEXT_CHARS, description="Said before the input.")
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None
    background: bool = Field(default=False, description="Answered at once; goes on without viewers.")
    store: bool | None = Field(
        default=None,
        description="Kept beyond replay, for who comes or goes on with it by its id: so it is unless false.",
    )
    previous_response_id: str | None = Field(
        default=None, min_length=1, max_length=200, description="The response that this one goes on with."
    )
    conversation: ConversationRef | None = Field(
        default=None, json_schema_extra=or_its_id,
        description="The one that this is a turn of. It goes on with its newest turn, or `previous_response_id`.",
    )  # fmt: skip
    include: list[str] = Field(
        default_factory=list, max_length=32, fail_fast=True, description="Of what there is nothing to include."
    )
    metadata: Metadata | None = Field(default=None, max_length=MAX_METADATA, description="Repeated with the response.")
    user: str | None = Field(default=None, max_length=512, description="Kept only as a pseudonym.")
    safety_identifier: str | None = Field(default=None, max_length=512, description="In the place of `user`.")
    service_tier: ServiceTier = "auto"
    prompt_cache_key: PromptCacheKey = None
    tools: list[FunctionTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = Field(
        default=None, ge=1, le=2**31, description="Of built-in tools, of which there are none."
    )
    text: TextConfig = TextConfig()
    reasoning: ResponsesReasoning | None = None
    structured_outputs: StructuredOutputsBody | None = Field(default=None, description="In the place of `text.format`.")
    fallback: MayFallBack = True


class ResponsesRequest(NeutralRequest):
    """Its `echo` is for `objects.read_echo`. What goes on in the background goes on without viewers."""


_OBJECTS: Mapping[str, tuple[type[BaseModel], Mapping[str, NotOffered]]] = {
    "stream_options": (ResponsesStreamOptions, NOT_OFFERED_IN_STREAM_OPTIONS),
    "reasoning": (ResponsesReasoning, NOT_OFFERED_IN_REASONING),
    "repetition_detection": (RepetitionDetection, {}),
}


def parse_responses_request(body: Mapping[str, Any]) -> ResponsesRequest:
    """Raises RequestError naming the field, as a client would write it: `input[0].content`."""
    given = asked(ResponsesBody, body, NOT_OFFERED, HINTS)
    for name, (kind, not_offered) in _OBJECTS.items():
        if isinstance(inner := given.get(name), dict):
            given[name] = asked(kind, inner, not_offered, path=f"{name}.")
    if "conversation" in given:
        given["conversation"] = asked_conversation(given["conversation"])
    turn = _take_input(given)
    _check_include(given.get("include"))
    check_pairs(given.get("metadata"))
    given["tools"] = _asked_tools(given.get("tools", []))
    given["tool_choice"] = _asked_choice(given.get("tool_choice", "auto"))
    given["text"] = asked_text(given.get("text", {}))
    if "structured_outputs" in given:
        given["structured_outputs"] = asked_outputs(given["structured_outputs"])
    valid = validated(ResponsesBody, given)
    is_stored = stores(valid.store, valid.conversation, by_default=True)
    check_metadata(valid.metadata)
    tools = [_neutral_tool(tool) for tool in valid.tools]
    check_tools(tools, lambda index: f"tools[{index}]", schema="parameters")
    tool_choice = settled_choice(_neutral_choice(valid), tools, name="tool_choice.name")
    structure = structure_beside_tools(_structure(valid), tool_choice)
    messages = turn.messages
    if valid.instructions:
        messages = [Message(role="system", content=[TextPart(text=valid.instructions)]), *messages]
        check_length("input", messages, MAX_MESSAGES)
    return ResponsesRequest(
        endpoint="responses",
        model=valid.model,
        messages=messages,
        sampling=_sampling(valid, structure),
        tools=tools,
        tool_choice=tool_choice,
        stream=valid.stream,
        user=valid.user or valid.safety_identifier,
        service_tier=valid.service_tier,
        cache_key=valid.prompt_cache_key or "",
        on_disconnect="continue" if valid.background else "cancel",
        fallback=valid.fallback,
        background=valid.background,
        echo=_echo(valid, is_stored=is_stored),
        store=is_stored,
        turn=turn,
        previous_response_id=valid.previous_response_id,
        conversation_id=None if valid.conversation is None else valid.conversation.id,
    )


def _take_input(given: dict[str, Any]) -> OwnTurn:
    """Read here, item by item: what is left in its place is for validation to find right."""
    if "input" not in given:
        return OwnTurn(messages=[], paths=[], fields=FIELDS)
    turn = read_input(given["input"], goes_on="previous_response_id" in given or "conversation" in given)
    given["input"] = ""
    return turn


def _check_include(include: object) -> None:
    if isinstance(include, list):
        for i, each in enumerate(include[:32]):
            if isinstance(each, str) and each not in INCLUDABLE:
                raise unsupported(f"include[{i}]")


def _asked_tools(tools: object) -> object:
    """Each of them validated; what is no list is left to validation."""
    if not isinstance(tools, list):
        return tools
    check_tool_count(tools)
    return [_asked_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools)]


def _asked_tool(path: str, tool: object) -> FunctionTool:
    if isinstance(tool, dict):
        _check_type(tool, path, "function", _OWN)
        tool = asked(FunctionTool, tool, NOT_OFFERED_IN_TOOL, HINTS_IN_TOOL, path=f"{path}.")
    return validated(FunctionTool, tool, path)


def _asked_choice(choice: object) -> object:
    if isinstance(choice, dict):
        _check_type(choice, "tool_choice", "function", _OWN)
        return validated(FunctionChoice, asked(FunctionChoice, choice, path="tool_choice."), "tool_choice")
    if isinstance(choice, str) and choice in _MODES:
        return choice
    raise invalid("tool_choice", "Input should be none, auto, required, or a function by its name.")


def _check_type(given: object, path: str, offered: str, why: str) -> None:
    if isinstance(given, dict) and isinstance(kind := given.get("type"), str) and kind != offered:
        raise unsupported(f"{path}.type", why)


def _neutral_tool(tool: FunctionTool) -> NeutralTool:
    return NeutralTool(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)


def _neutral_choice(body: ResponsesBody) -> NeutralChoice:
    choice, parallel = body.tool_choice, body.parallel_tool_calls
    if isinstance(choice, FunctionChoice):
        return NeutralChoice(mode="named", name=choice.name, parallel=parallel)
    return NeutralChoice(mode=choice, parallel=parallel)


def _structure(body: ResponsesBody) -> StructuredOutputs | None:
    """Raises RequestError naming the field that cannot stand beside another one."""
    outputs = body.structured_outputs
    asked_for = {"text.format": structure_of(body.text.format), "structured_outputs": outputs and outputs.neutral}
    return only_structure({name: found for name, found in asked_for.items() if found is not None}, body)


def _sampling(body: ResponsesBody, structure: StructuredOutputs | None) -> Sampling:
    """Raises RequestError."""
    if body.max_output_tokens is not None and body.min_tokens > body.max_output_tokens:
        raise invalid("min_tokens", "It is above max_output_tokens.")
    same = {name: getattr(body, name) for name in Sampling.model_fields}
    own = {"max_tokens": body.max_output_tokens, "top_k": max(body.top_k, 0), "structured_outputs": structure}
    return Sampling(**{**same, **own})


def _echo(body: ResponsesBody, *, is_stored: bool) -> str:
    """What `objects.read_echo` reads. Not `user`, which is kept only as a pseudonym.

    Where it would be too long the longest goes first: for texts OpenAI's types have null, tools keep their names.
    What is left then always fits.
    """
    choice = body.tool_choice
    echo: dict[str, Any] = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "store": is_stored,
        "temperature": body.temperature,
        "text": {"format": body.text.format.model_dump(), "verbosity": "medium"},
        "tool_choice": choice.model_dump() if isinstance(choice, FunctionChoice) else choice,
        "tools": [tool.model_dump() for tool in body.tools],
        "top_p": body.top_p,
    }
    if body.conversation is not None:
        echo["conversation"] = echoed_conversation(body.conversation)
    if body.background:
        echo["background"] = True  # Its start says so too, if it ever starts.
    named = [{**tool, "description": None, "parameters": None} for tool in echo["tools"]]
    shorter = {"instructions": None, "text": None, "prompt_cache_key": None, "tools": named}
    while len(told := written(echo)) > MAX_ECHO_CHARS:
        longest = max(shorter, key=lambda name: len(written(echo[name])))
        echo[longest] = shorter.pop(longest)
    return told
