"""A conversation as the Responses API has it: a string, or a list of items, each of them looked at in turn."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, Field, field_validator

from schemas.request import (
    MAX_MESSAGES,
    MAX_PARTS_OF_MESSAGE,
    MAX_TEXT_CHARS,
    MAX_TOOL_CALLS,
    CalledName,
    CallId,
    Message,
    TextPart,
    ToolCall,
)
from streams.dialects.fields import MAX_PARTS, WIRE, asked, check_length, invalid, list_of, unsupported, validated
from streams.dialects.neutral import OwnTurn, TurnFields
from streams.dialects.responses.parameters import HINTS_IN_ITEM, HINTS_IN_PART
from streams.dialects.tool_turns import check_turns


class InputPart(BaseModel):
    """`input_text` of whom the model listens to, `output_text` of what it said itself."""

    model_config = WIRE

    type: Literal["input_text", "output_text"]
    text: str = Field(max_length=MAX_TEXT_CHARS)


_Parts = Annotated[list[InputPart], Field(min_length=1, max_length=MAX_PARTS_OF_MESSAGE, fail_fast=True)]


class _Said(BaseModel):
    model_config = WIRE

    @field_validator("content", "output", mode="before", json_schema_input_type=str | _Parts, check_fields=False)
    @classmethod
    def _text_as_part(cls, content: object) -> object:
        if isinstance(content, str):
            return [{"type": "input_text", "text": content}]
        return list_of("text parts", content)


class MessageItem(_Said):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Parts


class FunctionCallItem(BaseModel):
    """A call that an earlier answer made, as it was told."""

    model_config = WIRE

    type: Literal["function_call"]
    call_id: CallId
    name: CalledName
    arguments: str = Field(max_length=MAX_TEXT_CHARS)


class FunctionCallOutputItem(_Said):
    """What came of a call that stands before it."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: _Parts


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem
_KINDS: Final[Mapping[str, type[Item]]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
}
FIELDS: Final = TurnFields("input", calls="call_id", result="call_id")
_BY_RESPONSE: Final = "previous_response_id goes on with stored items, others are sent whole"


def read_input(given: object, *, goes_on: bool = False) -> OwnTurn:
    """Raises RequestError for the first item that is wrong, and looks at nothing behind it.

    What `goes_on` may hold results of calls that were made before it: `continuation` looks at those.
    """
    if isinstance(given, str):
        said = Message(role="user", content=[TextPart(text=_bounded(given))])
        return OwnTurn(messages=[said], paths=["input"], fields=FIELDS)
    if not isinstance(given, list):
        raise invalid("input", "Input should be a string or a list of items.")
    check_length("input", given, MAX_MESSAGES)
    conversation = _Conversation()
    for i, item in enumerate(given):
        path = f"input[{i}]"
        if (valid := _valid(path, item)) is not None:
            conversation.add(path, valid)
    return conversation.finished(goes_on=goes_on)


class _Turn(NamedTuple):
    """`path` is that of its first call, if it makes some."""

    path: str
    role: Literal["system", "user", "assistant", "tool"]
    content: list[TextPart]
    calls: list[ToolCall]
    call_id: CallId | None = None

    def has_room(self, parts: Sequence[InputPart]) -> bool:
        return len(self.content) + len(parts) <= MAX_PARTS_OF_MESSAGE


class _Conversation:
    """Items become turns: what an answer said and the calls that it made next to it are one of them."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._parts = 0

    def add(self, path: str, item: Item) -> None:
        last = self._turns[-1] if self._turns else None
        if isinstance(item, FunctionCallItem):
            if last is None or last.role != "assistant":
                last = _Turn(path, "assistant", [], [])
                self._turns.append(last)
            elif not last.calls:
                last = self._turns[-1] = last._replace(path=path)
            if len(last.calls) == MAX_TOOL_CALLS:
                raise invalid(path, f"An answer makes at most {MAX_TOOL_CALLS} calls.")
            last.calls.append(ToolCall(id=item.call_id, name=item.name, arguments=item.arguments))
        elif isinstance(item, FunctionCallOutputItem):
            self._turns.append(_Turn(path, "tool", self._texts(item.output), [], item.call_id))
        elif item.role == "assistant" and last is not None and last.calls and last.has_room(item.content):
            last.content.extend(self._texts(item.content))
        else:
            role = "system" if item.role == "developer" else item.role
            self._turns.append(_Turn(path, role, self._texts(item.content), []))

    def _texts(self, parts: Sequence[InputPart]) -> list[TextPart]:
        self._parts += len(parts)
        if self._parts > MAX_PARTS:
            raise invalid("input", f"All of it together should have at most {MAX_PARTS} parts.")
        return [TextPart(text=part.text) for part in parts]

    def finished(self, *, goes_on: bool) -> OwnTurn:
        """Raises RequestError also for a call without its result, and a result without its call."""
        if not self._turns:
            raise invalid("input", "There is nothing to answer.")
        messages = [
            Message(role=turn.role, content=turn.content, tool_calls=turn.calls, tool_call_id=turn.call_id)
            for turn in self._turns
        ]
        if not goes_on:
            check_turns(
                messages, lambda index: self._turns[index].path, calls=FIELDS.calls, result=FIELDS.result
            )  # fmt: skip
        return OwnTurn(messages=messages, paths=[turn.path for turn in self._turns], fields=FIELDS)


def _valid(path: str, item: object) -> Item | None:
    """None for what is dropped knowingly: reasoning is left out of a prompt, as templates do."""
    if not isinstance(item, dict):
        raise invalid(path, "Input should be an object.")
    kind_name = item.get("type") or "message"
    if kind_name == "reasoning":
        return None
    kind = _KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        raise unsupported(f"{path}.type", _BY_RESPONSE if kind_name == "item_reference" else "")
    hints = {name: json_type for name, json_type in HINTS_IN_ITEM.items() if name not in kind.model_fields}
    left = asked(kind, item, hints=hints, path=f"{path}.")
    for name in ("content", "output"):
        if name in kind.model_fields and isinstance(parts := left.get(name), list):
            check_length(f"{path}.{name}", parts, MAX_PARTS_OF_MESSAGE)
            left[name] = [_asked_of_part(f"{path}.{name}[{i}].", part) for i, part in enumerate(parts)]
    return validated(kind, left, path)


def _asked_of_part(path: str, part: object) -> object:
    if not isinstance(part, dict):
        return part
    if isinstance(kind := part.get("type"), str) and kind not in ("input_text", "output_text"):
        raise unsupported(f"{path}type", "prompts and answers are text")
    return asked(InputPart, part, hints=HINTS_IN_PART, path=path)


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        raise invalid("input", f"String should have at most {MAX_TEXT_CHARS} characters.")
    return text
