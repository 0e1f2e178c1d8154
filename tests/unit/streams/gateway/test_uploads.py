"""Uploads that fail, and what is left of them: nothing, or what is removed in time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from streams.blobs.memory import MemoryBlobs
from streams.blobs.port import BlobsUnavailable, Written
from streams.clocks import now_ms
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.service import BatchStores
from streams.gateway.batches.tending import Tending
from streams.gateway.files.port import UPLOADED_WITHIN_MS, Share, StoredFile
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import FileSettings, Settings
from tests.unit.streams.gateway.gateway_stack import KEY, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.test_batches import FILE, PURPOSE, form


class VagueFiles(MemoryFiles):
    """Does not say whether a file is complete; `does_complete`: it is."""

    does_complete = True

    async def complete(self, file: StoredFile, share: Share | None, lasts_ms: int | None) -> StoredFile | None:
        if self.does_complete:
            await super().complete(file, share, lasts_ms)
        raise MetadataUnavailable("no answer in time")


class VagueBlobs(MemoryBlobs):
    """Does not say that it has written; while it `is_late`, that comes after what is deleted."""

    is_late = True

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> Written:
        await super().write(name, pieces)
        raise BlobsUnavailable("no answer in time")

    async def delete(self, name: str) -> None:
        if not self.is_late:
            await super().delete(name)


async def is_removed_in_time(files: MemoryFiles, blobs: MemoryBlobs) -> bool:
    files.clock = lambda: now_ms() + UPLOADED_WITHIN_MS
    await Tending(files, MemoryBatches(files), blobs, 30).once()
    return not len(files) and not blobs.names()


@pytest.mark.parametrize("does_complete", [True, False])
async def test_a_file_that_may_be_there_keeps_its_bytes(settings: Settings, does_complete: bool) -> None:
    files, blobs = VagueFiles(), MemoryBlobs()
    files.does_complete = does_complete
    stores = BatchStores(files, MemoryBatches(files), blobs)
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        body, headers = form(PURPOSE, FILE)
        assert (await http.post("/v1/files", content=body, headers=headers)).status_code == 503
        there = (await http.get("/v1/files")).json()["data"]
        assert len(there) == does_complete
        for each in there:
            assert (await http.get(f"/v1/files/{each['id']}/content")).content == FILE[2]
    assert does_complete or await is_removed_in_time(files, blobs)


async def test_what_may_be_written_after_all_keeps_its_row_until_it_is_removed(settings: Settings) -> None:
    files, blobs = MemoryFiles(), VagueBlobs()
    stores = BatchStores(files, MemoryBatches(files), blobs)
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        body, headers = form(PURPOSE, FILE)
        assert (await http.post("/v1/files", content=body, headers=headers)).status_code == 503
        assert (await http.get("/v1/files")).json()["data"] == []
    assert len(files) == len(blobs.names()) == 1
    blobs.is_late = False
    assert await is_removed_in_time(files, blobs)


@pytest.mark.parametrize(
    "parts",
    [[FILE], [PURPOSE, FILE, FILE], [PURPOSE, ("file", "a", b"x" * 1_100)], [PURPOSE, ("file", "a", b"x" * 3_000)]],
    ids=["no purpose", "two files", "beyond the tenant's share", "too large"],
)
async def test_a_refused_upload_leaves_no_row(
    settings: Settings, parts: list[tuple[str, str | None, bytes]]
) -> None:  # fmt: skip
    bounded = settings.model_copy(update={"files": FileSettings(max_file_bytes=2_000, tenant_files=1)})
    files, blobs = MemoryFiles(), MemoryBlobs()
    stores = BatchStores(files, MemoryBatches(files), blobs)
    async with serving(bounded, memory_log(bounded), batches=stores) as stack, client(stack) as http:
        body, headers = form(PURPOSE, FILE)
        assert (await http.post("/v1/files", content=body, headers=headers)).status_code == 200
        body, headers = form(*parts)
        assert (await http.post("/v1/files", content=body, headers=headers)).status_code in (400, 413)
        assert len(files) == len(blobs.names()) == 1


async def test_an_upload_that_is_cut_off_leaves_no_row(settings: Settings) -> None:
    files, blobs = MemoryFiles(), MemoryBlobs()
    stores = BatchStores(files, MemoryBatches(files), blobs)
    async with serving(settings, memory_log(settings), batches=stores) as stack:
        body, headers = form(PURPOSE, FILE)
        _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}content-type: {headers['content-type']}\r\n\r\n".encode() + body[:-6])
        await until(lambda: len(files) == 1, "the file is begun")
        writer.close()
        await writer.wait_closed()
        await until(lambda: not len(files), "it is gone")
        assert blobs.names() == []


async def test_a_deleted_file_leaves_no_row(settings: Settings) -> None:
    files, blobs = MemoryFiles(), MemoryBlobs()
    stores = BatchStores(files, MemoryBatches(files), blobs)
    async with serving(settings, memory_log(settings), batches=stores) as stack, client(stack) as http:
        body, headers = form(PURPOSE, FILE)
        file_id = (await http.post("/v1/files", content=body, headers=headers)).json()["id"]
        assert (await http.delete(f"/v1/files/{file_id}")).status_code == 200
        assert len(files) == len(blobs.names()) == 0
