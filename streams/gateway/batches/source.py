"""The lines of a file as they are asked for, from any line on; holds a piece of it at a time."""

import hashlib
from collections import deque
from typing import Final

from streams.blobs.port import Blobs
from streams.gateway.batches.lines import Line, Lines

SLICE_BYTES: Final = 4_194_304
"""Of lines that are taken together, beyond the first of them."""


class Source:
    def __init__(self, blobs: Blobs, name: str, max_line_bytes: int, *, number: int = 0, at: int = 0) -> None:
        """From the line with that number on, which begins at that byte. Close it."""
        self._pieces = blobs.read(name, at)
        self._lines = Lines(max_line_bytes, number=number, at=at)
        self._ready: deque[Line] = deque()
        self._has_ended = False
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what was read of it."""
        return self._digest.hexdigest()

    async def take(self, most: int) -> list[Line]:
        """The next lines; none at its end. Raises BlobMissing, BlobChanged, BlobsUnavailable: then it is of no use any
        more.
        """
        taken: list[Line] = []
        size_bytes = 0
        while len(taken) < most and size_bytes < SLICE_BYTES:
            if self._ready:
                taken.append(self._ready.popleft())
                size_bytes += len(taken[-1].raw or b"")
            elif self._has_ended:
                break
            else:
                await self._read_on()
        return taken

    async def _read_on(self) -> None:
        piece = await anext(self._pieces, None)
        if piece is None:
            self._has_ended = True
            self._ready += self._lines.close()
        else:
            self._digest.update(piece)
            self._ready += self._lines.feed(piece)

    async def close(self) -> None:
        await self._pieces.aclose()
