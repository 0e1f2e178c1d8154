"""Lines of a batch that is cancelled, or given up, end wherever they are: none begins when nobody waits for it."""

import pytest

from streams.gateway.batches import core
from streams.gateway.batches.core import CANCEL_WAIT_MS, SENT_TOGETHER, Status
from streams.gateway.batches.run import BatchRun, LostLease
from streams.gateway.batches.told import unpacked
from streams.gateway.files.port import blob_of
from streams.log.port import LogError
from streams.signing import verify_request
from tests.unit.streams.gateway.batch_stories import Story, custom_ids, line
from tests.unit.streams.gateway.gateway_stack import SECRET

LINES = SENT_TOGETHER + 20


async def waiting(lines: int = LINES, in_flight: int = 2) -> Story:
    """So many lines are on the log, and wait there."""
    story = Story(lines_in_flight=in_flight)
    story.answers = False
    await story.create(*map(line, custom_ids(lines)))
    await story.run(until=lambda: len(story.requests()) == in_flight)
    return story


def cancelled(story: Story) -> dict[str, str]:
    """By response id, under which name its result will come."""
    return {each.response_id: each.reply_to.custom_id or "" for each in story.cancels()}


def published(story: Story) -> dict[str, str]:
    return {each.response_id: each.reply_to.custom_id or "" for each in story.requests()}


async def test_what_waits_is_cancelled_before_any_line_is_told_not_to_have_run() -> None:
    """Also where nobody held the batch for as long as cancels are waited for."""
    story = await waiting()
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    story.now_ms += CANCEL_WAIT_MS
    await story.run(until=lambda: story.batch.failed > 0)
    assert published(story).items() <= cancelled(story).items()
    for record in story.log.records(story.topics.intake_batch.name):
        verify_request([SECRET.encode()], record.topic, dict(record.headers), record.value or b"")
    assert {(each.deadline_ms, each.endpoint) for each in story.cancels()} == {
        (each.deadline_ms, each.endpoint) for each in story.requests()
    }
    await story.run()
    assert story.batch.status is Status.CANCELLED


async def test_what_waited_is_told_as_cancelled_by_its_own_name_at_once() -> None:
    story = await waiting()
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    began_ms, story.answers = story.now_ms, True
    await story.run()
    assert story.now_ms < began_ms + CANCEL_WAIT_MS
    ends = await story.ends()
    assert sorted(ends) == sorted(custom_ids(LINES))
    assert {each["error"]["code"] for (each,) in ends.values() if each["error"]} == {"batch_cancelled"}
    assert len(story.answered) == story.batch.completed == 2, "what was published before the cancel ran here"


@pytest.mark.parametrize("step", [3, 4, 5])
async def test_what_was_sent_and_not_written_down_is_cancelled_too(step: int) -> None:
    story = Story(lines_in_flight=SENT_TOGETHER)
    story.answers = False
    await story.create(*map(line, custom_ids(LINES)))
    story.kill_after = step
    await story.run(until=lambda: not story.kill_after)
    assert story.batch.status is Status.IN_PROGRESS
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    story.now_ms += CANCEL_WAIT_MS
    await story.run()
    assert published(story).items() <= cancelled(story).items()
    assert len(cancelled(story)) <= 2 * SENT_TOGETHER


async def test_a_killed_holder_s_cancels_are_written_again_by_the_next_one() -> None:
    story = await waiting()
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, story.services()[0])
    await run.step()
    once = cancelled(story)
    story.now_ms += CANCEL_WAIT_MS
    await story.run()
    assert cancelled(story) == once
    assert len(story.cancels()) == 2 * len(once)
    assert story.batch.status is Status.CANCELLED


async def test_a_file_that_is_gone_is_no_reason_to_let_lines_run() -> None:
    story = await waiting()
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    await story.blobs.delete(blob_of("file-1"))
    await story.run(until=lambda: bool(story.cancels()))
    assert published(story).keys() <= cancelled(story).keys()
    assert {place.custom_id for name in cancelled(story).values() if (place := unpacked(name))} == {""}


@pytest.mark.parametrize("killed", [False, True])
async def test_lines_of_a_batch_that_is_given_up_do_not_run_on(killed: bool) -> None:
    story = await waiting()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, story.services()[0])
    await run.give_up("internal_error", "It met a fault.")
    assert (story.batch.status, story.cancels()) == (Status.FAILED, [])
    if killed:
        story.now_ms += 60_000
        await story.run()
    else:
        while await run.step():
            pass
    assert published(story).keys() <= cancelled(story).keys()
    workers = story.log.records(story.topics.control.name)
    assert {(record.key or b"").decode() for record in workers} == published(story).keys()
    assert not story.batch.is_open


async def test_who_has_lost_the_lease_cancels_nothing() -> None:
    story = await waiting()
    (held,) = await story.batches.claim("one", 1)
    run = BatchRun(held, story.services()[0])
    story.now_ms += 60_000
    await story.batches.claim("two", 1)
    with pytest.raises(LostLease):
        await run.give_up("internal_error", "It met a fault.")
    assert story.cancels() == []


async def test_while_the_log_takes_no_cancels_no_line_is_told_not_to_have_run(monkeypatch: pytest.MonkeyPatch) -> None:
    story = await waiting()
    await story.batches.tell("acme", "batch_0123", core.cancel_asked)
    story.now_ms += CANCEL_WAIT_MS
    services, _ = story.services()
    (held,) = await story.batches.claim("gateway", 1)
    run = BatchRun(held, services)

    async def away(*_: object) -> None:
        raise LogError("away", retriable=True)

    with monkeypatch.context() as patched:
        patched.setattr(services.log, "withdraw", away)
        for _ in range(3):
            with pytest.raises(LogError):
                await run.step()
            run.doubt()
    assert story.batch.failed == 0
    while await run.step():
        pass
    assert published(story).items() <= cancelled(story).items()
    assert (story.batch.status, story.batch.failed) == (Status.CANCELLED, LINES)


async def test_what_has_expired_needs_no_cancel() -> None:
    """Its lines have the same deadline."""
    story = await waiting()
    story.now_ms = story.batch.expires_at_ms + core.EXPIRY_WAIT_MS
    await story.run()
    assert (story.batch.status, story.cancels()) == (Status.EXPIRED, [])
