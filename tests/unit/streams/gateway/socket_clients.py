"""What clients of a served gateway's sockets have in common."""

import asyncio
from typing import Any

from websockets.asyncio.client import ClientConnection

from schemas.websocket import SERVER_MESSAGE


async def hear(socket: ClientConnection) -> Any:
    """The next message, checked against the catalogue."""
    async with asyncio.timeout(20):
        return SERVER_MESSAGE.validate_json(await socket.recv())
