"""What was written of a batch when it was over already goes in time, and nothing else does."""

import pytest

from streams.gateway.batches import run as run_module
from streams.gateway.batches.core import Status
from streams.gateway.batches.run import BatchRun, LostLease
from streams.gateway.batches.tending import Tending
from streams.gateway.files.port import blob_of
from tests.unit.streams.gateway.batch_stories import Story, custom_ids, line

PART = "batches/batch_0123/1.output"


def tending(story: Story) -> Tending:
    return Tending(story.files, story.batches, story.blobs, 30)


async def held_up(story: Story) -> BatchRun:
    """Its results have come; then it hears nothing for longer than its lease."""
    services, results = story.services()
    (held,) = await story.batches.claim("one", 1)
    run = BatchRun(held, services)
    while len(story.requests()) < 2:
        assert await run.step()
    story.play()
    results.read()
    return run


@pytest.mark.parametrize("is_known", [True, False])
async def test_parts_that_are_written_when_a_batch_is_over_go_in_time(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "monotonic_ms", lambda: 0)  # It does not look before it writes.
    story = Story()
    await story.create(*map(line, custom_ids(2)))
    late = await held_up(story)
    story.now_ms += 60_000
    await story.run()
    assert story.batch.status is Status.COMPLETED
    kept = [blob_of(each) for each in ("file-1", story.batch.output_file_id or "")]
    assert story.blobs.names() == kept
    with pytest.raises(LostLease):
        await late.step()
    assert story.blobs.names() == [PART, *kept]
    if not is_known:
        story.now_ms += 60_000
        assert await story.batches.purge(0, 10) == 1
    await tending(story).once()
    assert story.blobs.names() == [PART, *kept], "who is late may still write"
    story.blobs.pass_time()
    await tending(story).once()
    assert story.blobs.names() == kept


async def test_parts_of_a_batch_that_is_open_stay_however_old_they_are() -> None:
    story = Story(lines_in_flight=2)
    await story.create(*map(line, custom_ids(6)))
    await story.run(until=lambda: story.batch.completed >= 2)
    story.blobs.change("batches/notes.txt", b"of somebody else")
    before = story.blobs.names()
    story.blobs.pass_time()
    await tending(story).once()
    assert story.blobs.names() == before
    await story.run()
    assert story.batch.status is Status.COMPLETED
