"""A conversation of the training text as a request has it."""

from __future__ import annotations

import json

from models import corpus
from schemas.request import Message, TextPart, Tool, ToolCall


def as_requested(conversation: corpus.Conversation) -> tuple[list[Message], list[Tool]]:
    """Its messages and its tools. Calls get ids in their order, and results those of the calls before them."""
    messages: list[Message] = []
    waiting: list[str] = []
    called = 0
    for message in conversation.messages:
        content = [TextPart(text=message.content)] if message.content else []
        calls = []
        for call in message.calls:
            called += 1
            waiting.append(f"call_{called}")
            calls.append(ToolCall(id=waiting[-1], name=call.name, arguments=json.dumps(call.arguments)))
        answered = waiting.pop(0) if message.role == "tool" else None
        messages.append(Message(role=message.role, content=content, tool_calls=calls, tool_call_id=answered))
    tools = [
        Tool(name=tool.name, description=tool.description, parameters=dict(tool.parameters))
        for tool in conversation.tools
    ]
    return messages, tools
