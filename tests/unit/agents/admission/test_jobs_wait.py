"""Producers' jobs wait for what passes: room in their pool, and in the quota of their tenant."""

import asyncio
from dataclasses import replace

import pytest

from agents.admission.pipeline import places_among
from agents.admission.routing import QueueBound
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import Lane
from streams.directory import Limits
from streams.log.port import LogRecord
from tests.unit.agents.admission.region_in_memory import IN_WORK, region
from tests.unit.agents.admission.world import IDS, NOW, World


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_five_thousand_jobs_pass_the_limits_that_everybody_has(redis_url: str, placement: str) -> None:
    async with region(redis_url, placement, producer=Limits()) as r:
        r.beat()
        r.submit("producer", [f"line-{number}" for number in range(5_000)])
        await r.finish_all(5_000)
        assert not r.endings()
        assert len({work.response_id for work in r.in_lane()}) == 5_000


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_jobs_that_wait_for_their_tenant_s_quota_are_in_nobody_s_way(redis_url: str, placement: str) -> None:
    async with region(redis_url, placement, heavy=Limits(concurrent_jobs=10), light=Limits()) as r:
        r.beat()
        jobs = [f"line-{number}" for number in range(3 * IN_WORK)]
        r.submit("heavy", jobs)
        await r.until(lambda: len(r.in_lane()) == 10 and r.records(r.topics.aside.name), "the tenant's own places")
        # Another tenant's job behind all of these, and the same tenant's chat beside them.
        r.submit("light", ["only"])
        chat = IDS.mint(3)
        r.send(chat, "heavy")
        await r.until(lambda: [w for w in r.in_lane() if w.scope.tenant_id == "light"], "the other tenant's job")
        await r.until(lambda: [w for w in r.in_lane(Lane.STANDARD) if w.response_id == chat], "the tenant's chat")
        assert len(r.in_lane()) == 11
        assert not r.endings()
        # Whatever stepped aside comes back.
        r.directory.all["heavy"] = r.directory.all["heavy"].model_copy(update={"limits": Limits()})
        await r.finish_all(len(jobs) + 1)
        assert len({work.response_id for work in r.in_lane()}) == len(jobs) + 1
        assert not r.endings()


async def test_jobs_that_look_for_room_together_overshoot_nothing_and_are_not_refused() -> None:
    # Half of a pool's queue is for jobs: there is room for one.
    world = World(queue_bound=QueueBound(10**6, 2))
    world.beat(lease_ms=3_600_000)
    decide = world.quota.decide

    async def slow(*arguments: object, **named: object) -> object:
        for _ in range(5):
            await asyncio.sleep(0)
        return await decide(*arguments, **named)  # type: ignore[arg-type]

    world.quota.decide = slow  # type: ignore[assignment, method-assign]
    for number in range(3):
        await world.pipeline.handle_job(world.job(custom_id=f"line-{number}", offset=number))
    queued = [record for record in world.log.records if record.topic == "local.admission.jobs.default"]
    looks, heartbeats, overshot = 0, 1, 0

    async def wait(_seconds: float) -> None:
        nonlocal looks, heartbeats, overshot
        await asyncio.sleep(0)
        looks += 1
        overshot += len(world.log.of(Opened, "local.generated")) > heartbeats
        if looks % 100 == 0:
            # The worker says that it has begun what it was given.
            world.now_ms += 1_000
            world.beat(lease_ms=3_600_000)
            heartbeats += 1

    pipeline = replace(world.pipeline, sleep=wait)
    async with asyncio.timeout(60):
        await asyncio.gather(*(pipeline.handle_queued_job(record) for record in queued))
    assert len(world.log.of(Opened, "local.generated")) == 3
    assert not world.log.endings
    assert not overshot
    assert heartbeats >= 3, "one at a time"


async def test_a_job_that_could_never_pass_is_told_so_at_once() -> None:
    world = World()
    world.beat()
    world.limit(tokens_per_minute=5)
    await world.submit(world.job())
    [ending] = world.log.endings
    assert ending.code is EndingCode.INVALID_REQUEST
    assert world.now_ms == NOW


async def test_a_job_keeps_its_place_for_a_while_and_then_goes_to_the_end_of_its_queue() -> None:
    world = World()
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    await world.pipeline.handle_job(world.job())
    [queued] = world.log.records
    await world.pipeline.handle_queued_job(queued)
    again = world.log.records[-1]
    assert (again.topic, again.value) == (queued.topic, queued.value)
    assert world.now_ms - NOW <= 61_000, "the commit stands behind it no longer than that"
    world.beat(lease_ms=3_600_000)
    await world.pipeline.handle_queued_job(again)
    assert len(world.log.of(Opened, "local.generated")) == 1


