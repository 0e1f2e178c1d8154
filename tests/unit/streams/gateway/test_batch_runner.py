"""Batches as a gateway runs them, with the reader that it has: on a log in memory."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from schemas.batch import BatchResponse
from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches import run as run_module
from streams.gateway.batches import runner as runner_module
from streams.gateway.batches.core import Held, Status
from streams.gateway.batches.line_log import LineLog, SignedLine
from streams.gateway.batches.memory import MemoryBatches
from streams.gateway.batches.port import LEASE_MS
from streams.gateway.batches.results import Results
from streams.gateway.batches.run import BatchRun, LostLease, Services
from streams.gateway.batches.runner import Runner
from tests.unit.streams.gateway.batch_stories import Story, custom_ids, line, result_of
from tests.unit.streams.gateway.gateway_stack import PatientConsumer, until


def services_of(story: Story) -> Services:
    results = Results(lambda: PatientConsumer(story.log, None, "reader", "earliest"), story.topics.batch_results.name)
    return replace(story.services()[0], results=results)


@asynccontextmanager
async def beside(work: "asyncio.Future[None]") -> AsyncIterator[None]:
    try:
        yield
        assert not work.done(), work
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


async def test_who_lost_a_batch_to_another_run_of_its_gateway_takes_no_results_from_that() -> None:
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(8)))
    services = services_of(story)
    async with beside(asyncio.ensure_future(services.results.read())):
        old = BatchRun((await story.batches.claim("gateway", 1))[0], services)
        while len(story.requests()) < 4:
            assert await old.step()
        story.now_ms += LEASE_MS + 1
        new = BatchRun((await story.batches.claim("gateway", 1))[0], services)
        old.doubt()
        with pytest.raises(LostLease):
            await old.step()
        await old.close()
        for _ in range(100):
            story.play()
            if not await new.step():
                break
        assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 8)
        await new.close()
    await services.results.close()


class CountedBatches(MemoryBatches):
    renewed = 0

    async def renew(self, held: Held) -> Held | None:
        self.renewed += 1
        return await super().renew(held)


async def test_while_a_step_takes_long_its_batch_is_held_on(monkeypatch: pytest.MonkeyPatch) -> None:
    may_publish, waits = asyncio.Event(), asyncio.Event()
    publish = LineLog.publish

    async def late(log: LineLog, lines: Sequence[SignedLine]) -> list[SignedLine]:
        waits.set()
        await may_publish.wait()
        return await publish(log, lines)

    monkeypatch.setattr(LineLog, "publish", late)
    monkeypatch.setattr(run_module, "BEAT_EVERY_S", 0.001)
    monkeypatch.setattr(run_module, "RENEW_EVERY_MS", 0)
    story = Story(lines_in_flight=4)
    batches = story.batches = CountedBatches(story.files)
    await story.create(*map(line, custom_ids(8)))
    async with beside(asyncio.ensure_future(Runner(services_of(story), "gateway").run())):
        await waits.wait()
        for _ in range(4):
            story.now_ms += LEASE_MS - 1
            before = batches.renewed
            await until(lambda: batches.renewed > before, "its lease is renewed")  # noqa: B023 - awaited here
            assert await batches.claim("another", 1) == []
        may_publish.set()

        def has_ended() -> bool:
            story.play()
            return not story.batch.is_open

        await until(has_ended, "it goes on")
    assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 8)


async def test_a_defect_of_ours_ends_a_batch_with_what_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = LineLog.publish
    published: list[int] = []

    async def breaks(log: LineLog, lines: Sequence[SignedLine]) -> list[SignedLine]:
        if published:
            raise ZeroDivisionError
        published.append(len(lines))
        return await publish(log, lines)

    monkeypatch.setattr(LineLog, "publish", breaks)
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(8)))
    async with beside(asyncio.ensure_future(Runner(services_of(story), "gateway").run())):

        def has_ended() -> bool:
            story.play()
            return not story.batch.is_open

        await until(has_ended, "it ends")
    batch = story.batch
    assert (batch.status, batch.completed, [each.code for each in batch.problems]) == (
        Status.FAILED, 4, ["internal_error"],
    )  # fmt: skip
    assert len(await story.told(batch.output_file_id)) == 4


def vectors(data: Any) -> dict[str, Any]:
    """Of a result, beside what it has."""
    body = {"object": "list", "data": data}
    return {"response": BatchResponse(status_code=200, request_id="resp_1", body=body), "vectors_as": "float"}


@pytest.mark.parametrize(
    "change",
    [
        None, {"id": "nobody's"}, {"response": None}, vectors(5), vectors([{}]), vectors([{"embedding": "AAA"}]),
        vectors([{"embedding": "AAAA"}]),
    ],
    ids=["no result", "id", "neither", "no list", "no vector", "no base64", "no numbers"],
)  # fmt: skip
async def test_a_result_that_cannot_be_told_is_the_error_of_its_line_alone(change: dict[str, Any] | None) -> None:
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(8)))
    broken: list[str] = []

    def has_ended() -> bool:
        if not broken and (asked := story.requests()):
            key = asked[1].reply_to.custom_id or ""
            value = b"{" if change is None else result_of(asked[1], None).model_copy(update=change).encode()
            story.log.append(story.topics.batch_results.name, value, key=key, partition=1)
            broken.append(key.rpartition("/")[2])
        story.play()
        return not story.batch.is_open

    async with beside(asyncio.ensure_future(Runner(services_of(story), "gateway").run())):
        await until(has_ended, "it ends")
    batch = story.batch
    assert (batch.status, batch.completed, batch.failed) == (Status.COMPLETED, 7, 1)
    assert len(await story.told(batch.output_file_id)) == 7
    [told] = await story.told(batch.error_file_id)
    assert [told["custom_id"]] == broken
    assert (told["response"], told["error"]["code"]) == (None, "result_unreadable")


class Untidy(MemoryBlobs):
    """Nothing is removed at first, by a defect of ours."""

    asked = 0

    async def delete_under(self, name: str) -> None:
        self.asked += 1
        if self.asked <= 20:
            raise ZeroDivisionError
        await super().delete_under(name)


async def test_a_batch_that_is_over_and_cannot_be_tidied_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = Story(lines_in_flight=4)
    blobs = story.blobs = Untidy()
    await story.create(line("line-0"))

    def is_asked() -> bool:
        story.play()
        return blobs.asked > 0

    monkeypatch.setattr(runner_module, "LAST_RETRY_S", 3_600)
    async with beside(asyncio.ensure_future(Runner(services_of(story), "gateway").run())):
        await until(is_asked, "it is over")
        for _ in range(100):
            await asyncio.sleep(0)
        assert (story.batch.status, blobs.asked) == (Status.COMPLETED, 1)
    monkeypatch.setattr(runner_module, "LAST_RETRY_S", 0.001)
    story.now_ms += LEASE_MS + 1
    async with beside(asyncio.ensure_future(Runner(services_of(story), "gateway").run())):
        await until(lambda: not story.batch.is_open, "it is tidied")
    assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 1)
