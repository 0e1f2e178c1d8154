"""Tools as Chat Completions has them: functions, which of them to call, and the calls of earlier answers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from schemas.request import MAX_TEXT_CHARS, MAX_TOOL_CALLS, CalledName, CallId, Tool, ToolCall, ToolChoice
from streams.dialects.fields import WIRE, NotOffered, asked, check_length, invalid, unsupported, validated
from streams.dialects.openai_parameters import (
    HINTS_IN_CALL,
    HINTS_IN_CALLED,
    HINTS_IN_TOOL,
    NOT_OFFERED_CHOICES,
    NOT_OFFERED_IN_TOOL,
    NOT_OFFERED_TOOLS,
)
from streams.dialects.tool_turns import check_tool_count, check_tools, settled_choice

FunctionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
"""OpenAI's are shorter than Anthropic's."""
ToolMode = Literal["none", "auto", "required"]
_MODES: Final = ("none", "auto", "required")
_NONE: Mapping[str, Any] = {}


class ChatFunction(BaseModel):
    model_config = WIRE

    name: FunctionName
    description: str = Field(default="", max_length=MAX_TEXT_CHARS)
    parameters: dict[str, Any] | None = Field(default=None, description="JSON Schema of its arguments.")
    strict: bool = Field(default=False, description="Whether its arguments are bound to their schema.")


class ChatTool(BaseModel):
    model_config = WIRE

    type: Literal["function"]
    function: ChatFunction


class ChosenFunction(BaseModel):
    model_config = WIRE

    name: FunctionName


class ChosenTool(BaseModel):
    """The one to call."""

    model_config = WIRE

    type: Literal["function"]
    function: ChosenFunction


class CalledFunction(BaseModel):
    model_config = WIRE

    name: CalledName
    arguments: str = Field(default="", max_length=MAX_TEXT_CHARS, description="As the answer had them.")


class ChatCall(BaseModel):
    model_config = WIRE

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


def asked_tools(tools: object) -> object:
    """Tools without what asks for nothing, each of them validated; what is no list is left to validation.

    Raises RequestError for the first one that is wrong, and looks at nothing behind it.
    """
    if not isinstance(tools, list):
        return tools
    check_tool_count(tools)
    paths = (f"tools[{i}]" for i in range(len(tools)))
    return [validated(ChatTool, _asked_of_tool(path, tool), path) for path, tool in zip(paths, tools, strict=True)]


def asked_choice(choice: object) -> object:
    """Raises RequestError for what is neither a mode nor a function."""
    if isinstance(choice, dict):
        if choice.get("type") in NOT_OFFERED_CHOICES:
            raise unsupported("tool_choice.type", "any of the tools may be called, or one by name")
        left = _asked_with_function(ChosenTool, ChosenFunction, "tool_choice", choice)
        return validated(ChosenTool, left, "tool_choice")
    if choice not in _MODES:
        raise invalid("tool_choice", "Input should be 'none', 'auto', 'required' or an object that names a function.")
    return choice


def asked_calls(path: str, calls: object) -> object:
    """Calls without what asks for nothing; what is no list is left to validation. Raises RequestError for too many."""
    if not isinstance(calls, list):
        return calls
    check_length(path, calls, MAX_TOOL_CALLS)
    return [
        _asked_with_function(
            ChatCall, CalledFunction, f"{path}[{i}]", call, hints=HINTS_IN_CALL, function_hints=HINTS_IN_CALLED
        )
        if isinstance(call, dict)
        else call
        for i, call in enumerate(calls)
    ]


def neutral_tools(tools: Sequence[ChatTool]) -> list[Tool]:
    """Raises RequestError for what no dialect takes."""
    functions = (tool.function for tool in tools)
    found = [
        Tool(name=each.name, description=each.description, parameters=each.parameters, strict=each.strict)
        for each in functions
    ]
    check_tools(found, lambda index: f"tools[{index}].function", schema="parameters")
    return found


def neutral_choice(choice: ToolMode | ChosenTool, tools: Sequence[Tool], *, parallel: bool) -> ToolChoice | None:
    """None without tools. Raises RequestError for one that cannot be made."""
    if isinstance(choice, ChosenTool):
        wanted = ToolChoice(mode="named", name=choice.function.name, parallel=parallel)
    else:
        wanted = ToolChoice(mode=choice, parallel=parallel)
    return settled_choice(wanted, tools, name="tool_choice.function.name")


def neutral_call(call: ChatCall) -> ToolCall:
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)


def _asked_of_tool(path: str, tool: object) -> object:
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") in NOT_OFFERED_TOOLS:
        raise unsupported(f"{path}.type")
    return _asked_with_function(
        ChatTool, ChatFunction, path, tool, not_offered=NOT_OFFERED_IN_TOOL, hints=HINTS_IN_TOOL
    )


def _asked_with_function(
    kind: type[BaseModel],
    function_kind: type[BaseModel],
    path: str,
    given: Mapping[str, Any],
    *,
    not_offered: Mapping[str, NotOffered] = _NONE,
    hints: Mapping[str, type] = _NONE,
    function_hints: Mapping[str, type] = _NONE,
) -> dict[str, Any]:
    left = asked(kind, given, not_offered, hints, path=f"{path}.")
    if isinstance(function := left.get("function"), dict):
        left["function"] = asked(function_kind, function, hints=function_hints, path=f"{path}.function.")
    return left
