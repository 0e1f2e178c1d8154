"""Blobs in memory: what the contract's suite holds against the folder, and gateways are tested on."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator

from streams.blobs.port import CHUNK_BYTES, BlobChanged, BlobMissing, BlobsUnavailable, Written


class MemoryBlobs:
    """`is_away`: every call fails."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._old: set[str] = set()
        self.is_away = False

    def names(self) -> list[str]:
        return sorted(self._blobs)

    def change(self, name: str, data: bytes) -> None:
        """What somebody does who writes past the store."""
        self._blobs[name] = data

    def pass_time(self) -> None:
        """All that is there was written long ago."""
        self._old = {*self._blobs}

    def _at_hand(self) -> dict[str, bytes]:
        if self.is_away:
            raise BlobsUnavailable("away")
        return self._blobs

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> Written:
        self._at_hand()
        data = b"".join([piece async for piece in pieces])
        self._old.discard(name)
        self._at_hand()[name] = data
        return Written(len(data), hashlib.sha256(data).hexdigest())

    async def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        data = self._at_hand().get(name)
        if data is None or len(data) < max(begin, end or 0):
            raise BlobMissing(name)
        until = len(data) if end is None else end
        for at in range(begin, until, CHUNK_BYTES):
            if self._at_hand().get(name) is not data:
                raise BlobChanged(name)
            yield data[at : min(at + CHUNK_BYTES, until)]

    async def append(self, name: str, at: int, data: bytes) -> None:
        blobs = self._at_hand()
        before = blobs.get(name, b"")
        if len(before) < at:
            raise BlobMissing(name)
        self._old.discard(name)
        blobs[name] = before[:at] + data

    async def delete(self, name: str) -> None:
        self._at_hand().pop(name, None)

    async def delete_under(self, name: str) -> None:
        blobs = self._at_hand()
        for each in [each for each in blobs if each.startswith(f"{name}/")]:
            del blobs[each]

    async def left_under(self, name: str, at_once: int) -> AsyncGenerator[list[str], None]:
        own = [each for each in self._at_hand() if each.startswith(f"{name}/")]
        young = {_behind(name, each) for each in own if each not in self._old}
        names = list(dict.fromkeys(_behind(name, each) for each in own))
        for begin in range(0, len(names), at_once):
            self._at_hand()
            yield [each for each in names[begin : begin + at_once] if each not in young]

    async def tidy(self) -> None:
        self._at_hand()


def _behind(name: str, blob: str) -> str:
    return blob.removeprefix(f"{name}/").partition("/")[0]
