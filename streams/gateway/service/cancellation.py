"""Ending a response before its time."""

import asyncio

import structlog

from schemas.base import Scope
from schemas.control import Cancel
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Stream
from streams.gateway.service.background import Background
from streams.gateway.service.clocks import now_ms
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup, Snapshot
from streams.gateway.service.ports import Sender
from streams.gateway.service.refusals import not_found, unavailable
from streams.gateway.service.resumption import Resumption
from streams.log.port import LogError

ACKNOWLEDGE_TIMEOUT_S = 5.0

_log = structlog.get_logger()


class Cancels:
    """Writes cancels to `control`."""

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

    def abandoned(self, stream: Stream) -> None:
        """Nobody watches it any more, and its policy is to end then."""
        self._background.run(self._write_abandoned(stream))

    async def _write_abandoned(self, stream: Stream) -> None:
        try:
            await self.write(stream.response_id, stream.scope, "disconnect")
        except ApiError as error:
            # It may still leave the producer's queue; if not, the response's own deadline ends it.
            _log.warning("cancel_not_stored", response_id=stream.response_id, why=error.message)


class Cancellation:
    """A client's own cancel."""

    def __init__(self, hub: Hub, lookup: Lookup, resumption: Resumption, cancels: Cancels) -> None:
        self._hub = hub
        self._lookup = lookup
        self._resumption = resumption
        self._cancels = cancels

    async def cancel(self, principal: Principal, response_id: str) -> Snapshot:
        """Ends a response, wherever it runs. Idempotent: what has ended stays as it ended.

        The snapshot has no texts: a cancel waits for no replay. Raises ApiError: 404 for an id that is not the
        tenant's, 409 when history cannot tell whose it is, 503 when the cancellation is not stored in time.
        """
        partition = self._lookup.partition(response_id)
        outline = await self._lookup.outline(principal, response_id)
        if outline is None:
            await self._resumption.appears(principal, response_id, partition, in_history=False)
            outline = await self._lookup.outline(principal, response_id)
        if outline is None:
            raise not_found(response_id)
        started, terminal, scope = outline
        if terminal is None and not self._hub.has_ended(response_id):
            await self._cancels.write(response_id, scope, "client")
        return Snapshot(response_id, started, [], terminal.sequence_number if terminal else 0, terminal)
