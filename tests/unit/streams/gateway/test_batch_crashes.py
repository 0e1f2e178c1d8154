"""A batch that is killed after any of its steps, as often as one likes: every line ends once, and none runs again."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.blobs import memory as memory_blobs
from streams.blobs.memory import MemoryBlobs
from streams.blobs.port import BlobMissing, BlobsUnavailable
from streams.gateway.batches import arrivals, core
from streams.gateway.batches.core import CANCEL_WAIT_MS, EXPIRY_WAIT_MS, STALLED_AFTER_MS, Held, Status
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.port import LEASE_MS, Event
from streams.gateway.batches.run import BatchRun
from streams.gateway.batches.tending import Tending
from streams.gateway.files.port import UPLOADED_WITHIN_MS, blob_of
from streams.metadata.unavailable import MetadataUnavailable
from tests.unit.streams.gateway.batch_stories import Story, custom_ids, line

STEPS = [*range(1, 11)]
BROKEN = ("{broken", line("line-0"), line("elsewhere", url="/v1/embeddings"), line("", method="POST"), '{"a": 1}')


def goes_wrong(custom_id: str) -> str | None:
    """One line in three, by its number."""
    return "overloaded" if int(custom_id.rpartition("-")[2]) % 3 == 1 else None


async def killed(lines: int, broken: int, kills: set[int], in_flight: int = 4) -> Story:
    story = Story(outcome=goes_wrong, lines_in_flight=in_flight)
    await story.create(*map(line, custom_ids(lines)), *BROKEN[:broken])
    story.kills = kills
    await story.run()
    return story


async def all_ended_once(story: Story, lines: int, broken: int) -> None:
    batch, ends = story.batch, await story.ends()
    assert (batch.status, batch.total, batch.completed + batch.failed) == (
        Status.COMPLETED,
        lines + broken,
        lines + broken,
    )
    told = [each for found in ends.values() for each in found]
    assert len(told) == lines + broken
    assert len({each["id"] for each in told}) == len(told)
    for custom_id in custom_ids(lines):
        own = [each for each in ends[custom_id] if each["response"] is not None]
        assert [each["response"]["status_code"] for each in own] == [503 if goes_wrong(custom_id) else 200]
    assert len(story.answered) == lines
    assert story.repeated == [], "only what has not ended runs"
    assert story.blobs.names() == sorted(
        blob_of(each) for each in ("file-1", batch.output_file_id, batch.error_file_id) if each is not None
    )


@pytest.mark.parametrize("step", STEPS)
async def test_killed_after_any_step_every_line_ends_once(step: int) -> None:
    quiet = await killed(10, 3, set())
    for at in [number for number, each in enumerate(quiet.steps) if each == step]:
        story = await killed(10, 3, {at})
        assert story.steps[at] == step
        await all_ended_once(story, 10, 3)


@settings(max_examples=30, deadline=None)
@given(
    lines=st.integers(1, 30), broken=st.integers(0, len(BROKEN)), in_flight=st.integers(1, 40),
    kills=st.sets(st.integers(0, 60), max_size=25), saved_bytes=st.sampled_from((1, 1_500, arrivals.SAVED_BYTES)),
)  # fmt: skip
def test_killed_as_often_as_one_likes_every_line_ends_once(
    lines: int, broken: int, in_flight: int, kills: set[int], saved_bytes: int
) -> None:
    async def story() -> None:
        # The second line of its own number is broken only where there is a first one.
        await all_ended_once(await killed(lines, broken, kills, in_flight), lines, broken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "SAVED_BYTES", saved_bytes)
        asyncio.run(story())


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_what_is_saved_together_is_bounded_and_nothing_waits_for_ever(sizes: list[int]) -> None:
    waiting = arrivals.Arrivals()
    for number, size in enumerate(sizes):
        waiting.put(number, arrivals.Arrived("a", bytes(size)))
    saved: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "SAVED_BYTES", 10)
        while len(waiting):
            first = waiting.first()
            assert len(first) == 1 or sum(len(each.value) for each in first.values()) <= 10
            waiting.written(first)
            saved += first
    assert saved == [*range(len(sizes))]


async def test_whoever_lost_its_lease_changes_nothing() -> None:
    story = Story()
    await story.create(*map(line, custom_ids(3)))
    (old,) = await story.batches.claim("one", 1)
    story.now_ms += 60_000
    (new,) = await story.batches.claim("two", 1)
    assert new.epoch == old.epoch + 1
    assert await story.batches.change(old, lambda held, now_ms: core.cancel_asked(held, now_ms)) is None
    assert await story.batches.renew(old) is None
    assert story.batch.status is Status.VALIDATING


@pytest.mark.parametrize("kills", [set(), {3}, {4}, {5}, {3, 4, 5, 6, 7, 8}])
async def test_a_cancelled_batch_keeps_what_was_answered_and_says_of_the_rest_that_it_did_not_run(
    kills: set[int],
) -> None:
    story = Story(lines_in_flight=2)
    await story.create(*map(line, custom_ids(20)))
    await story.run(until=lambda: story.batch.completed >= 4)
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    assert story.batch.status is Status.CANCELLING
    story.kills = {len(story.steps) + kill for kill in kills}
    await story.run()
    batch, ends = story.batch, await story.ends()
    assert batch.status is Status.CANCELLED
    assert batch.completed + batch.failed == 20
    assert all(len(ends[each]) == 1 for each in custom_ids(20))
    codes = [each[0]["error"]["code"] for each in ends.values() if each[0]["error"]]
    assert codes == ["batch_cancelled"] * batch.failed
    assert len(story.answered) == batch.completed < 20


async def test_lines_that_never_come_back_do_not_hold_up_a_cancelled_batch() -> None:
    story = Story(lines_in_flight=2)
    story.answers = False
    await story.create(*map(line, custom_ids(4)))
    await story.run(until=lambda: len(story.requests()) == 2)
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    cancels = story.topics.control.name
    await story.run(until=lambda: len(story.log.records(cancels)) == 2)
    story.now_ms += CANCEL_WAIT_MS
    await story.run()
    assert (story.batch.status, story.batch.failed) == (Status.CANCELLED, 4)


async def test_what_has_not_run_when_its_window_ends_is_told_as_expired() -> None:
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(10)), window_ms=60_000)
    await story.run(until=lambda: story.batch.completed >= 4)
    story.answers = False
    story.now_ms += 60_000 + EXPIRY_WAIT_MS
    await story.run()
    batch, ends = story.batch, await story.ends()
    assert batch.status is Status.EXPIRED
    assert batch.completed >= 4
    assert all(len(ends[each]) == 1 for each in custom_ids(10))
    expired = [each[0] for each in ends.values() if each[0]["error"]]
    assert {each["error"]["code"] for each in expired} == {"batch_expired"}
    assert len(expired) == batch.failed == 10 - batch.completed


@pytest.mark.parametrize("how", ["expired", "cancelled", "killed while it is read"])
async def test_what_was_answered_while_nobody_held_it_is_told_and_not_as_what_did_not_run(how: str) -> None:
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(6)), window_ms=1_200_000)
    story.answers = False
    await story.run(until=lambda: len(story.requests()) == 4)
    if how == "cancelled":
        await story.batches.tell("acme", "batch_0123", core.cancel_asked)
        story.now_ms += CANCEL_WAIT_MS
    else:
        story.now_ms += 1_200_000 + EXPIRY_WAIT_MS
    story.play()
    story.kill_after = 6 if how == "killed while it is read" else 0
    await story.run()
    batch, ends = story.batch, await story.ends()
    assert (batch.status, batch.completed, batch.failed) == (
        Status.CANCELLED if how == "cancelled" else Status.EXPIRED, 4, 2,
    )  # fmt: skip
    assert all(len(ends[each]) == 1 for each in custom_ids(6))


async def test_what_was_answered_whole_in_time_is_completed_however_late_it_is_collected() -> None:
    story = Story(lines_in_flight=6)
    await story.create(*map(line, custom_ids(6)), window_ms=1_200_000)
    story.answers = False
    await story.run(until=lambda: len(story.requests()) == 6)
    story.play()
    story.now_ms += 1_200_000 + EXPIRY_WAIT_MS
    await story.run()
    assert (story.batch.status, story.batch.completed, story.batch.failed) == (Status.COMPLETED, 6, 0)


async def test_a_file_whose_lines_are_all_broken_fails_and_names_them() -> None:
    story = Story()
    await story.create(*BROKEN[:1], line("x", url="/v1/embeddings"), "")
    await story.run()
    batch = story.batch
    assert batch.status is Status.FAILED
    assert [(each.line, each.code) for each in batch.problems] == [(1, "invalid_json_line"), (2, "invalid_url")]
    assert (batch.output_file_id, batch.error_file_id, story.requests()) == (None, None, [])


@pytest.mark.parametrize(("content", "code"), [("", "empty_file"), ("\n \n", "empty_file")])
async def test_a_file_without_lines_fails(content: str, code: str) -> None:
    story = Story()
    await story.create(content)
    await story.run()
    assert (story.batch.status, [each.code for each in story.batch.problems]) == (Status.FAILED, [code])


async def test_a_file_with_too_many_lines_fails_before_any_runs() -> None:
    story = Story(max_lines=5)
    await story.create(*map(line, custom_ids(6)))
    await story.run()
    assert [each.code for each in story.batch.problems] == ["too_many_lines"]
    assert story.requests() == []


@pytest.mark.parametrize("at", ["before", "while"])
@pytest.mark.parametrize("what", ["missing", "changed"])
async def test_a_file_that_is_gone_or_another_one_fails_its_batch_and_nothing_else(at: str, what: str) -> None:
    """What was answered is told. No line of another file runs."""
    story = Story(lines_in_flight=2)
    await story.create(*map(line, custom_ids(200)))
    if at == "while":
        await story.run(until=lambda: story.batch.completed >= 2)
    if what == "missing":
        await story.blobs.delete(blob_of("file-1"))
    else:
        story.blobs.change(blob_of("file-1"), "\n".join(map(line, custom_ids(199))).encode())
    published = len(story.requests())
    await story.run()
    batch = story.batch
    assert batch.status is Status.FAILED
    assert [each.code for each in batch.problems] == [f"input_file_{what}"]
    assert len(await story.told(batch.output_file_id)) == batch.completed
    assert (batch.completed > 0) == (at == "while")
    assert len(story.requests()) <= published + 2


@pytest.mark.parametrize("step", [6, 7, 8])
async def test_a_part_that_is_gone_fails_its_batch(step: int) -> None:
    story = Story(lines_in_flight=2)
    await story.create(*map(line, custom_ids(10)))
    await story.run(until=lambda: story.batch.completed >= 2)
    story.kill_after = step
    await story.run(until=lambda: not story.kill_after)
    await story.blobs.delete_under("batches/batch_0123")
    await story.run()
    assert story.batch.status is Status.FAILED
    assert [each.code for each in story.batch.problems] == ["output_lost"]
    assert story.batch.output_file_id is None


async def test_a_former_holders_write_that_comes_while_files_are_made_takes_nothing_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WrittenLate(MemoryBlobs):
        is_late = False

        async def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
            async for piece in super().read(name, begin, end):
                yield piece
                if end is not None and not self.is_late:
                    self.is_late = True
                    await self.append(name, end, b"what nobody was told of")

    monkeypatch.setattr(memory_blobs, "CHUNK_BYTES", 64)
    story = Story()
    story.blobs = WrittenLate()
    await story.create(*map(line, custom_ids(5)))
    with pytest.raises(BlobsUnavailable):
        await story.run()
    assert story.batch.status.value == "finalizing"
    await story.run()
    assert story.batch.status is Status.COMPLETED
    assert sorted(each["custom_id"] for each in await story.told(story.batch.output_file_id)) == custom_ids(5)


async def test_an_output_file_that_a_crash_left_unfinished_is_made_anew() -> None:
    story = Story()
    await story.create(*map(line, custom_ids(5)))
    story.kill_after = 8
    await story.run(until=lambda: not story.kill_after)
    assert story.batch.status.value == "finalizing"
    await story.blobs.delete(blob_of("file-output-0123"))
    await story.run()
    assert story.batch.status is Status.COMPLETED
    assert len(await story.told(story.batch.output_file_id)) == 5


async def test_a_row_that_was_forgotten_while_an_output_was_made_is_begun_anew() -> None:
    """A folder that fails for hours; meanwhile what tends files has given up the row."""
    story = Story(outcome=goes_wrong)
    await story.create(*map(line, custom_ids(5)))
    await story.run(until=lambda: story.batch.status is Status.FINALIZING)
    await story.files.begin("acme", "file-output-0123")
    story.now_ms += UPLOADED_WITHIN_MS
    assert await story.files.due(10) == ["file-output-0123"]
    services, _ = story.services()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, services)
    with pytest.raises(MetadataUnavailable):
        await run.step()
    assert story.batch.status is Status.FINALIZING
    await run.close()
    await Tending(story.files, story.batches, story.blobs, 30).once()
    story.now_ms += LEASE_MS
    await story.run()
    assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 3)
    assert len(await story.told(story.batch.output_file_id)) == 3


async def test_a_line_that_the_window_ends_is_told_as_expired() -> None:
    story = Story(outcome=lambda _: "deadline_exceeded")
    await story.create(line("a"))
    await story.run()
    ends = await story.ends()
    assert ends["a"][0]["error"]["code"] == "batch_expired"


async def test_answers_beyond_the_room_for_them_are_told_as_errors() -> None:
    story = Story(max_output_bytes=1_024)
    await story.create(*map(line, custom_ids(10)))
    await story.run()
    batch, ends = story.batch, await story.ends()
    assert batch.status is Status.COMPLETED
    assert 0 < batch.completed < 10
    assert all(len(ends[each]) == 1 for each in custom_ids(10))
    errors = await story.told(batch.error_file_id)
    assert {each["error"]["code"] for each in errors} == {"output_too_large"}


@pytest.mark.parametrize("away", ["blobs", "batches", "files"])
async def test_while_a_store_is_away_a_batch_waits_and_goes_on_where_it_was(away: str) -> None:
    story = Story(lines_in_flight=4)
    await story.create(*map(line, custom_ids(12)))
    services, results = story.services()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, services)
    failed, goes_on = 0, True
    for number in range(400):
        store = getattr(story, away)
        store.is_away = number % 3 == 1
        try:
            goes_on = await run.step()
        except (MetadataUnavailable, BlobsUnavailable):
            failed += 1
            run.doubt()
        store.is_away = False
        if not goes_on:
            break
        story.play()
        results.read()
    assert failed
    assert (story.batch.status, story.batch.completed) == (Status.COMPLETED, 12)
    assert all(len(each) == 1 for each in (await story.ends()).values())


async def test_lines_that_nothing_is_heard_of_are_written_again_under_their_ids() -> None:
    story = Story(outcome=goes_wrong, lines_in_flight=4)
    await story.create(*map(line, custom_ids(10)), *BROKEN[:2])
    await story.run(until=lambda: story.batch.completed + story.batch.failed >= 6)
    story.answers = False
    await story.run(until=lambda: len(story.requests()) == 8)
    lost = {request.response_id for request in story.requests()} - {*story.answered}
    story.lose_intake()
    story.answers = True
    story.now_ms += STALLED_AFTER_MS
    await story.run(until=lambda: len(story.requests()) > 8)
    written = Counter(request.response_id for request in story.requests())
    assert {response_id for response_id, times in written.items() if times > 1} == lost
    await story.run()
    await all_ended_once(story, 10, 2)


async def test_what_was_answered_while_nobody_held_it_for_long_is_read_before_anything_is_written_again() -> None:
    """As where many batches take turns, or no gateway was there: most of what is on its way has ended meanwhile."""
    story = Story(outcome=goes_wrong, lines_in_flight=4)
    await story.create(*map(line, custom_ids(10)))
    story.answers = False
    await story.run(until=lambda: len(story.requests()) == 4)
    story.play(most=3)
    story.now_ms += STALLED_AFTER_MS
    story.answers = True
    await story.run()
    written = Counter(request.response_id for request in story.requests())
    assert sorted(written.values()) == [1] * 10
    await all_ended_once(story, 10, 0)


async def test_where_the_log_is_another_one_what_was_on_its_way_is_written_to_it_at_once() -> None:
    story = Story(outcome=goes_wrong, lines_in_flight=4)
    await story.create(*map(line, custom_ids(10)))
    await story.run(until=lambda: story.batch.completed + story.batch.failed >= 4)
    story.answers = False
    await story.run(until=lambda: len(story.requests()) == 8)
    story.lose_log()
    story.answers = True
    await story.run()
    assert len(story.requests()) == 6, "nothing that has ended runs again"
    await all_ended_once(story, 10, 0)


class Late:
    """Writes that fail, and are made all the same, so many calls later."""

    def __init__(self, fates: Sequence[int | None]) -> None:
        self._fates = iter(fates)
        self._waiting: list[tuple[int, Callable[[], Awaitable[object]]]] = []

    async def passes(self) -> None:
        due = [work for left, work in self._waiting if not left]
        self._waiting = [(left - 1, work) for left, work in self._waiting if left]
        for work in due:
            with suppress(BlobMissing):
                await work()

    async def is_late(self, work: Callable[[], Awaitable[object]]) -> bool:
        await self.passes()
        fate = next(self._fates, None)
        if fate is not None:
            self._waiting.append((fate, work))
        return fate is not None


class LateBatches(MemoryBatches):
    def __init__(self, files: MemoryFiles, late: Late) -> None:
        super().__init__(files)
        self._late = late

    async def change(self, held: Held, event: Event) -> Held | None:
        work = partial(super().change, held, event)
        if await self._late.is_late(work):
            raise MetadataUnavailable("late")
        return await work()

    async def renew(self, held: Held) -> Held | None:
        await self._late.passes()
        return await super().renew(held)

    async def renumber(self, held: Held) -> Held | None:
        await self._late.passes()
        return await super().renumber(held)


class LateBlobs(MemoryBlobs):
    def __init__(self, late: Late) -> None:
        super().__init__()
        self._late = late

    async def append(self, name: str, at: int, data: bytes) -> None:
        work = partial(super().append, name, at, data)
        if await self._late.is_late(work):
            raise BlobsUnavailable("late")
        await work()


@settings(max_examples=100, deadline=None)
@given(fates=st.lists(st.none() | st.integers(0, 4), max_size=40), broken=st.integers(0, len(BROKEN)))
def test_what_failed_and_comes_late_takes_nothing_back(fates: list[int | None], broken: int) -> None:
    async def run() -> None:
        story, late = Story(outcome=goes_wrong, lines_in_flight=4), Late(fates)
        story.batches, story.blobs = LateBatches(story.files, late), LateBlobs(late)
        await story.create(*map(line, custom_ids(10)), *BROKEN[:broken])
        services, results = story.services()
        run = BatchRun((await story.batches.claim("gateway", 1))[0], services)
        goes_on = True
        while goes_on:
            try:
                goes_on = await run.step()
            except (MetadataUnavailable, BlobsUnavailable):
                run.doubt()
            story.play(most=1)
            results.read()
        await story.blobs.delete_under("batches/batch_0123")  # What comes after all that.
        await all_ended_once(story, 10, broken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "SAVED_LINES", 1)
        asyncio.run(run())


async def test_lines_are_told_as_openai_tells_them() -> None:
    story = Story(outcome=goes_wrong)
    await story.create(line("line-0"), line("line-1"), "{cut in the mid")
    await story.run()
    (output,), errors = await story.told(story.batch.output_file_id), await story.told(story.batch.error_file_id)
    assert set(output) == {"id", "custom_id", "response", "error"}
    assert output["id"].startswith("batch_req_")
    assert output["error"] is None
    assert output["response"]["body"]["object"] == "chat.completion"
    assert output["response"]["request_id"].startswith("resp_")
    broken, wrong = errors
    assert (broken["response"], broken["error"]["code"]) == (None, "invalid_json_line")
    assert wrong["response"]["status_code"] == 503
    assert wrong["response"]["body"]["error"]["code"] == "overloaded"
    assert json.dumps(wrong["error"]) == "null"
