"""The files that a batch's parts become: the same each time, since the parts do not change any more."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, Literal

from streams.blobs.port import Blobs, name_of
from streams.gateway.batches.core import Held, Part
from streams.gateway.files.port import Files, StoredFile, blob_of
from streams.metadata.unavailable import MetadataUnavailable

OUTPUT: Final = "output"
ERRORS: Final = "errors"
Kind = Literal["output", "errors"]


def part_name(batch_id: str, epoch: int, kind: Kind) -> str:
    return name_of("batches", batch_id, f"{epoch}.{kind}")


def part_bytes(part: Part, kind: Kind) -> int:
    return part.output_bytes if kind == OUTPUT else part.error_bytes


class Making:
    """`keep` is awaited at every piece: a file may take long."""

    def __init__(self, files: Files, blobs: Blobs, kept_ms: int, keep: Callable[[], Awaitable[None]]) -> None:
        self._files = files
        self._blobs = blobs
        self._kept_ms = kept_ms
        self._keep = keep

    async def file_of(self, held: Held, kind: Kind) -> str | None:
        """Its id, once it is there; None where nothing was told. Raises BlobMissing, BlobChanged, BlobsUnavailable,
        MetadataUnavailable.
        """
        if not sum(part_bytes(part, kind) for part in held.progress.parts):
            return None
        batch = held.batch
        file_id = f"file-{kind}-{batch.batch_id.removeprefix('batch_')}"
        await self._files.begin(batch.tenant_id, file_id)
        written = await self._blobs.write(blob_of(file_id), self._pieces_of(held, kind))
        file = StoredFile(
            file_id, batch.tenant_id, f"{batch.batch_id}_{kind}.jsonl", "batch_output", written.size_bytes,
            written.sha256, 0, None,
        )  # fmt: skip
        if await self._files.complete(file, None, self._kept_ms) is None:
            # Its row is gone, as of one that took too long, and is dropped in time: then it is made anew.
            raise MetadataUnavailable(f"the row of {file_id} is gone")
        return file_id

    async def _pieces_of(self, held: Held, kind: Kind) -> AsyncIterator[bytes]:
        for part in held.progress.parts:
            if size_bytes := part_bytes(part, kind):
                name = part_name(held.batch.batch_id, part.epoch, kind)
                async with aclosing(self._blobs.read(name, 0, size_bytes)) as pieces:
                    async for piece in pieces:
                        yield piece
                        await self._keep()
