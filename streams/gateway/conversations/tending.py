"""The conversations of a region, and how old ones are forgotten."""

import asyncio
from typing import Final

import structlog

from streams.gateway.conversations.port import ConversationStore
from streams.gateway.shedding import Grown
from streams.gateway.stored.port import Bounds
from streams.metadata.unavailable import MetadataUnavailable

TEND_EVERY_S: Final = 20.0
SHED_AT_ONCE: Final = 100
PURGED_AT_ONCE: Final = Bounds(200, 8 * 1024 * 1024)
"""Turns, and their bytes."""
MAX_SLICES: Final = 200
"""In one turn of tending: no slice holds the database for long, and no turn lasts for ever."""

_log = structlog.get_logger()


class TendedConversations:
    def __init__(self, store: ConversationStore, kept: Bounds, replayed_ms: int) -> None:
        """`replayed_ms`: for so long a turn may be told without its row."""
        self.store = store
        self._kept = kept
        self._replayed_ms = replayed_ms
        self._grown = Grown("conversations_shed")

    def grew(self, tenant_id: str) -> None:
        self._grown.grew(tenant_id)

    async def tend(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            try:
                await self.forget()
            except MetadataUnavailable as error:
                _log.warning("conversations_not_tended", why=str(error), repeats=True)

    async def forget(self) -> None:
        """What tenants have beyond their bounds, and what is to be purged, in slices. Raises MetadataUnavailable."""
        await self._grown.shed(self._shed, MAX_SLICES)
        for _ in range(MAX_SLICES):
            if not await self.store.purge(PURGED_AT_ONCE, self._replayed_ms):
                break

    async def _shed(self, tenant_id: str) -> int:
        return await self.store.shed(tenant_id, self._kept, SHED_AT_ONCE)
