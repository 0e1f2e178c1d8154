"""Files that hold next to nothing for their length: read without the event loop, and without losing the batch."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches import core, run
from streams.gateway.batches.core import Status
from streams.gateway.batches.lines import Line, Lines
from streams.gateway.batches.memory import MemoryBatches
from streams.gateway.batches.port import LEASE_MS
from streams.gateway.batches.run import BatchRun
from streams.gateway.batches.runner import Runner
from streams.gateway.batches.source import SLICE_BYTES, Source
from tests.unit.streams.gateway.batch_stories import Story, StoryResults, line
from tests.unit.streams.gateway.counted_calls import calls_in

SLICES = 4
BLANK = "\n" * (SLICES * SLICE_BYTES)
ENDLESS = "x" * (SLICES * SLICE_BYTES)
MAX_LINE_BYTES = 1_000_000


class SlowBlobs(MemoryBlobs):
    """`on_piece` is told of each piece how much of the blob it is."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0
        self.on_piece: Callable[[int], Awaitable[None]] | None = None

    async def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        async for piece in super().read(name, begin, end):
            self.read_bytes += len(piece)
            if self.on_piece is not None:
                await self.on_piece(len(piece))
            yield piece


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" \t\n"])
def test_blank_lines_cost_no_more_the_more_there_are(blank: bytes) -> None:
    def cut(count: int) -> None:
        assert not [*Lines(MAX_LINE_BYTES).feed(blank * count)]

    assert calls_in(partial(cut, 50_000)) == calls_in(partial(cut, 100))


@pytest.mark.parametrize(
    ("content", "ends_with"), [(BLANK, []), (ENDLESS, [Line(0, len(ENDLESS), None)])], ids=["blank", "endless"]
)
async def test_no_more_than_a_slice_is_read_for_the_lines_that_are_taken_together(
    content: str, ends_with: list[Line]
) -> None:
    blobs = SlowBlobs()
    blobs.change("files/f", content.encode())
    source = Source(blobs, "files/f", MAX_LINE_BYTES)
    for number in range(1, SLICES + 1):
        assert await source.take(10) == []
        assert (blobs.read_bytes, source.has_ended) == (number * SLICE_BYTES, False)
    assert await source.take(10) == ends_with
    assert source.has_ended
    await source.close()


async def test_lines_are_cut_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, threads = Lines.feed, set[threading.Thread]()

    def noted(self: Lines, piece: bytes) -> Iterator[Line]:
        for each in feed(self, piece):
            threads.add(threading.current_thread())
            yield each

    monkeypatch.setattr(Lines, "feed", noted)
    blobs = SlowBlobs()
    blobs.change("files/f", b"a\nb\n" * 100)
    source = Source(blobs, "files/f", MAX_LINE_BYTES)
    assert len(await source.take(1_000)) == 200
    assert threads
    assert threading.current_thread() not in threads
    await source.close()


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, *lines: str
) -> AsyncIterator[tuple[Story, SlowBlobs, BatchRun, StoryResults]]:
    """A slice of its file takes a third of a lease to be read. All the while nobody else may hold the batch."""
    story, blobs = Story(lines_in_flight=1), SlowBlobs()
    story.blobs = blobs
    monkeypatch.setattr(run, "monotonic_ms", lambda: story.now_ms)
    await story.create(*lines)
    services, results = story.services()
    (held,) = await story.batches.claim("gateway", 1)

    async def on_piece(size_bytes: int) -> None:
        story.now_ms += LEASE_MS * size_bytes // (3 * SLICE_BYTES)
        assert await story.batches.claim("another", 1) == [], "the lease has ended"

    blobs.on_piece = on_piece
    batch = BatchRun(held, services)
    yield story, blobs, batch, results
    await batch.close()


@pytest.mark.parametrize(
    ("content", "code"), [(BLANK, "empty_file"), (ENDLESS, "line_too_long")], ids=["blank", "endless"]
)
async def test_a_file_without_an_end_of_line_in_sight_is_read_under_one_lease(
    monkeypatch: pytest.MonkeyPatch, content: str, code: str
) -> None:
    async with running(monkeypatch, content) as (story, _, batch, _):
        assert await batch.step()
        assert (story.batch.status, [each.code for each in story.batch.problems]) == (Status.FAILED, [code])


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_lines_far_behind_one_another_are_sent_and_swept_under_one_lease(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    async with running(monkeypatch, line("a"), BLANK, line("b")) as (story, _, batch, results):
        while await batch.step():
            if is_cancelled and story.requests():
                await story.batches.tell("acme", "batch_0123", core.cancel_asked)
            story.play()
            results.read()
            story.now_ms += 10
        ends = await story.ends()
        assert sorted(ends) == ["a", "b"]
        assert ends["a"][0]["error"] is None
        assert (ends["b"][0]["error"] is not None) is is_cancelled
        assert story.batch.status is (Status.CANCELLED if is_cancelled else Status.COMPLETED)


async def test_a_batch_that_is_cancelled_while_its_file_is_read_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch, BLANK) as (story, blobs, batch, _):

        async def cancel(_: int) -> None:
            story.now_ms += LEASE_MS // 4
            await story.batches.tell("acme", "batch_0123", core.cancel_asked)

        blobs.on_piece = cancel
        assert await batch.step()
        assert batch.held.batch.status is Status.CANCELLING
        assert blobs.read_bytes == SLICE_BYTES


async def test_a_gateway_takes_no_batch_that_it_runs_already() -> None:
    """Its lease has ended, as where the database was away for longer."""
    story = Story()
    story.batches = MemoryBatches(story.files, lease_ms=0)
    await story.create(line("a"))
    runner = Runner(story.services()[0], "gateway")
    for _ in range(3):
        await runner._claim()
    assert story.batches.held("batch_0123").epoch == 1
    tasks = [*runner._runs]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
