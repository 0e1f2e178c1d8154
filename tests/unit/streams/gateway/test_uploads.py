"""Uploads that fail, and what is left of them: nothing, or what is removed in time."""

import pytest

from streams.blobs.memory import MemoryBlobs
from streams.clocks import now_ms
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.service import BatchStores
from streams.gateway.batches.tending import Tending
from streams.gateway.files.port import UPLOADED_WITHIN_MS, Share, StoredFile
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import memory_log, serving
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.test_batches import FILE, PURPOSE, form


class VagueFiles(MemoryFiles):
    """Does not say whether a file is complete; `does_complete`: it is."""

    does_complete = True

    async def complete(self, file: StoredFile, share: Share | None, lasts_ms: int | None) -> StoredFile | None:
        if self.does_complete:
            await super().complete(file, share, lasts_ms)
        raise MetadataUnavailable("no answer in time")


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
