"""What was written of a batch when it was over already goes in time, and nothing else does."""

import pytest

from streams.blobs.port import BlobsUnavailable
from streams.gateway.batches import run as run_module
from streams.gateway.batches import tending as tending_module
from streams.gateway.batches.core import Status
from streams.gateway.batches.run import BatchRun, LostLease
from streams.gateway.batches.tending import Tending
from streams.gateway.files import sweeping
from streams.gateway.files.port import CONDEMNED_KEPT_MS, Share, StoredFile, blob_of
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


async def test_blobs_of_files_that_no_row_names_go_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    story, at_ms = Story(), 0
    monkeypatch.setattr(sweeping, "monotonic_ms", lambda: at_ms)
    await story.create(line("a"))
    await story.run()
    kept = story.blobs.names()
    assert len(kept) == 2, "what was asked, and the answers"
    for name in ("files/file-late", "files/notes.txt"):
        story.blobs.change(name, b"x")
    tends = tending(story)
    await tends.once()
    assert story.blobs.names() == sorted([*kept, "files/file-late", "files/notes.txt"]), "it may be written yet"
    story.blobs.pass_time()
    await tends.once()
    assert "files/file-late" in story.blobs.names(), "it looks once an hour"
    at_ms = sweeping.REST_MS
    await tends.once()
    assert "files/file-late" in story.blobs.names(), "for a day whoever misses it can find it"
    story.now_ms += CONDEMNED_KEPT_MS
    await tends.once()
    assert story.blobs.names() == sorted([*kept, "files/notes.txt"])
    assert await story.files.unknown(["file-late"]) == ["file-late"], "nor is there a row of it"


async def test_many_blobs_are_looked_at_some_at_a_time_and_all_in_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "AT_ONCE", 3)
    story = Story()
    for number in range(7):
        file_id = f"file-{number}"
        story.blobs.change(blob_of(file_id), b"x")
        if number not in (2, 5):
            await story.files.begin("acme", file_id)
            await story.files.complete(StoredFile(file_id, "acme", "", "batch", 1, "", 0, None), None, None)
    story.blobs.pass_time()
    await sweeping.Sweeping(story.files, story.blobs).look()
    assert await story.files.unknown(["file-2", "file-5"]) == []
    story.files.clock = lambda: story.now_ms + CONDEMNED_KEPT_MS
    assert sorted(await story.files.due(9)) == ["file-2", "file-5"]


async def test_a_database_that_knows_few_of_the_files_removes_none() -> None:
    """It waits for its backup, or is another one."""
    story = Story()
    for number in range(3):
        story.blobs.change(blob_of(f"file-{number}"), b"x")
    story.blobs.pass_time()
    await story.files.begin("acme", "file-0")
    await tending(story).once()
    assert len(story.blobs.names()) == 3


async def test_a_few_that_no_row_names_go_though_they_are_all_that_is_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the database knows is held against the whole folder, not against the part that is asked at once."""
    monkeypatch.setattr(sweeping, "AT_ONCE", 2)
    story = Story()
    for number in range(6):
        story.blobs.change(blob_of(f"file-{number}"), b"x")
        if number not in (2, 3):
            await story.files.begin("acme", f"file-{number}")
    story.blobs.pass_time()
    await sweeping.Sweeping(story.files, story.blobs).look()
    assert await story.files.unknown(["file-2", "file-3"]) == []


async def test_of_very_many_that_no_row_names_some_go_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "AT_ONCE", 3)
    monkeypatch.setattr(sweeping, "REST_MS", 0)
    story = Story()
    for number in range(10):
        story.blobs.change(blob_of(f"file-{number}"), b"x")
        if number >= 5:
            await story.files.begin("acme", f"file-{number}")
    story.blobs.pass_time()
    looks, lost = sweeping.Sweeping(story.files, story.blobs), [f"file-{number}" for number in range(5)]
    await looks.look()
    assert len(await story.files.unknown(lost)) == 2
    await looks.look()
    assert await story.files.unknown(lost) == []


async def test_a_look_that_fails_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    for number in range(3):
        story.blobs.change(blob_of(f"file-{number}"), b"x")
        if number:
            await story.files.begin("acme", f"file-{number}")
    story.blobs.pass_time()
    looks = sweeping.Sweeping(story.files, story.blobs)
    with monkeypatch.context() as away:
        away.setattr(story.blobs, "is_away", True)
        with pytest.raises(BlobsUnavailable):
            await looks.look()
    await looks.look()
    assert await story.files.unknown(["file-0"]) == []


async def test_what_all_tenants_have_of_files_is_measured_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    story, at_ms = Story(), 0
    monkeypatch.setattr(tending_module, "monotonic_ms", lambda: at_ms)
    measured: list[Share] = []
    tends = Tending(story.files, story.batches, story.blobs, 30, measured.append)
    await story.upload(b"12345")
    await tends.once()
    await story.upload(b"678", "file-2", "beta")
    await tends.once()
    assert measured == [Share(1, 5)]
    at_ms = tending_module.MEASURED_EVERY_MS
    await tends.once()
    assert measured == [Share(1, 5), Share(2, 8)]
