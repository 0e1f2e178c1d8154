"""What of a prompt comes from a client: how much text, and every text that phrases are looked for in."""

import json
from collections.abc import Iterator, Sequence

from schemas.request import Message, Tool
from streams.chat_template import arguments_of, tool_object


def prompt_chars(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
    """How many characters clients' texts have, before a template has written its own around them."""
    chars = sum(len(json.dumps(tool_object(tool), ensure_ascii=False)) for tool in tools)
    for message in messages:
        chars += sum(len(part.text) for part in message.content)
        chars += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return chars


def texts_of_messages(messages: Sequence[Message]) -> Iterator[str]:
    """What they say, what they called, and by which ids: as it was sent, and as a template may write it."""
    for message in messages:
        yield message.text
        for call in message.tool_calls:
            yield call.id
            yield call.name
            yield call.arguments
            if isinstance(arguments := arguments_of(call), dict):
                yield from _texts_of_json(arguments)
        if message.tool_call_id:
            yield message.tool_call_id


def texts_of_tools(tools: Sequence[Tool]) -> Iterator[str]:
    for tool in tools:
        yield from _texts_of_json(tool_object(tool)["function"])


def _texts_of_json(value: object) -> Iterator[str]:
    """Its JSON; each of its strings too, where the JSON has escapes and so may not say what they say."""
    whole = json.dumps(value, ensure_ascii=False)
    yield whole
    if "\\" in whole:
        yield from _strings(value)


def _strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _strings(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from _strings(each)
