"""The keys of a region, and how the old ones of them are forgotten."""

import asyncio
from typing import Final

import structlog

from streams.gateway.idempotency.port import IdempotencyKeys
from streams.gateway.shedding import Grown
from streams.metadata.unavailable import MetadataUnavailable

TEND_EVERY_S: Final = 20.0
FORGET_AT_ONCE: Final = 1_000
MAX_SLICES: Final = 50
"""In one turn of tending: no slice holds the database for long, and no turn lasts for ever."""

_log = structlog.get_logger()


class TendedKeys:
    def __init__(self, store: IdempotencyKeys, tenant_keys: int) -> None:
        self.store = store
        self._tenant_keys = tenant_keys
        self._grown = Grown("idempotency_keys_shed")

    def grew(self, tenant_id: str) -> None:
        self._grown.grew(tenant_id)

    async def tend(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            try:
                await self.forget()
            except MetadataUnavailable as error:
                _log.warning("idempotency_keys_not_tended", why=str(error), repeats=True)

    async def forget(self) -> None:
        """What has expired, and what tenants have beyond their bound, in slices. Raises MetadataUnavailable."""
        for _ in range(MAX_SLICES):
            if not await self.store.purge(FORGET_AT_ONCE):
                break
        await self._grown.shed(self._shed, MAX_SLICES)

    async def _shed(self, tenant_id: str) -> int:
        return await self.store.shed(tenant_id, self._tenant_keys, FORGET_AT_ONCE)
