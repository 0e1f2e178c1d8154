"""Finds blobs of files that no row names: of a writer that was held up until its row was dropped, or of files that the
backup which was restored did not know. They are given rows of files that are gone, and go a day later.
"""

import re
from contextlib import aclosing
from typing import Final

import structlog

from streams.blobs.port import Blobs
from streams.clocks import monotonic_ms
from streams.gateway.files.port import Files
from streams.topics import HOUR_MS

AT_ONCE: Final = 1_000
"""Asked of the database together; of more than these in a round, the others are found in the next one."""
REST_MS: Final = HOUR_MS
"""After a round."""
_ID: Final = re.compile("file-[A-Za-z0-9-]+")

_log = structlog.get_logger()


class Sweeping:
    def __init__(self, files: Files, blobs: Blobs) -> None:
        self._files = files
        self._blobs = blobs
        self._rests_until_ms = 0

    async def look(self) -> None:
        """Once an hour, at all to which nothing was written for a day. Raises MetadataUnavailable, BlobsUnavailable:
        the next look begins anew.
        """
        if monotonic_ms() < self._rests_until_ms:
            return
        looked_at = unnamed = 0
        condemned: list[str] = []
        async with aclosing(self._blobs.left_under("files", AT_ONCE)) as slices:
            async for left in slices:
                file_ids = [each for each in left if _ID.fullmatch(each)]
                unknown = await self._files.unknown(file_ids) if file_ids else []
                looked_at += len(file_ids)
                unnamed += len(unknown)
                condemned += unknown[: AT_ONCE - len(condemned)]
        await self._judge(looked_at, unnamed, condemned)
        self._rests_until_ms = monotonic_ms() + REST_MS

    async def _judge(self, looked_at: int, unnamed: int, condemned: list[str]) -> None:
        if 2 * unnamed > looked_at:
            # A database that knows so few is rather a wrong one, or waits for its backup.
            why = "the database knows less than half of these files"
            _log.error("files_unknown", why=why, unknown=unnamed, files=looked_at, repeats=True)
        elif condemned:
            _log.warning("files_without_rows", files=unnamed, first=condemned[0], repeats=True)
            await self._files.condemn(condemned)
