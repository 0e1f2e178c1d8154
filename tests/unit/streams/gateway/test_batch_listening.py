"""A batch listens for results as what stands of it asks for, whatever its holder has heard of that."""

from dataclasses import replace

import pytest

from streams.gateway.batches import core
from streams.gateway.batches.core import Held, Status
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.port import Event
from streams.gateway.batches.results import Results
from streams.gateway.batches.run import BatchRun
from streams.gateway.batches.told import Place
from streams.log.port import LogConsumer
from streams.metadata.unavailable import MetadataUnavailable
from tests.unit.streams.gateway.batch_stories import Story, custom_ids, line

MOST_STEPS = 60


class Other:
    """Another batch of the same gateway, which has come so far."""

    batch_id = "another"
    positions = (5, 7)

    async def room(self) -> None: ...

    def take(self, place: Place, value: bytes) -> None: ...


class HardOfHearing(MemoryBatches):
    """The change of that number, from 1, is done; that it is does not reach who asked for it."""

    def __init__(self, files: MemoryFiles, unheard: int) -> None:
        super().__init__(files)
        self.unheard = unheard
        self.changes = 0

    async def change(self, held: Held, event: Event) -> Held | None:
        changed = await super().change(held, event)
        self.changes += 1
        if self.changes == self.unheard:
            raise MetadataUnavailable("no answer in time")
        return changed


async def driven(story: Story) -> None:
    """By one gateway, which tries again what has failed, as its runner does."""
    services, results = story.services()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, services)
    for _ in range(MOST_STEPS):
        try:
            if not await run.step():
                await run.close()
                return
        except MetadataUnavailable:
            run.doubt()
        story.play()
        results.read()
    raise AssertionError(f"it does not end: {story.batch}")


async def test_a_change_that_was_done_and_not_heard_of_holds_up_nothing() -> None:
    """Whichever it is: that the file was read, too, behind which results are listened for."""
    unheard, changes = 1, 1
    while unheard <= changes:
        story = Story()
        batches = story.batches = HardOfHearing(story.files, unheard)
        await story.create(*map(line, custom_ids(6)))
        await driven(story)
        assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 6), f"unheard: {unheard}"
        assert all(len(each) == 1 for each in (await story.ends()).values())
        assert story.repeated == []
        unheard, changes = unheard + 1, batches.changes
    assert changes >= 6


def no_reader() -> LogConsumer:
    raise AssertionError("nothing is read here")


@pytest.mark.parametrize(("event", "status"), [(core.cancel_asked, "cancelled"), (core.closed, "expired")])
async def test_a_batch_that_ended_before_its_file_was_read_sets_no_other_batch_back(event: Event, status: str) -> None:
    """It has no place from which results would be read, and the beginning of the topic is none."""
    story = Story()
    await story.create(line("line-0"))
    await story.batches.tell("acme", "batch_0123", event)
    results = Results(no_reader, story.topics.batch_results.name)
    other = Other()
    results.follow(other)
    services, _ = story.services()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, replace(services, results=results))
    while await run.step():
        assert results.reached(other) == Other.positions
    await run.close()
    assert results.reached(other) == Other.positions
    assert story.batch.status.value == status
