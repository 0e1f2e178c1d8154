"""Jobs wait for their turn at the intake: who they are taken for, what a balance does to them, who is told."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agents.admission import entrances
from agents.admission.app import Binding, bindings, drained
from agents.admission.in_order import NotBegun
from agents.admission.pipeline import Entry
from agents.admission.turns import OTHERS_EVERY
from agents.admission.watchdog import Excuses, Progress, StallDetector
from schemas.endings import EndingCode
from streams.directory import Limits
from streams.log.port import LogRecord, TopicPartition
from streams.signing import verify_job
from tests.unit.agents.admission.region_in_memory import region
from tests.unit.agents.admission.world import World

FORGER = Ed25519PrivateKey.from_private_bytes(b"f" * 32)
STALL_S = 30.0


def intake_of(world: World, jobs_per_second: int = 200) -> Binding:
    table = bindings("fused", world.topics, world.pipeline, jobs_per_second)
    return next(binding for binding in table if binding.name == "intake")


async def test_forged_jobs_that_name_a_tenant_take_none_of_its_turns(redis_url: str) -> None:
    async with region(redis_url, "fused", jobs_per_second=50, light=Limits()) as r:
        r.beat()
        r.submit("light", [f"line-{number}" for number in range(1_500)], FORGER)
        r.submit("light", ["genuine"])
        await r.until(r.in_lane, "the tenant's own job")
        endings = r.endings()
        assert len(endings) < 750
        assert {ending.code for ending in endings} <= {EndingCode.INVALID_SIGNATURE}


async def test_jobs_of_who_pays_begin_first_and_forged_ones_last(world: World) -> None:
    world.directory.all["crowd"] = world.directory.all["acme"].model_copy(update={"tenant_id": "crowd", "tier": "free"})
    begun: list[str] = []
    enter = world.pipeline.enter_job

    def noted(job: LogRecord) -> Entry:
        entry = enter(job)

        async def handle(_record: LogRecord) -> None:
            begun.append(entry.holder or "forged")

        return replace(entry, handle=handle)

    handle = replace(intake_of(world), enter=noted).paced(lambda: 0.0, lambda _: asyncio.sleep(0))
    jobs = [world.job(custom_id=f"f{n}", key=FORGER, offset=n) for n in range(10)]
    jobs += [world.job(custom_id=f"c{n}", tenant_id="crowd", offset=10 + n) for n in range(10)]
    jobs += [world.job(custom_id=f"p{n}", offset=20 + n) for n in range(20)]
    await asyncio.gather(*map(handle, jobs))
    first = begun[: 20 + 20 // (OTHERS_EVERY - 1)]
    assert first.count("acme") == 20
    assert {"crowd", "forged"} <= set(first), "nobody stands still"
    assert len(begun) == 40


async def test_a_signature_is_verified_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    verified = 0

    def counted(*arguments: object, **named: object) -> None:
        nonlocal verified
        verified += 1
        verify_job(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(entrances, "verify_job", counted)
    await intake_of(world).paced()(world.job())
    assert verified == 1
    assert world.log.kinds == ["admission.jobs.default"]


async def test_a_job_that_waits_for_its_turn_while_a_balance_begins_is_left_to_the_next_owner(world: World) -> None:
    generation = 1

    async def balance(_seconds: float) -> None:
        nonlocal generation
        generation += 1
        await asyncio.sleep(0)

    world.pipeline = replace(world.pipeline, generation=lambda: generation)
    handle = intake_of(world).paced(lambda: 0.0, balance)
    await asyncio.gather(*(handle(world.job(custom_id=f"line-{number}", offset=number)) for number in range(3)))
    assert not world.log.records


async def test_an_ordered_stop_leaves_jobs_that_wait_for_their_turn_unread(world: World) -> None:
    failures: list[Exception] = []
    acknowledged: list[int] = []
    binding = intake_of(world)
    window, handle = binding.window(256, failures.append), binding.paced(lambda: 0.0, lambda _: asyncio.sleep(0))
    for number in range(50):
        job = world.job(custom_id=f"line-{number}", offset=number)
        await window.start("line", partial(handle, job), partial(acknowledged.append, number), 1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert acknowledged
    assert await drained([binding], [window], timeout_s=5) == 0
    assert acknowledged == [*range(len(world.log.records))]
    assert len(acknowledged) < 50
    assert not failures
    with pytest.raises(NotBegun):
        await handle(world.job(custom_id="line-50", offset=50))


class Watched:
    """The intake in virtual time, with the watchdog's rule for its one partition; no job is committed."""

    def __init__(self, world: World, jobs_per_second: int = 200) -> None:
        self.now_s = 0.0
        self.stalled_s: float | None = None
        excuses = Excuses(lambda: self.now_s)
        self._excused: Callable[[], bool] = lambda: excuses.excused(world.topics.intake_batch.name)
        self._detector = StallDetector(STALL_S)
        world.services = replace(world.services, on_hold=excuses.hold)
        world.pipeline = replace(world.pipeline, services=world.services, sleep=self.sleep)
        self.handle = intake_of(world, jobs_per_second).paced(lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 1)
            self._look()
        await asyncio.sleep(0)

    def _look(self) -> None:
        progress = {} if self._excused() else {TopicPartition("intake", 0): Progress(0, 2_000)}
        if self._detector.observe(self.now_s, progress) and self.stalled_s is None:
            self.stalled_s = self.now_s


async def test_jobs_that_wait_for_their_turn_are_no_stall(world: World) -> None:
    watched = Watched(world)
    jobs = [world.job(custom_id=f"line-{number}", offset=number) for number in range(200)]
    large = [replace(job, value=b"x" * 1_000_000, offset=200 + n) for n, job in enumerate(jobs[:120])]
    await asyncio.gather(*(watched.handle(job) for job in [*large, *jobs]))
    assert watched.now_s > STALL_S
    assert watched.stalled_s is None


async def test_a_job_that_gets_nowhere_is_a_stall_however_many_wait_for_their_turn(world: World) -> None:
    publish, stuck = world.log.publish, "line-0"

    async def never_for_one(topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        if f'"custom_id":"{stuck}"' in value.decode():
            await asyncio.Event().wait()
        return await publish(topic, value, key=key, partition=partition)

    world.log.publish = never_for_one  # type: ignore[method-assign]
    watched = Watched(world, jobs_per_second=10)
    jobs = [world.job(custom_id=f"line-{number}", offset=number) for number in range(1_000)]
    first, *others = [asyncio.ensure_future(watched.handle(job)) for job in jobs]
    await asyncio.gather(*others)
    assert not first.done()
    first.cancel()
    assert watched.stalled_s is not None
