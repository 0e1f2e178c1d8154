"""Clients of a served gateway over HTTP, and what they read of its event streams."""

import json
from typing import Any

import httpx
import openai

from tests.unit.streams.gateway.gateway_stack import (
    KEY,
    Stack,
)

HELLO: dict[str, Any] = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
AUTH = {"authorization": f"Bearer {KEY}"}


def sdk(stack: Stack, *, max_retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=KEY, max_retries=max_retries)


def client(stack: Stack, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={**AUTH, **headers}, timeout=60, trust_env=False)


def events_of(text: str) -> list[tuple[str | None, str]]:
    """(id, data) of each server-sent event."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            events.append((fields.get("id"), fields["data"]))
    return events


def text_of(events: list[tuple[str | None, str]]) -> str:
    chunks = [json.loads(data) for _, data in events if data != "[DONE]"]
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk.get("choices", []))
