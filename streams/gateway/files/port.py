"""What is kept of a file beside its bytes. Every method raises `MetadataUnavailable`; then it may have been done all
the same.

1. A file is begun: its row is there, and nobody sees it.
2. Its blob is written.
3. It is completed: from now on it is there for its tenant.
4. It is deleted, or has expired: nobody sees it any more.
5. Its blob is deleted.
6. Its row is dropped.

Killed after 1 or 2, or after 4 or 5, the row is `due` in time, and who tends files takes steps 5 and 6. Whoever was
held up before 2 until the row was dropped writes a blob that no row names: it is found in time, and given a row of 4
that is due in a day.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol

from streams.blobs.port import name_of
from streams.topics import DAY_MS

UPLOADED_WITHIN_MS: Final = 2 * 3_600_000
"""Whoever has begun a file has completed it by then, has given up, or is dead."""
CONDEMNED_KEPT_MS: Final = DAY_MS
"""For whoever has restored an older database and misses something."""
Purpose = Literal["batch", "batch_output"]
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    file_id: str
    tenant_id: str
    filename: str
    purpose: str
    size_bytes: int
    sha256: str
    created_at_ms: int
    expires_at_ms: int | None


class Share(NamedTuple):
    """What a tenant may have of files, or has."""

    files: int
    size_bytes: int


class Deletion(Enum):
    DONE = "done"
    UNKNOWN = "unknown"
    IN_USE = "in use"
    """A batch that has not ended reads it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Of a list: what stands behind `after`, as many as `limit`; all of any `purpose` where none is named."""

    after: str | None = None
    limit: int = 20
    order: Order = "desc"
    purpose: str | None = None


class Files(Protocol):
    """Of one region, for all its gateways. Nothing of a tenant's is there for another; the clock is the store's own."""

    async def begin(self, tenant_id: str, file_id: str) -> None:
        """Again, its time begins anew, unless it is complete or gone: then it stays what it is."""

    async def complete(self, file: StoredFile, share: Share | None, lasts_ms: int | None) -> StoredFile | None:
        """As it is there from now on, `created_at_ms` and `expires_at_ms` by the store's clock. Again, it stays what it
        is. None where its tenant would have more than its share, or it was not completed in time: then it is due.
        """

    async def held_bytes(self, tenant_id: str) -> int:
        """Of all files that are there."""

    async def held(self) -> Share:
        """The same of all tenants, and how many files."""

    async def one(self, tenant_id: str, file_id: str) -> StoredFile | None: ...

    async def page(self, tenant_id: str, page: Page) -> Sequence[StoredFile] | None:
        """By when they were created. One more than the page's limit where there are more; None where there is nothing
        behind `after` because it is no file of the tenant's.
        """

    async def delete(self, tenant_id: str, file_id: str) -> Deletion: ...

    async def due(self, limit: int) -> list[str]:
        """Ids of which the blobs are to be deleted, and then the rows: deleted, expired and in no batch's use, or begun
        and not completed in time.
        """

    async def drop(self, file_ids: Sequence[str]) -> None:
        """Of those that are due, deleted or not completed. One that is there stays."""

    async def unknown(self, file_ids: Sequence[str]) -> list[str]:
        """Those that no row names, whatever its step."""

    async def condemn(self, file_ids: Sequence[str]) -> None:
        """Those that no row names are due in a day, and whoever begins one of them meanwhile does not complete it."""


def blob_of(file_id: str) -> str:
    return name_of("files", file_id)
