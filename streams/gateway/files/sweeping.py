"""Finds blobs of files that no row names: of a writer that was held up until its row was dropped, or of files that the
backup which was restored did not know. They are given rows of files that are gone, and go a day later.
"""

import re
from typing import Final

import structlog

from streams.blobs.port import Blobs
from streams.clocks import monotonic_ms
from streams.gateway.files.port import Files
from streams.topics import HOUR_MS

AT_ONCE: Final = 1_000
REST_MS: Final = HOUR_MS
"""After the last of them."""
_ID: Final = re.compile("file-[A-Za-z0-9-]+")

_log = structlog.get_logger()


class Sweeping:
    def __init__(self, files: Files, blobs: Blobs) -> None:
        self._files = files
        self._blobs = blobs
        self._after = ""
        self._rests_until_ms = 0

    async def look(self) -> None:
        """At the next ones to which nothing was written for a day. Raises MetadataUnavailable, BlobsUnavailable."""
        if monotonic_ms() < self._rests_until_ms:
            return
        left = await self._blobs.left_under("files", self._after, AT_ONCE)
        await self._condemn([each for each in left if _ID.fullmatch(each)])
        self._after = left[-1] if len(left) == AT_ONCE else ""
        if not self._after:
            self._rests_until_ms = monotonic_ms() + REST_MS

    async def _condemn(self, file_ids: list[str]) -> None:
        unknown = await self._files.unknown(file_ids)
        if 2 * len(unknown) > len(file_ids):
            # A database that knows so few is rather a wrong one, or waits for its backup.
            why = "the database knows less than half of these files"
            _log.error("files_unknown", why=why, unknown=len(unknown), files=len(file_ids), repeats=True)
        elif unknown:
            _log.warning("files_without_rows", files=len(unknown), first=unknown[0], repeats=True)
            await self._files.condemn(unknown)
