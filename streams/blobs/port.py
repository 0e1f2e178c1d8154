"""Blobs: bytes by name, which are written and read piece by piece. One suite holds every implementation to this.

A name is known to be valid: `name_of` makes it. Several processes may share a store.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_BYTES: Final = 262_144
"""A piece that is read is no larger."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")


class BlobMissing(Exception):
    """There is no such blob, or less of it than was asked for. It does not come back by waiting."""


class BlobChanged(Exception):
    """It was changed while it was read: what was read of it before may belong to what is read now, or not."""


class BlobsUnavailable(Exception):
    """The store did not do it, or not in time: its disk is full, or away. The same may succeed later."""


@dataclass(frozen=True, slots=True)
class Written:
    size_bytes: int
    sha256: str


class Blobs(Protocol):
    """Every method raises BlobsUnavailable."""

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> Written:
        """All of it or nothing, on disk when it returns; in the place of what had that name. Raises what `pieces`
        raises: then there is what was there before.
        """

    def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """From `begin` up to `end`, or to its end. Raises BlobMissing, and BlobChanged; close it if it is not read to
        the end.
        """

    async def append(self, name: str, at: int, data: bytes) -> None:
        """`data` stands at `at`, on disk, and nothing behind it. What stood there before, of a writer that was killed,
        is gone. One writes to a name at a time. Raises BlobMissing where there is less than `at`.
        """

    async def delete(self, name: str) -> None:
        """Also of what is not there."""

    async def delete_under(self, name: str) -> None:
        """All whose names begin with it and a slash."""

    def left_under(self, name: str, at_once: int) -> AsyncGenerator[list[str], None]:
        """What comes next in names that begin with it and a slash, where nothing was written for a day: in one pass and
        no order, each time what is left of so many names. What is written or deleted meanwhile may be told or not.
        """

    async def tidy(self) -> None:
        """Removes what writers that were killed have left, some time later."""


def name_of(*parts: str) -> str:
    """Raises ValueError for what is no name: no part of it ever comes from a client."""
    name = "/".join(parts)
    if not _NAME.fullmatch(name):
        raise ValueError(f"no name of a blob: {name[:100]!r}")
    return name
