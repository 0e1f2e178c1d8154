"""What the stories of stored responses share: a store that outlives gateways, and conversations with one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import openai
from openai.types.responses import Response

from schemas.request import Request
from streams import redis_keys
from streams.gateway.history.store import connect_history
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import Answer
from tests.unit.streams.gateway.gateway_stack import Stack, until

ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
DAY_MS = 86_400_000


class SlowStore(MemoryStoredResponses):
    """Completes nothing before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_complete = asyncio.Event()

    async def complete(self, answers: Sequence[Answer]) -> None:
        await self.may_complete.wait()
        await super().complete(answers)


async def ask(
    stack: Stack, api: openai.AsyncOpenAI, said: Any, tokens: Sequence[str] = ("Par", "is", "."), **more: Any
) -> tuple[Response, Request]:
    """A response that the pipeline answers so."""
    answering = asyncio.ensure_future(stack.pipeline.answer(tokens))
    response = await api.responses.create(model="small", input=said, **more)
    return response, await answering


async def ask_for_calls(stack: Stack, api: openai.AsyncOpenAI, arguments: Sequence[str], **more: Any) -> Response:
    """A response that calls `add`, once for each."""

    async def call() -> None:
        request = await stack.pipeline.next_request()
        stack.pipeline.start(request)
        for number, text in enumerate(arguments):
            stack.pipeline.say(request, 2 * number + 1, "tool_name", "add", call=number)
            stack.pipeline.say(request, 2 * number + 2, "tool_arguments", text, call=number)
        stack.pipeline.end(request, 2 * len(arguments) + 1)

    calling = asyncio.ensure_future(call())
    tools: Any = [ADD]
    response: Response = await api.responses.create(model="small", input="Add.", tools=tools, **more)
    await calling
    return response


async def completed(stored: MemoryStoredResponses) -> None:
    await until(lambda: not stored.open_ids(), "every row is complete")


def said(request: Request) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in request.messages]


async def forget_replay(stack: Stack, response_id: str, tenant_id: str = "acme") -> None:
    """Redis has evicted it; the log is for the story to replace."""
    async with connect_history(stack.settings.redis) as redis:
        await redis.delete(redis_keys.history(stack.settings.region, tenant_id, response_id))


def error_of(refused: httpx.Response) -> tuple[int, str, str, str | None]:
    told = refused.json()["error"]
    return refused.status_code, told["code"], told["message"], told["param"]


def previous_not_found(response_id: str) -> tuple[int, str, str, str | None]:
    """In OpenAI's words."""
    message = f"Previous response with id '{response_id}' not found."
    return 404, "previous_response_not_found", message, "previous_response_id"


def never(_: object) -> bool:
    return False