@pytest.mark.parametrize("aside", [False, True])
async def test_a_job_that_waits_while_its_partition_changes_hands_is_left_to_the_next_owner(aside: bool) -> None:
    world = World()
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    await world.pipeline.handle_job(world.job())
    [queued] = world.log.records
    if aside:
        queued = replace(queued, topic=world.topics.aside.name)
    generation = 1

    async def balance(_seconds: float) -> None:
        nonlocal generation
        generation += 1

    pipeline = replace(world.pipeline, sleep=balance, generation=lambda: generation)
    if aside:
        pipeline = replace(pipeline, places=places_among(0))
        taken = pipeline.places.take(queued.topic, "acme", 0, NOW)
        assert taken is not None
    await pipeline.handle_queued_job(queued)
    assert len(world.log.records) == 1, "else each balance would leave one more copy of whatever waits"
    assert generation == 2


async def test_a_crash_after_a_job_was_written_again_makes_no_second_answer() -> None:
    world = World()
    world.beat(queued_tokens=10**6, lease_ms=3_600_000)
    await world.pipeline.handle_job(world.job())
    [queued] = world.log.records
    await world.pipeline.handle_queued_job(queued)
    written: LogRecord = world.log.records[-1]
    world.beat(lease_ms=3_600_000)
    for copy in (queued, written, queued):
        await world.pipeline.handle_queued_job(copy)
    assert len({place.partition for place, _ in world.log.of(Opened, "local.generated")}) == 1
    assert len(world.quota.tenants["acme"].active) == 1
    assert not world.log.endings


async def test_a_revoked_key_stops_its_jobs_at_the_intake_and_no_later() -> None:
    world = World()
    world.beat()
    await world.pipeline.handle_job(world.job(custom_id="read before"))
    [queued] = world.log.records
    world.change(producer_keys=[])
    await world.pipeline.handle_job(world.job(custom_id="read after", offset=10))
    assert [(letter.reason, letter.offset) for letter in world.log.dead] == [("untrusted", 10)]
    await world.pipeline.handle_queued_job(queued)
    assert len(world.log.of(Opened, "local.generated")) == 1
    assert not world.log.endings, "nobody is told of the other one"


async def test_a_clock_that_is_set_back_keeps_nobody_in_a_place_or_aside(world: World) -> None:
    world.beat(queued_tokens=10**6, lease_ms=10 * 3_600_000)
    await world.pipeline.handle_job(world.job(expires_ms=NOW + 7_200_000))
    [queued] = world.log.records
    aside = replace(queued, topic=world.topics.aside.name)
    for _ in range(20):
        assert world.pipeline.rounds.wait_s(world.now_ms / 1_000) < 1.0
    world.set_back_ms = 3_600_000
    for record in (queued, aside):
        before_ms = world.now_ms
        await world.pipeline.handle_queued_job(record)
        assert world.now_ms - before_ms < 62_000
    assert [record.topic for record in world.log.records] == [queued.topic] * 2 + [aside.topic]


async def test_a_job_that_expired_before_it_found_room_spends_nothing_and_takes_no_lane(world: World) -> None:
    await world.pipeline.handle_job(world.job(expires_ms=NOW + 600_000))
    [queued] = world.log.records
    world.now_ms = world.quota.now_ms = NOW + 600_000
    world.beat()
    await world.pipeline.handle_queued_job(queued)
    [ending] = world.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    assert not world.log.of(Opened, "local.generated")
    assert world.quota.tenants["acme"].figures()["requests_remaining"] == Limits().requests_per_minute


async def test_a_job_that_has_grown_too_large_to_be_written_again_is_refused() -> None:
    world = World()
    world.beat()
    await world.pipeline.handle_job(world.job())
    [queued] = world.log.records
    world.log.max_bytes = len(queued.value or b"") + 10
    reserve = world.quota.reserve

    async def reserved_while_the_pool_fills(*arguments: object, **named: object) -> object:
        world.beat(queued_tokens=10**6, lease_ms=3_600_000)
        return await reserve(*arguments, **named)  # type: ignore[arg-type]

    world.quota.reserve = reserved_while_the_pool_fills  # type: ignore[assignment, method-assign]
    await world.pipeline.handle_queued_job(queued)
    [ending] = world.log.endings
    assert ending.code is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert not world.quota.tenants["acme"].active
