"""Large files: read in a stream, whatever their size."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streams.blobs.folder import FolderBlobs, mark
from streams.gateway.batches.core import Batch, Status
from streams.gateway.batches.run import BatchRun
from streams.gateway.files.port import StoredFile, blob_of
from tests.unit.streams.gateway.batch_stories import CHAT, Story, line

LINES = 100_000
MAX_BYTES = 40_000_000
"""Of memory: the digests of all custom ids take ten of them."""


async def pieces(lines: int, padding: str) -> AsyncIterator[bytes]:
    for number in range(lines):
        yield (line(f"line-{number}", body={"model": "tiny", "messages": [said(padding)]}) + "\n").encode()


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def story_of(tmp_path: Path, lines: int, padding: str, **options: Any) -> tuple[Story, BatchRun]:
    story = Story(**options)
    mark(tmp_path, make=True)
    blobs = story.blobs = FolderBlobs(tmp_path)  # type: ignore[assignment]
    await story.files.begin("acme", "file-1")
    written = await blobs.write(blob_of("file-1"), pieces(lines, padding))
    file = StoredFile("file-1", "acme", "a", "batch", written.size_bytes, written.sha256, 0, None)
    await story.files.complete(file, None, None)
    batch = Batch(
        batch_id="batch_0123", tenant_id="acme", project_id="p", key_id="k", input_file_id="file-1", endpoint=CHAT,
        completion_window="24h", created_at_ms=0, expires_at_ms=0,
    )  # fmt: skip
    await story.batches.create(batch, 86_400_000, most_open=9, most_kept=9)
    services, _ = story.services()
    (held,) = await story.batches.claim("one", 1)
    return story, BatchRun(held, services)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_lines_are_never_all_in_memory(tmp_path: Path) -> None:
    async def run() -> None:
        story, batch = await story_of(tmp_path, LINES, "x" * 500, lines_in_flight=1_000)
        assert (tmp_path / blob_of("file-1")).stat().st_size > 1.4 * MAX_BYTES
        tracemalloc.start()
        assert await batch.step()
        assert (story.batch.status, story.batch.total, story.batch.failed) == (Status.IN_PROGRESS, LINES, 0)
        while batch.held.progress.sent_lines < 900:
            assert await batch.step()
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
        tracemalloc.stop()
        assert len(story.requests()) < 1_000
        await batch.close()

    asyncio.run(run())


async def test_lines_of_megabytes_are_sent_a_few_at_a_time(tmp_path: Path) -> None:
    story, batch = await story_of(tmp_path, 12, "x" * 1_000_000, lines_in_flight=100)
    while story.batch.status is not Status.IN_PROGRESS:
        assert await batch.step()
    assert await batch.step()
    assert len(story.requests()) < 6
    await batch.close()
