"""What clients ask of files and batches, whatever transport they use."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import uuid4

import structlog

from schemas.endings import EndingCode
from streams.at_once import AtOnce
from streams.blobs.port import BlobMissing, Blobs, BlobsUnavailable
from streams.dialects.openai_batch import BatchBody
from streams.gateway.batches import core
from streams.gateway.batches.core import FINAL, Batch, Status
from streams.gateway.batches.port import Batches, NoRoom, NoSuchFile, TooManyBatches
from streams.gateway.batches.runner import Runner
from streams.gateway.errors import ApiError
from streams.gateway.files.port import Deletion, Files, Page, Share, StoredFile, blob_of
from streams.gateway.idempotency.keyed import Keyed
from streams.gateway.idempotency.port import Claim, KeyReused, KeyUnknown
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import key_reused, key_unknown, unavailable
from streams.gateway.service.stored_turns import in_turn
from streams.gateway.stored.replays import MAX_READS_OF_TENANT
from streams.metadata.unavailable import MetadataUnavailable, TooManyWait
from streams.settings import BatchSettings, FileSettings

UPLOADS_AT_ONCE: Final = 16
UPLOADS_PER_TENANT: Final = 4
DOWNLOADS_AT_ONCE: Final = 64
DOWNLOADS_PER_TENANT: Final = 16
WAITING_PER_TENANT: Final = 64
"""Those that go on among them."""
TURN_TIMEOUT_S: Final = 10.0
READS_AT_ONCE: Final = 8
READS_PER_TENANT: Final = 2
"""Of what is known of files and batches: a few threads of the database serve all that is stored."""
WRITES_AT_ONCE: Final = 4
"""In all, and one of each tenant: each takes the writer, and the rows of whoever asks next wait for that."""
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
        self, stores: BatchStores, runner: Runner, file_options: FileSettings, batch_options: BatchSettings,
        keys: TendedKeys,
    ) -> None:  # fmt: skip
        self._files = stores.files
        self._batches = stores.batches
        self._blobs = stores.blobs
        self._runner = runner
        self.file_options = file_options
        self._batch_options = batch_options
        self._keys = keys
        self._share = Share(file_options.tenant_files, file_options.tenant_bytes)
        self.uploads = AtOnce(
            "uploads", UPLOADS_AT_ONCE, at_once_per_tenant=UPLOADS_PER_TENANT, present_per_tenant=WAITING_PER_TENANT
        )
        self.downloads = AtOnce(
            "downloads", DOWNLOADS_AT_ONCE, at_once_per_tenant=DOWNLOADS_PER_TENANT,
            present_per_tenant=WAITING_PER_TENANT,
        )  # fmt: skip
        self._reads = AtOnce(
            "files and batches are being read", READS_AT_ONCE, at_once_per_tenant=READS_PER_TENANT,
            present_per_tenant=MAX_READS_OF_TENANT,
        )  # fmt: skip
        self._writes = AtOnce(
            "files and batches are being written", WRITES_AT_ONCE, at_once_per_tenant=1,
            present_per_tenant=MAX_READS_OF_TENANT,
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
        lasts_ms = None if lasts_s is None else lasts_s * 1_000
        there = await self._told(self._files.complete(file, self._share, lasts_ms))
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

    async def file(self, principal: Principal, file_id: str, param: str = "file_id") -> StoredFile:
        is_id = _ID.fullmatch(file_id) is not None
        ask = partial(self._files.one, principal.tenant.tenant_id, file_id)
        found = await self._read(principal, ask) if is_id else None
        if found is None:
            raise no_file(file_id, param)
        return found

    async def files(self, principal: Principal, page: Page) -> Sequence[StoredFile]:
        """One more than its limit, where there are more."""
        if page.after is not None and not _ID.fullmatch(page.after):
            raise _unknown_after()
        if page.purpose is not None and page.purpose not in PURPOSES:
            return []
        found = await self._read(principal, partial(self._files.page, principal.tenant.tenant_id, page))
        if found is None:
            raise _unknown_after()
        return found

    async def delete(self, principal: Principal, file_id: str) -> None:
        """Raises ApiError 409 also while a batch reads it."""
        await self.file(principal, file_id)
        deletion = await self._written(principal, partial(self._files.delete, principal.tenant.tenant_id, file_id))
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

    async def create(self, principal: Principal, body: BatchBody, keyed: Keyed | None = None) -> Batch:
        """With a key whatever came of it before, if anything did.

        Raises ApiError 400 where the tenant's files leave no room for those of a batch, 404 for a file that is not its
        own, 409 for a key of another request, 429 where too many of its batches have not ended. A 503 advises to ask
        again only where no second batch can come of that.
        """
        tenant_id = principal.tenant.tenant_id
        if not _ID.fullmatch(body.input_file_id):
            raise no_file(body.input_file_id, "input_file_id")
        batch = Batch(
            batch_id=f"batch_{uuid4().hex}", tenant_id=tenant_id, project_id=principal.key.project_id,
            key_id=principal.key.key_id, input_file_id=body.input_file_id, endpoint=body.endpoint,
            completion_window=body.completion_window, metadata=body.metadata, created_at_ms=0, expires_at_ms=0,
        )  # fmt: skip
        claim = None if keyed is None else Claim(tenant_id, keyed.key, keyed.digest, batch.batch_id)
        try:
            if claim is None:
                # A database that is away says so here, where nothing has been done.
                await self.file(principal, body.input_file_id, "input_file_id")
            made = partial(self._made, batch, body.window_s * 1_000, claim)
            created = await in_turn(self._writes, tenant_id, made)
        except NoSuchFile:
            raise no_file(body.input_file_id, "input_file_id") from None
        except TooManyBatches:
            message = f"More than {self._batch_options.tenant_open} batches have not ended."
            raise ApiError(429, "too_many_batches", message, error_type="rate_limit_error") from None
        except NoRoom:
            raise no_room("input_file_id") from None
        except KeyReused:
            raise key_reused() from None
        except KeyUnknown:
            raise key_unknown() from None
        if claim is not None:
            self._keys.grew(tenant_id)
        self._runner.wake()
        return created

    async def _made(self, batch: Batch, window_ms: int, claim: Claim | None) -> Batch:
        """Raises ApiError 503, and what `Batches.create` raises."""
        options = self._batch_options
        try:
            return await self._batches.create(
                batch, window_ms, most_open=options.tenant_open, most_kept=options.tenant_kept, share=self._share,
                claim=claim,
            )  # fmt: skip
        except MetadataUnavailable as error:
            _log.warning("batch_not_made", batch_id=batch.batch_id, why=str(error), repeats=True)
            if claim is not None or isinstance(error, TooManyWait):
                raise _away() from None
        with suppress(MetadataUnavailable):
            if (made := await self._batches.one(batch.tenant_id, batch.batch_id)) is not None:
                return made
        raise _in_doubt()

    async def batch(self, principal: Principal, batch_id: str) -> Batch:
        is_id = _ID.fullmatch(batch_id) is not None
        ask = partial(self._batches.one, principal.tenant.tenant_id, batch_id)
        found = await self._read(principal, ask) if is_id else None
        if found is None:
            raise _no_batch(batch_id)
        return found

    async def batches(self, principal: Principal, page: Page) -> Sequence[Batch]:
        """The newest first; one more than its limit, where there are more."""
        if page.after is not None and not _ID.fullmatch(page.after):
            raise _unknown_after()
        found = await self._read(principal, partial(self._batches.page, principal.tenant.tenant_id, page))
        if found is None:
            raise _unknown_after()
        return found

    async def cancel(self, principal: Principal, batch_id: str) -> Batch:
        """Raises ApiError 409 for one that ends, or has ended otherwise. Of one that is cancelled it is idempotent."""
        await self.batch(principal, batch_id)
        tell = partial(self._batches.tell, principal.tenant.tenant_id, batch_id, core.cancel_asked)
        batch = await self._written(principal, tell)
        if batch is None:
            raise _no_batch(batch_id)
        if batch.status is Status.FINALIZING or batch.status in FINAL - {Status.CANCELLED}:
            message = f"The batch {batch_id!r} cannot be cancelled: its status is {batch.status.value!r}."
            raise ApiError(409, "batch_not_cancellable", message, param="batch_id")
        self._runner.wake()
        return batch

    async def _read(self, principal: Principal, ask: Callable[[], Awaitable[_T]]) -> _T:
        return await in_turn(self._reads, principal.tenant.tenant_id, lambda: self._told(ask()))

    async def _written(self, principal: Principal, ask: Callable[[], Awaitable[_T]]) -> _T:
        return await in_turn(self._writes, principal.tenant.tenant_id, lambda: self._told(ask()))

    async def _told(self, asked: Awaitable[_T]) -> _T:
        try:
            return await asked
        except (MetadataUnavailable, BlobsUnavailable) as error:
            _log.warning("files_and_batches_away", why=str(error), repeats=True)
            raise _away() from None


def _away() -> ApiError:
    return unavailable("Files and batches cannot be had now.")


def _in_doubt() -> ApiError:
    """Without advice to ask again, upon which packages make a second batch of the same lines."""
    message = "Whether the batch was made is not known: list your batches. With an Idempotency-Key you may ask again."
    return ApiError(503, EndingCode.UNAVAILABLE.value, message, error_type="server_error")


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


def no_room(param: str = "file") -> ApiError:
    message = "Your organisation's files take all the room that they may; delete some."
    return ApiError(400, "file_storage_full", message, param=param)


def _no_batch(batch_id: str) -> ApiError:
    return ApiError(404, "batch_not_found", f"No batch found with id {batch_id[:100]!r}.", param="batch_id")


def _unknown_after() -> ApiError:
    return ApiError(400, "invalid_request", "after: nothing of yours in this list has that id.", param="after")
