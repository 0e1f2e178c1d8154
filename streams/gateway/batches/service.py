"""What clients ask of files and batches, whatever transport they use."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from uuid import uuid4

import structlog

from streams.at_once import AtOnce
from streams.blobs.port import BlobMissing, Blobs, BlobsUnavailable
from streams.dialects.openai_batch import BatchBody
from streams.gateway.batches import core
from streams.gateway.batches.core import FINAL, Batch, Status
from streams.gateway.batches.port import Batches, NoSuchFile, TooManyBatches
from streams.gateway.batches.runner import Runner
from streams.gateway.errors import ApiError
from streams.gateway.files.port import Deletion, Files, Page, Share, StoredFile, blob_of
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import unavailable
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import BatchSettings, FileSettings

UPLOADS_AT_ONCE: Final = 16
UPLOADS_PER_TENANT: Final = 4
DOWNLOADS_AT_ONCE: Final = 64
DOWNLOADS_PER_TENANT: Final = 16
WAITING_PER_TENANT: Final = 64
"""Those that go on among them."""
TURN_TIMEOUT_S: Final = 10.0
MAX_FILENAME_CHARS: Final = 255
PURPOSES: Final = ("batch", "batch_output")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

_log = structlog.get_logger()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BatchStores:
    """What files and batches are kept in."""

    files: Files
    batches: Batches
    blobs: Blobs


class BatchService:
    """All methods raise ApiError: 404 for what is not the tenant's own, 503 while the stores are away."""

    def __init__(
        self, stores: BatchStores, runner: Runner, file_options: FileSettings, batch_options: BatchSettings
    ) -> None:
        self._files = stores.files
        self._batches = stores.batches
        self._blobs = stores.blobs
        self._runner = runner
        self.file_options = file_options
        self._batch_options = batch_options
        self.uploads = AtOnce(
            "uploads", UPLOADS_AT_ONCE, at_once_per_tenant=UPLOADS_PER_TENANT, present_per_tenant=WAITING_PER_TENANT
        )
        self.downloads = AtOnce(
            "downloads", DOWNLOADS_AT_ONCE, at_once_per_tenant=DOWNLOADS_PER_TENANT,
            present_per_tenant=WAITING_PER_TENANT,
        )  # fmt: skip

    # Files

    async def most_bytes(self, principal: Principal) -> int:
        """That one more file of the tenant's may have."""
        held_bytes = await self._told(self._files.held_bytes(principal.tenant.tenant_id))
        return min(self.file_options.max_file_bytes, max(0, self.file_options.tenant_bytes - held_bytes))

    async def begin(self, principal: Principal) -> str:
        """The id of a file that is on its way."""
        file_id = f"file-{uuid4().hex}"
        await self._told(self._files.begin(principal.tenant.tenant_id, file_id))
        return file_id

    async def write(
        self, principal: Principal, file_id: str, filename: str, pieces: AsyncIterator[bytes]
    ) -> StoredFile:
        """Its bytes. Raises what `pieces` raises."""
        written = await self._told(self._blobs.write(blob_of(file_id), pieces))
        return StoredFile(
            file_id, principal.tenant.tenant_id, _printable(filename), "batch", written.size_bytes,
            written.sha256, 0, None,
        )  # fmt: skip

    async def complete(self, file: StoredFile, lasts_s: int | None) -> StoredFile:
        """From now on it is there. Raises ApiError 400 also where the tenant has too much of files."""
        share = Share(self.file_options.tenant_files, self.file_options.tenant_bytes)
        lasts_ms = None if lasts_s is None else lasts_s * 1_000
        there = await self._told(self._files.complete(file, share, lasts_ms))
        if there is None:
            await self.abandon(file.file_id)
            raise no_room()
        return there

    async def abandon(self, file_id: str, *, is_over: bool = True) -> None:
        """Of a file that is not there, and will not be: its bytes go now, and its row with them. Not where something
        may still come of it (`is_over`): then its row stays until it is due, and whatever came goes with it.
        """
        try:
            await self._blobs.delete(blob_of(file_id))
            if is_over:
                await self._files.drop([file_id])
        except (MetadataUnavailable, BlobsUnavailable) as error:
            _log.warning("file_not_removed", file_id=file_id, why=str(error))  # It is due in time.

    async def file(self, principal: Principal, file_id: str) -> StoredFile:
        is_id = _ID.fullmatch(file_id) is not None
        found = await self._told(self._files.one(principal.tenant.tenant_id, file_id)) if is_id else None
        if found is None:
            raise no_file(file_id)
        return found

    async def files(self, principal: Principal, page: Page) -> Sequence[StoredFile]:
        """One more than its limit, where there are more."""
        if page.after is not None and not _ID.fullmatch(page.after):
            raise _unknown_after()
        if page.purpose is not None and page.purpose not in PURPOSES:
            return []
        found = await self._told(self._files.page(principal.tenant.tenant_id, page))
        if found is None:
            raise _unknown_after()
        return found

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Raises ApiError 409 also while a batch reads it."""
        await self.file(principal, file_id)
        deletion = await self._told(self._files.delete(principal.tenant.tenant_id, file_id))
        if deletion is Deletion.UNKNOWN:
            raise no_file(file_id)
        if deletion is Deletion.IN_USE:
            message = f"The file {file_id!r} is read by a batch that has not ended; cancel that first."
            raise ApiError(409, "file_in_use", message, param="file_id")
        await self.abandon(file_id)

    async def content(self, file: StoredFile) -> AsyncGenerator[bytes, None]:
        """Its first piece is read when this returns. Raises ApiError 404 where its bytes are gone."""
        pieces = self._blobs.read(blob_of(file.file_id))
        try:
            first = await self._told(anext(pieces, b""))
        except BlobMissing:
            raise no_file(file.file_id) from None
        return _from_first(first, pieces)

    # Batches

    async def create(self, principal: Principal, body: BatchBody) -> Batch:
        """Raises ApiError 404 for a file that is not the tenant's, 429 where too many of its batches have not ended."""
        options, tenant_id = self._batch_options, principal.tenant.tenant_id
        if not _ID.fullmatch(body.input_file_id):
            raise no_file(body.input_file_id, "input_file_id")
        batch = Batch(
            batch_id=f"batch_{uuid4().hex}", tenant_id=tenant_id, project_id=principal.key.project_id,
            key_id=principal.key.key_id, input_file_id=body.input_file_id, endpoint=body.endpoint,
            completion_window=body.completion_window, metadata=body.metadata, created_at_ms=0, expires_at_ms=0,
        )  # fmt: skip
        creation = self._batches.create(
            batch, body.window_s * 1_000, most_open=options.tenant_open, most_kept=options.tenant_kept
        )
        try:
            created = await self._told(creation)
        except NoSuchFile:
            raise no_file(body.input_file_id, "input_file_id") from None
        except TooManyBatches:
            message = f"More than {options.tenant_open} batches have not ended."
            raise ApiError(429, "too_many_batches", message, error_type="rate_limit_error") from None
        self._runner.wake()
        return created

    async def batch(self, principal: Principal, batch_id: str) -> Batch:
        is_id = _ID.fullmatch(batch_id) is not None
        found = await self._told(self._batches.one(principal.tenant.tenant_id, batch_id)) if is_id else None
        if found is None:
            raise _no_batch(batch_id)
        return found

    async def batches(self, principal: Principal, page: Page) -> Sequence[Batch]:
        """The newest first; one more than its limit, where there are more."""
        if page.after is not None and not _ID.fullmatch(page.after):
            raise _unknown_after()
        found = await self._told(self._batches.page(principal.tenant.tenant_id, page))
        if found is None:
            raise _unknown_after()
        return found

    async def cancel(self, principal: Principal, batch_id: str) -> Batch:
        """Raises ApiError 409 for one that ends, or has ended otherwise. Of one that is cancelled it is idempotent."""
        await self.batch(principal, batch_id)
        batch = await self._told(self._batches.tell(principal.tenant.tenant_id, batch_id, core.cancel_asked))
        if batch is None:
            raise _no_batch(batch_id)
        if batch.status is Status.FINALIZING or batch.status in FINAL - {Status.CANCELLED}:
            message = f"The batch {batch_id!r} cannot be cancelled: its status is {batch.status.value!r}."
            raise ApiError(409, "batch_not_cancellable", message, param="batch_id")
        self._runner.wake()
        return batch

    async def _told(self, asked: Awaitable[_T]) -> _T:
        try:
            return await asked
        except (MetadataUnavailable, BlobsUnavailable) as error:
            _log.warning("files_and_batches_away", why=str(error), repeats=True)
            raise unavailable("Files and batches cannot be had now.") from None


def _printable(filename: str) -> str:
    return "".join(each if each.isprintable() else "_" for each in filename[:MAX_FILENAME_CHARS])


async def _from_first(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for piece in pieces:
            yield piece
    finally:
        await pieces.aclose()


def no_file(file_id: str, param: str = "file_id") -> ApiError:
    """The same for one that never was, that is gone, and that belongs to somebody else."""
    return ApiError(404, "file_not_found", f"No such File object: {file_id[:100]!r}.", param=param)


def no_room() -> ApiError:
    message = "Your organisation's files take all the room that they may; delete some."
    return ApiError(400, "file_storage_full", message, param="file")


def _no_batch(batch_id: str) -> ApiError:
    return ApiError(404, "batch_not_found", f"No batch found with id {batch_id[:100]!r}.", param="batch_id")


def _unknown_after() -> ApiError:
    return ApiError(400, "invalid_request", "after: nothing of yours in this list has that id.", param="after")
