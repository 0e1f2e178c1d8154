"""The lines of a file as they are asked for, from any line on; holds a piece of it at a time."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from streams.blobs.port import Blobs
from streams.gateway.batches.lines import Line, Lines

SLICE_BYTES: Final = 4_194_304
"""Of lines that are taken together, beyond the first of them, and of the file that is read for them."""


class Source:
    def __init__(self, blobs: Blobs, name: str, max_line_bytes: int, *, number: int = 0, at: int = 0) -> None:
        """From the line with that number on, which begins at that byte. Close it."""
        self._pieces = blobs.read(name, at)
        self._lines = Lines(max_line_bytes, number=number, at=at)
        self._cut: Iterator[Line] = iter(())
        """Of the piece that was read last those that were not taken yet."""
        self._is_read = False
        self._has_ended = False
        self._digest = hashlib.sha256()

    @property
    def has_ended(self) -> bool:
        """All its lines were taken."""
        return self._has_ended

    @property
    def sha256(self) -> str:
        """Of what was read of it."""
        return self._digest.hexdigest()

    async def take(self, most: int) -> list[Line]:
        """The next lines, cut on a thread. None at its end, and none where a slice was read that no line ends in.

        Raises BlobMissing, BlobChanged, BlobsUnavailable: then it is of no use any more.
        """
        taken: list[Line] = []
        read_bytes = 0
        while not self._has_ended and read_bytes < SLICE_BYTES:
            if await asyncio.to_thread(self._fill, taken, most):
                break
            if self._is_read:
                self._has_ended = True
            else:
                read_bytes += await self._read_on()
        return taken

    async def next(self, most: int, keep: Callable[[], Awaitable[None]]) -> list[Line]:
        """As `take`, but none at its end alone; `keep` is awaited behind each slice that no line ends in."""
        while not (lines := await self.take(most)) and not self._has_ended:
            await keep()
        return lines

    def _fill(self, taken: list[Line], most: int) -> bool:
        """On a thread. Whether so many are enough."""
        size_bytes = sum(len(line.raw or b"") for line in taken)
        while len(taken) < most and size_bytes < SLICE_BYTES:
            if (line := next(self._cut, None)) is None:
                return False
            taken.append(line)
            size_bytes += len(line.raw or b"")
        return True

    async def _read_on(self) -> int:
        """So many bytes."""
        piece = await anext(self._pieces, None)
        if piece is None:
            self._is_read, self._cut = True, self._lines.close()
            return 0
        self._cut = self._cut_from(piece)
        return len(piece)

    def _cut_from(self, piece: bytes) -> Iterator[Line]:
        self._digest.update(piece)
        yield from self._lines.feed(piece)

    async def close(self) -> None:
        await self._pieces.aclose()
