"""Anthropic's tools: those of the client's own, and which of them an answer may call."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from schemas.request import MAX_TEXT_CHARS, Tool, ToolChoice, ToolName
from streams.dialects.anthropic.content import valid
from streams.dialects.anthropic.parameters import HINTS, NOT_OFFERED_IN_TOOL
from streams.dialects.fields import WIRE, asked, invalid, unsupported
from streams.dialects.tool_turns import check_tool_count, check_tools, settled_choice

_MODES: Final[dict[str, Literal["auto", "none", "required", "named"]]] = {
    "auto": "auto", "any": "required", "tool": "named", "none": "none",
}  # fmt: skip


class ToolParam(BaseModel):
    model_config = WIRE

    type: Literal["custom"] = "custom"
    name: ToolName
    description: str = Field(default="", max_length=MAX_TEXT_CHARS)
    input_schema: dict[str, Any]
    strict: bool = False


class ToolChoiceParam(BaseModel):
    model_config = WIRE

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = Field(default=None, description="Of type `tool`.")
    disable_parallel_tool_use: bool = False


def asked_tools(tools: object) -> object:
    """Each of them validated, without what asks for nothing; what is no list is left to validation.

    Raises RequestError for the first one that is wrong, and looks at nothing behind it.
    """
    if not isinstance(tools, list):
        return tools
    check_tool_count(tools)
    return [valid(ToolParam, _asked_of_tool(f"tools.{i}", tool), f"tools.{i}") for i, tool in enumerate(tools)]


def neutral_tools(tools: Sequence[ToolParam]) -> list[Tool]:
    """Raises RequestError where two have one name, and where they are too large or too deep."""
    neutral = [
        Tool(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
        for tool in tools
    ]
    check_tools(neutral, lambda index: f"tools.{index}", schema="input_schema")
    return neutral


def neutral_choice(choice: ToolChoiceParam | None, tools: Sequence[Tool]) -> ToolChoice | None:
    """None without tools. Raises RequestError for a choice that these do not give."""
    given = choice or ToolChoiceParam(type="auto")
    if given.type == "tool" and given.name is None:
        raise invalid("tool_choice.name", "Field required.")
    if given.type != "tool" and given.name is not None:
        raise unsupported("tool_choice.name", f"there is none of type {given.type!r}")
    mode, parallel = _MODES[given.type], not given.disable_parallel_tool_use
    return settled_choice(ToolChoice(mode=mode, name=given.name, parallel=parallel), tools, name="tool_choice.name")


def _asked_of_tool(path: str, tool: object) -> object:
    if not isinstance(tool, dict):
        return tool
    if isinstance(name := tool.get("type"), str) and name != "custom":
        why = f"{name[:60]!r} is none of the client's own, which have an input_schema"
        raise unsupported(f"{path}.type", why)
    return asked(ToolParam, tool, NOT_OFFERED_IN_TOOL, HINTS, path=f"{path}.")
