"""Anthropic's own package for a served gateway, and its event streams as they stand."""

from typing import Any

import anthropic

from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.http_clients import client

HI: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Hi"}]
HELLO: dict[str, Any] = {"model": "small", "max_tokens": 16, "messages": HI}


def package(
    stack: Stack, *, max_retries: int = 0, api_key: str | None = KEY, auth_token: str | None = None
) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=stack.url, max_retries=max_retries, api_key=api_key, auth_token=auth_token)


async def raw_stream(stack: Stack, **headers: str) -> str:
    async with client(stack, **headers) as http:
        return (await http.post("/v1/messages", json={**HELLO, "stream": True})).text


def of_events(text: str) -> list[dict[str, str]]:
    """The lines of each event, by name."""
    blocks = (block.splitlines() for block in text.split("\n\n") if block)
    return [dict(line.split(": ", 1) for line in lines) for lines in blocks]
