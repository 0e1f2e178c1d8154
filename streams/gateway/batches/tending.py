"""Removes what is due: blobs of files that are gone or unknown, batches that ended long ago, what writers have left
that were killed or late.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import structlog

from streams.blobs.port import Blobs, BlobsUnavailable, name_of
from streams.clocks import monotonic_ms
from streams.gateway.batches.port import Batches
from streams.gateway.files.port import Files, Share, blob_of
from streams.gateway.files.sweeping import Sweeping
from streams.metadata.unavailable import MetadataUnavailable
from streams.topics import DAY_MS

TEND_EVERY_S: Final = 20.0
AT_ONCE: Final = 100
MEASURED_EVERY_MS: Final = 60_000
"""All rows are counted for it."""
MAX_SLICES: Final = 20
"""In one turn of tending: no turn lasts for ever."""
_ID: Final = re.compile("batch_[A-Za-z0-9]+")

_log = structlog.get_logger()


class Tending:
    def __init__(
        self, files: Files, batches: Batches, blobs: Blobs, kept_days: int,
        measured: Callable[[Share], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`measured`: told what all tenants have of files."""
        self._files = files
        self._batches = batches
        self._blobs = blobs
        self._kept_days = kept_days
        self._sweeping = Sweeping(files, blobs)
        self._measured = measured
        self._measured_ms: int | None = None

    async def tend(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            try:
                await self.once()
            except (MetadataUnavailable, BlobsUnavailable) as error:
                _log.warning("files_not_tended", why=str(error), repeats=True)
            except Exception as error:  # noqa: BLE001 - what cannot be removed is no reason to end a gateway
                _log.error("files_not_tended", why=type(error).__name__, repeats=True)

    async def once(self) -> None:
        """Raises MetadataUnavailable, BlobsUnavailable."""
        for _ in range(MAX_SLICES):
            due = await self._files.due(AT_ONCE)
            for file_id in due:
                await self._blobs.delete(blob_of(file_id))
            await self._files.drop(due)
            if len(due) < AT_ONCE:
                break
        for _ in range(MAX_SLICES):
            if not await self._batches.purge(self._kept_days * DAY_MS, AT_ONCE):
                break
        await self._remove_parts()
        await self._blobs.tidy()
        await self._measure()
        await self._sweeping.look()  # Once an hour, and all of it: where there are many, nothing else waits for it.

    async def _measure(self) -> None:
        if self._measured_ms is None or monotonic_ms() - self._measured_ms >= MEASURED_EVERY_MS:
            self._measured(await self._files.held())
            self._measured_ms = monotonic_ms()

    async def _remove_parts(self) -> None:
        """Of batches that are over: who was held up beyond its lease may have written them anew when they were gone."""
        # Which there are is asked first: a batch that is begun later has none among them.
        async with aclosing(self._blobs.left_under("batches", AT_ONCE)) as slices:
            async for left in slices:
                batch_ids = [each for each in left if _ID.fullmatch(each)]
                for batch_id in await self._batches.over_among(batch_ids) if batch_ids else ():
                    await self._blobs.delete_under(name_of("batches", batch_id))
