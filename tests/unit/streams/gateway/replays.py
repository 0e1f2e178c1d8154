"""What history holds of a response, and a client that asks for the rest of it."""

from typing import Any

import httpx

from schemas.base import Scope
from streams.gateway.fan_out.backlog import HistoryEntry
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Stream
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, started, terminal

ACME = Scope(tenant_id="acme")
HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "on_disconnect": "continue"}


def entry(
    response_id: str, *spans: Span, with_start: bool = False, end: int = 0, is_first: bool = False
) -> HistoryEntry:
    return HistoryEntry(
        Stream(response_id, 0, ACME, 1, 0), started(response_id, ACME) if with_start else None, list(spans),
        terminal(response_id, ACME, end) if end else None, 0, is_first,
    )  # fmt: skip


def span(first: int, text: str) -> Span:
    """One token per character."""
    return Span(first, first + len(text) - 1, 0, "content", text, list(range(1, len(text) + 1)))


def http(stack: Stack) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=60, trust_env=False)


async def text_after(stack: Stack, response_id: str, after: int) -> dict[str, Any]:
    async with http(stack) as client:
        answer = await client.get(f"/v1/chat/completions/{response_id}?stream=true&starting_after={after}")
    return {"status": answer.status_code, "text": answer.text}
