"""A producer ends its job by its `custom_id`: whenever the cancel comes, one outcome stands."""

import asyncio
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from schemas.batch import JobCancel
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import AdmittedRequest
from streams.log.port import LogRecord
from tests.unit.agents.admission.world import NOW, World

CANCEL = JobCancel().encode()
LANE = "local.inference.default.batch"
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(b"o" * 32)


def routed(world: World) -> int:
    """In which partition of `generated` the job was opened."""
    [(place, _)] = world.log.of(Opened, "local.generated")
    return place.partition


async def test_a_job_that_was_routed_ends_beside_its_beginning(world: World) -> None:
    await world.submit(world.job())
    [(_, work)] = world.log.of(AdmittedRequest, LANE)
    await world.submit(world.job(CANCEL, offset=10))
    [ending] = world.log.endings
    assert (ending.response_id, ending.code, ending.written_by) == (work.response_id, EndingCode.CANCELLED, "admission")
    [place] = [
        record.partition
        for record in world.log.records
        if record.topic == "local.generated" and record.value == ending.encode()
    ]
    assert place == routed(world), "else post-safety would not meet it behind `opened`"


async def test_a_job_that_waits_is_told_at_once_and_never_begins(world: World) -> None:
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    await world.pipeline.handle_job(world.job())
    [waiting] = world.log.records
    await world.pipeline.handle_job(world.job(CANCEL, offset=10))
    [ending] = world.log.endings
    assert (ending.code, ending.reply_to.custom_id) == (EndingCode.CANCELLED, "line-1")
    assert ending.reply_to.results_topic == "local.results.acme"
    # Room comes: the same ending again, which is void.
    world.beat(lease_ms=3_600_000)
    await world.pipeline.handle_queued_job(waiting)
    assert {(each.response_id, each.code) for each in world.log.endings} == {(ending.response_id, ending.code)}
    assert not world.log.of(Opened, "local.generated")
    assert not world.quota.tenants["acme"].active


async def test_a_cancel_that_comes_before_its_job_ends_it(world: World) -> None:
    await world.submit(world.job(CANCEL), world.job(offset=10))
    assert {each.code for each in world.log.endings} == {EndingCode.CANCELLED}
    assert len({each.response_id for each in world.log.endings}) == 1
    assert not world.log.of(AdmittedRequest, LANE)


async def test_what_has_ended_stays_as_it_ended(world: World) -> None:
    await world.submit(world.job())
    [(_, work)] = world.log.of(AdmittedRequest, LANE)
    await world.quota.settle("acme", world.directory.all["acme"].limits, work.response_id, 0, 12)
    await world.submit(world.job(CANCEL, offset=10))
    assert not world.log.endings


async def test_a_cancel_that_is_delivered_again_says_the_same(world: World) -> None:
    await world.submit(world.job())
    for _ in range(3):
        await world.submit(world.job(CANCEL, offset=10))
    first, *others = world.log.endings
    assert all(other == first for other in others)


async def test_a_crash_at_any_write_leaves_one_outcome(world: World) -> None:
    await world.submit(world.job())
    writes = len(world.log.records)
    cancel = world.job(CANCEL, offset=10)
    world.log.fail_after = writes
    with pytest.raises(Exception, match="scripted"):
        await world.pipeline.handle_job(cancel)
    world.log.fail_after = None
    await world.pipeline.handle_job(cancel)
    assert [each.code for each in world.log.endings] == [EndingCode.CANCELLED]


async def test_a_cancel_that_races_with_its_job_leaves_one_outcome(world: World) -> None:
    """However their steps interleave: what is opened has its ending in the same partition."""
    for number in range(20):
        custom_id = f"line-{number}"
        world.log.records.clear()
        await world.pipeline.handle_job(world.job(custom_id=custom_id))
        [queued] = world.log.records
        world.beat()

        async def cancel(after: int, custom_id: str = custom_id) -> None:
            for _ in range(after):
                await asyncio.sleep(0)
            await world.pipeline.handle_job(world.job(CANCEL, custom_id=custom_id, offset=10))

        await asyncio.gather(world.pipeline.handle_queued_job(queued), cancel(number))
        opened = {place.partition for place, _ in world.log.of(Opened, "local.generated")}
        endings = {
            record.partition
            for record in world.log.records
            if record.topic == "local.generated" and b'"type":"ending"' in (record.value or b"")
        }
        assert endings
        assert not opened or opened <= endings
        world.limit(tokens_per_minute=10**6)


@pytest.mark.parametrize("forgery", [{"key": OTHER_KEY}, {"expires_ms": NOW}, {"expires_ms": NOW + 25 * 3_600_000}])
async def test_a_cancel_that_is_not_proved_ends_nothing_and_tells_nobody(
    world: World, forgery: dict[str, object]
) -> None:
    """A line under that `custom_id` would be taken for the job's."""
    await world.submit(world.job())
    await world.submit(world.job(CANCEL, offset=10, **forgery))  # type: ignore[arg-type]
    assert not world.log.endings
    [letter] = world.log.dead
    assert (letter.stage, letter.reason) == ("intake", "untrusted")
    assert letter.detail.startswith("cancel: ")


async def test_a_cancel_of_another_tenant_does_not_end_it(world: World) -> None:
    world.directory.all["beta"] = world.directory.all["acme"].model_copy(update={"tenant_id": "beta"})
    await world.submit(world.job())
    [(_, work)] = world.log.of(AdmittedRequest, LANE)
    await world.submit(world.job(CANCEL, tenant_id="beta", offset=10))
    assert work.response_id not in {each.response_id for each in world.log.endings}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"type":"job_cancel","custom_id":"line-2"}', "invalid"),
        (b'{"type":"job_cancel","custom_id":7}', "invalid"),
        (b'{"type":"job_cancel","schema_version":9}', "unknown_version"),
    ],
)
async def test_a_cancel_that_cannot_be_read_ends_nothing(world: World, value: bytes, reason: str) -> None:
    await world.submit(world.job(), world.job(value, offset=10))
    assert not world.log.endings
    assert [letter.reason for letter in world.log.dead] == [reason]


async def test_a_job_that_speaks_of_cancels_is_a_job(world: World) -> None:
    for number, content in enumerate(("job_cancel", '{"type":"job_cancel"}')):
        body: dict[str, object] = {"model": "default", "messages": [{"role": "user", "content": content}]}
        record: LogRecord = replace(world.job(body, custom_id=f"line-{number}"), offset=number)
        await world.submit(record)
    assert len(world.log.of(AdmittedRequest, LANE)) == 2
    assert not world.log.endings
