"""Cancels on `control`: they end a response wherever it runs, and whoever serves it."""

import asyncio

import structlog

from schemas.base import Scope
from schemas.control import Cancel
from streams.clocks import now_ms
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.stream import Stream
from streams.gateway.service.background import Background
from streams.gateway.service.ports import ACKNOWLEDGE_TIMEOUT_S, Sender
from streams.gateway.service.refusals import unavailable
from streams.log.port import LogError

_log = structlog.get_logger()


class CancelWriter:
    def __init__(self, sender: Sender, topic: str, background: Background) -> None:
        self._sender = sender
        self._topic = topic
        self._background = background

    async def write(self, response_id: str, scope: Scope, reason: str) -> None:
        """Returns once the log has it. Raises ApiError 503."""
        record = Cancel.model_validate(
            {"response_id": response_id, "scope": scope, "reason": reason, "requested_at_ms": now_ms()}
        )
        try:
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await self._sender.send(self._topic, record.encode(), key=response_id)
        except (LogError, TimeoutError):
            raise unavailable("The cancellation could not be stored.") from None

    def write_soon(self, stream: Stream) -> None:
        """Nobody comes for its answer any more, and nobody waits for this."""
        self._background.run(self._write_soon(stream))

    async def _write_soon(self, stream: Stream) -> None:
        try:
            await self.write(stream.response_id, stream.scope, "disconnect")
        except ApiError as error:
            # It may still leave the producer's queue; if not, the response's own deadline ends it.
            _log.warning("cancel_not_stored", response_id=stream.response_id, why=error.message)
