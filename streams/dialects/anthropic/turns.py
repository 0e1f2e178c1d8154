"""Anthropic's messages as neutral turns: a call belongs to the answer that made it, its result is a turn of its own."""

import json
from collections.abc import Sequence

from schemas.endings import EndingCode
from schemas.request import MAX_MESSAGES, MAX_TEXT_CHARS, MAX_TOOL_CALLS, Message, TextPart, ToolCall
from streams.dialects.anthropic.content import (
    Block,
    MessageParam,
    TextBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
)
from streams.dialects.fields import invalid
from streams.dialects.neutral import RequestError

_FAILED = TextPart(text="Error: ")
"""Before a result that says that it is an error: a template knows text alone."""


class _Calls:
    """Which calls wait for their results: those of one turn of the assistant's, in as many messages as it may have."""

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._open: dict[str, str] = {}

    def make(self, path: str, call_id: str) -> None:
        """Raises RequestError."""
        if call_id in self._made:
            raise invalid(f"{path}.id", "`tool_use` ids must be unique.")
        self._made.add(call_id)
        self._open[call_id] = path

    def answer(self, path: str, call_id: str) -> None:
        """Raises RequestError."""
        if self._open.pop(call_id, None) is None:
            why = (
                f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each `tool_result` block must have"
                " a corresponding `tool_use` block in the previous message."
            )
            raise invalid(f"{path}.tool_use_id", why)

    def close(self) -> None:
        """No more results can come. Raises RequestError."""
        for call_id, path in self._open.items():
            why = (
                f"`tool_use` ids were found without `tool_result` blocks immediately after: {call_id}. Each `tool_use`"
                " block must have a corresponding `tool_result` block in the next message."
            )
            raise invalid(f"{path}.id", why)


def neutral_turns(system: Sequence[TextBlockParam], messages: Sequence[MessageParam]) -> list[Message]:
    """Raises RequestError naming the block where calls and results do not belong together."""
    calls, before = _Calls(), ""
    turns = [Message(role="system", content=_parts(system))] if system else []
    for i, message in enumerate(messages[: _end(messages)]):
        path = f"messages.{i}.content"
        if message.role == "assistant":
            if before == "user":
                calls.close()
            turns += _of_assistant(path, message.content, calls)
        else:
            turns += _of_others(path, message, calls)
        before = message.role if message.role != "system" else before
    calls.close()
    if len(turns) > MAX_MESSAGES:
        raise invalid("messages", f"All of them together should have at most {MAX_MESSAGES} turns and results.")
    return turns


def _end(messages: Sequence[MessageParam]) -> int:
    """Behind the last one that says something: an answer that is to be gone on with is refused, unless it is empty.

    Raises RequestError in Anthropic's own words, which clients recognise.
    """
    end = len(messages)
    while end and _is_empty_answer(messages[end - 1]):
        end -= 1
    if end and messages[end - 1].role != "assistant":
        return end
    path = f"messages.{max(end, 1) - 1}"
    why = "This model does not support assistant message prefill. The conversation must end with a user message."
    raise RequestError(EndingCode.UNSUPPORTED_PARAMETER, f"{path}: {why}", path)


def _is_empty_answer(message: MessageParam) -> bool:
    return message.role == "assistant" and not any(
        not isinstance(block, TextBlockParam) or block.text for block in message.content
    )


def _of_assistant(path: str, blocks: Sequence[Block], calls: _Calls) -> list[Message]:
    """None of one that has nothing but thoughts."""
    made: list[ToolCall] = []
    for i, block in enumerate(blocks):
        if isinstance(block, ToolUseBlockParam):
            calls.make(f"{path}.{i}", block.id)
            made.append(ToolCall(id=block.id, name=block.name, arguments=_arguments(f"{path}.{i}", block)))
    if len(made) > MAX_TOOL_CALLS:
        raise invalid(path, f"It should have at most {MAX_TOOL_CALLS} `tool_use` blocks.")
    parts = _parts(blocks)
    return [Message(role="assistant", content=parts, tool_calls=made)] if parts or made else []


def _of_others(path: str, message: MessageParam, calls: _Calls) -> list[Message]:
    """Results come first: they follow the answer that asked for them."""
    turns: list[Message] = []
    for i, block in enumerate(message.content):
        if isinstance(block, ToolResultBlockParam):
            calls.answer(f"{path}.{i}", block.tool_use_id)
            parts = _parts(block.content) or [TextPart(text="")]
            told = [_FAILED, *parts] if block.is_error else parts
            turns.append(Message(role="tool", content=told, tool_call_id=block.tool_use_id))
    if parts := _parts(message.content):
        turns.append(Message(role="system" if message.role == "system" else "user", content=parts))
    return turns


def _parts(blocks: Sequence[Block]) -> list[TextPart]:
    return [TextPart(text=block.text) for block in blocks if isinstance(block, TextBlockParam)]


def _arguments(path: str, block: ToolUseBlockParam) -> str:
    """As the model wrote them, or would have."""
    if block.input_text is not None:
        return block.input_text
    try:
        text = json.dumps(block.input, ensure_ascii=False)
    except RecursionError:
        raise invalid(f"{path}.input", "It is nested too deeply.") from None
    if len(text) > MAX_TEXT_CHARS:
        raise invalid(f"{path}.input", f"It should have at most {MAX_TEXT_CHARS} characters as JSON.")
    return text
