"""What clients of a served gateway's sockets have in common."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from schemas.websocket import SERVER_MESSAGE, Delta, TerminalMessage
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import AUTH


def dial(stack: Stack, **options: Any) -> connect:
    return connect(stack.websocket_url, **{"additional_headers": AUTH, "proxy": None, **options})


async def say(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection) -> Any:
    """The next message, checked against the catalogue."""
    async with asyncio.timeout(60):
        return SERVER_MESSAGE.validate_json(await socket.recv())


@asynccontextmanager
async def resuming(stack: Stack, response_id: str, after: int) -> AsyncIterator[ClientConnection]:
    async with dial(stack) as socket:
        await say(socket, type="resume", response_id=response_id, starting_after=after)
        yield socket


async def hear_until_terminal(socket: ClientConnection) -> tuple[list[Any], str]:
    """Everything up to a terminal, and the text; checks that sequence numbers have no gap."""
    seen: list[Any] = []
    text, last = "", None
    while not (seen and isinstance(seen[-1], TerminalMessage)):
        message = await hear(socket)
        seen.append(message)
        if isinstance(message, Delta):
            assert last is None or message.first_sequence == last + 1
            last = message.sequence_number
            text += message.text
    return seen, text
