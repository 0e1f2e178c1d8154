"""What of a prompt comes from a client: how much text, and every text that phrases are looked for in."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from schemas.request import Message, Tool
from streams.chat_template import arguments_of
from streams.json_escapes import unescaped
from streams.json_values import separators


class PromptSize(NamedTuple):
    """Of clients' texts, before a template has written its own around them: `chars` in them all, `turns` of messages
    and calls, and at most so many `values` in the arguments of calls and in tools.
    """

    chars: int
    turns: int = 0
    values: int = 0


def prompt_size(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> PromptSize:
    chars = sum(len(tool.as_json) for tool in tools)
    turns, values = len(messages), sum(separators(tool.as_json) for tool in tools)
    for message in messages:
        chars += sum(len(part.text) for part in message.content)
        turns += len(message.tool_calls)
        for call in message.tool_calls:
            chars += len(call.name) + len(call.arguments)
            values += separators(call.arguments)
    return PromptSize(chars, turns, values)


def texts_of_messages(messages: Sequence[Message]) -> Iterator[str]:
    """What they say, what they called, and by which ids. Arguments are read as the JSON that they are; what is none,
    as it stands there too.
    """
    for message in messages:
        yield message.text
        for call in message.tool_calls:
            yield call.id
            yield call.name
            yield unescaped(call.arguments)
            if "\\" in call.arguments and not isinstance(arguments_of(call), dict):
                yield call.arguments
        if message.tool_call_id:
            yield message.tool_call_id


def texts_of_tools(tools: Sequence[Tool]) -> Iterator[str]:
    for tool in tools:
        yield unescaped(tool.as_json)
