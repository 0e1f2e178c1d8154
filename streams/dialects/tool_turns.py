"""What holds of tools, calls and their results in every dialect: bounds, names of one tool each, ids that fit.

Each check raises RequestError for the first thing that is wrong, and names the field as its clients write it.
"""

from collections.abc import Callable, Sequence
from typing import NoReturn

from schemas.endings import EndingCode
from schemas.request import MAX_TOOLS, Message, Tool, ToolChoice
from streams.dialects.neutral import RequestError
from streams.dialects.schema_bounds import check_schema
from streams.json_values import TooDeep, TooManyValues, count_values

MAX_TOOLS_BYTES = 262_144
"""Of all tools of a request, as JSON."""
MAX_SCHEMA_VALUES = 16_384
"""Of all their schemas together: objects, arrays, strings, numbers."""
MAX_SCHEMA_DEPTH = 64
"""Of JSON: a property that is an object is two deeper than the object that has it."""

_AT_MOST_BYTES = f"All of them together should have at most {MAX_TOOLS_BYTES} bytes"
_AT_MOST_VALUES = f"All their schemas together should have at most {MAX_SCHEMA_VALUES} values"
_AT_MOST_DEPTH = f"Schema should be nested at most {MAX_SCHEMA_DEPTH} deep"


def check_tool_count(tools: Sequence[object]) -> None:
    """To be asked before any of them is looked at."""
    if len(tools) > MAX_TOOLS:
        _refuse("tools", f"List should have at most {MAX_TOOLS} items")


def check_tools(tools: Sequence[Tool], path: Callable[[int], str], *, schema: str) -> None:
    """`path` of a tool, by its index, is where its `name` and its `schema` stand: `tools[0].function`, `parameters`."""
    check_tool_count(tools)
    names: set[str] = set()
    values = size_bytes = 0
    for index, tool in enumerate(tools):
        if tool.name in names:
            _refuse(f"{path(index)}.name", f"Another tool is called {tool.name} already")
        names.add(tool.name)
        try:
            values += count_values(tool.parameters, MAX_SCHEMA_VALUES - values, MAX_SCHEMA_DEPTH)
        except TooManyValues:
            _refuse(f"{path(index)}.{schema}", _AT_MOST_VALUES)
        except TooDeep:
            _refuse(f"{path(index)}.{schema}", _AT_MOST_DEPTH)
        try:
            # Calls that must be made are bound to it.
            check_schema(tool.parameters or {})
        except ValueError as error:
            _refuse(f"{path(index)}.{schema}", str(error))
        size_bytes += len(tool.model_dump_json().encode())
        if size_bytes > MAX_TOOLS_BYTES:
            _refuse("tools", _AT_MOST_BYTES)


def settled_choice(choice: ToolChoice, tools: Sequence[Tool], *, name: str) -> ToolChoice | None:
    """The choice as a request has it: none without tools. `name` is the field that names the one to call."""
    if choice.mode == "named" and tools and choice.name not in {tool.name for tool in tools}:
        _refuse(name, f"There is no tool {choice.name} among the tools")
    if choice.mode in ("named", "required") and not tools:
        _refuse("tool_choice", "There are no tools to choose from")
    return choice if tools else None


def check_turns(messages: Sequence[Message], path: Callable[[int], str], *, calls: str, result: str) -> None:
    """Each result is of a call of the last turn that made some, and every call has one before the next turn.

    `path` of a message, by its index, is where its `calls` stand, or the id of the call that it is the `result` of.
    """
    waiting: list[str] = []
    caller = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                _refuse(f"{path(index)}.{result}", f"No call before it waits for the result of {message.tool_call_id}")
            waiting.remove(message.tool_call_id)
        elif message.role != "system":
            _check_answered(waiting, path, caller, calls)
            waiting, caller = [call.id for call in message.tool_calls], index
            if len(set(waiting)) < len(waiting):
                _refuse(f"{path(index)}.{calls}", "Two of them have the same id")
    _check_answered(waiting, path, caller, calls)


def _check_answered(waiting: Sequence[str], path: Callable[[int], str], caller: int, calls: str) -> None:
    if waiting:
        _refuse(f"{path(caller)}.{calls}", f"There is no result of the call {waiting[0]} before the next turn")


def _refuse(param: str, why: str) -> NoReturn:
    raise RequestError(EndingCode.INVALID_REQUEST, f"{param}: {why}.", param)
