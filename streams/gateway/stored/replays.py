"""Stored responses read back: a few at a time, each told in pieces like any replay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from streams.at_once import AtOnce, TooManyAtOnce
from streams.clocks import now_ms
from streams.dialects.json_body import LARGE_CHARS
from streams.gateway.history.replay import Replay, Rest, UnreadableEntry
from streams.gateway.stored.port import StoredResponses, StoredTurn
from streams.metadata.unavailable import MetadataUnavailable

AT_ONCE: Final = 16
"""Each may hold as much as is kept of one."""
AT_ONCE_OF_TENANT: Final = 4
MAX_READS_OF_TENANT: Final = 1_000
TURN_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger()


class StoredReplays:
    """Every method raises MetadataUnavailable, also where too many are read."""

    def __init__(self, stored: StoredResponses) -> None:
        self.stored = stored
        self.reads = AtOnce(
            "stored responses are being read", AT_ONCE, at_once_per_tenant=AT_ONCE_OF_TENANT,
            present_per_tenant=MAX_READS_OF_TENANT,
        )  # fmt: skip

    async def one(self, tenant_id: str, response_id: str) -> StoredTurn | None:
        """None: not there, deleted, or expired."""
        async with self._turn(tenant_id):
            return await self.stored.one(tenant_id, response_id, now_ms())

    async def read(self, tenant_id: str, response_id: str, after: int) -> Replay | None:
        """What it told beyond `after`, or a first piece of it, and its end. None where that is not stored."""
        # Until it is folded: what waits for that holds all that is kept of it.
        async with self._turn(tenant_id):
            turn = await self.stored.one(tenant_id, response_id, now_ms())
            if turn is None or turn.told is None:
                return None
            try:
                if len(turn.told) <= LARGE_CHARS:
                    return _folded(turn.told, after)
                return await asyncio.to_thread(_folded, turn.told, after)
            except UnreadableEntry as error:
                _log.error("stored_answer_unreadable", response_id=response_id, why=str(error))
                return None

    @asynccontextmanager
    async def _turn(self, tenant_id: str) -> AsyncIterator[None]:
        try:
            async with self.reads.one(tenant_id, TURN_TIMEOUT_S):
                yield
        except TooManyAtOnce as error:
            raise MetadataUnavailable(str(error)) from None


def _folded(told: bytes, after: int) -> Replay:
    """Raises UnreadableEntry."""
    replay = Replay(after)
    replay.add_packed(told)
    replay.rest = Rest(is_stored=True)
    return replay
