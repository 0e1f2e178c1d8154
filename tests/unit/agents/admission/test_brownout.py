"""Where a pool is degraded, admission gives less to those who give way, once for all, and tells them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from agents.admission import metrics
from agents.admission.brownout import Brownouts, Decider
from agents.admission.publisher import PublishFailed
from agents.admission.recovery import Rebuild
from agents.admission.stages import FUSED, STAGES, Stage
from schemas.brownout import Brownout, PoolLevel
from schemas.generated import Opened
from schemas.request import LANES, AdmittedRequest, Lane, Request, Sampling
from streams.brownout import BrownoutPolicy, LaneSample
from tests.unit.agents.admission.world import NOW, World

POLICY = BrownoutPolicy(free_max_tokens=8, paid_max_tokens=20, up_after_s=10, down_after_s=40)
LANE = "local.inference.default.standard"


def at_level(world: World, level: int, policy: BrownoutPolicy = POLICY) -> Brownouts:
    """The pools of this world go by this policy from now on."""
    levels = Brownouts(policy)
    levels.take(said(level))
    world.services = replace(world.services, brownout=levels)
    world.pipeline = replace(world.pipeline, services=world.services)
    return levels


def said(level: int, pool: str = "default") -> PoolLevel:
    return PoolLevel(pool=pool, level=level, since_ms=NOW)


def asking(world: World, max_tokens: int = 30, tenant: str = "acme", **sampling: int) -> Request:
    return world.request(tenant=tenant, sampling=Sampling(max_tokens=max_tokens, **sampling))


async def admitted(world: World, request: Request) -> tuple[Opened, AdmittedRequest]:
    await world.pipeline.handle_request(world.record(request))
    assert not world.log.endings
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = [each for lane in LANES for each in world.log.of(AdmittedRequest, f"local.inference.default.{lane}")]
    return opened, work


@pytest.fixture
def free(world: World) -> World:
    world.beat()
    world.change(tier="free")
    return world


@pytest.mark.parametrize(("level", "max_tokens"), [(0, 30), (1, 8), (2, 8), (3, 8)])
async def test_a_free_tenants_answers_are_shorter_from_the_first_level_on(
    free: World, level: int, max_tokens: int
) -> None:
    at_level(free, level)
    opened, work = await admitted(free, asking(free))
    assert (opened.max_tokens, work.max_tokens, opened.reserved_tokens) == (max_tokens, max_tokens, 5 + max_tokens)
    assert opened.brownout == (Brownout(level=level, max_tokens=8) if level else None)
    assert free.quota.tenants["acme"].tokens == 500 - 5 - max_tokens


@pytest.mark.parametrize(("level", "max_tokens"), [(1, 30), (2, 30), (3, 20)])
@pytest.mark.parametrize("tenant", ["acme", "gold"])
async def test_others_are_cut_at_the_last_level_alone(world: World, level: int, max_tokens: int, tenant: str) -> None:
    world.beat()
    at_level(world, level)
    opened, _ = await admitted(world, asking(world, tenant=tenant))
    assert opened.max_tokens == max_tokens
    assert (opened.brownout is None) == (max_tokens == 30)


async def test_who_asks_for_little_has_all_of_it_and_is_told_nothing(free: World) -> None:
    at_level(free, 2)
    opened, _ = await admitted(free, asking(free, max_tokens=8))
    assert (opened.max_tokens, opened.brownout) == (8, None)


async def test_an_answer_has_as_many_as_it_must_have(free: World) -> None:
    at_level(free, 1)
    opened, work = await admitted(free, asking(free, min_tokens=12))
    assert (work.max_tokens, opened.brownout) == (12, Brownout(level=1, max_tokens=12))


async def test_another_pool_is_not_concerned(free: World) -> None:
    levels = at_level(free, 0)
    levels.take(said(3, "other"))
    opened, _ = await admitted(free, asking(free))
    assert opened.max_tokens == 30


def rises(levels: Brownouts) -> None:
    levels.take(said(1))


def falls(levels: Brownouts) -> None:
    levels.take(said(0))


@pytest.mark.parametrize(("first", "change", "max_tokens"), [(0, rises, 30), (2, falls, 8), (2, rises, 8)])
@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2])
async def test_what_was_decided_is_replayed_whatever_the_level_is_then(
    free: World, first: int, change: Callable[[Brownouts], None], max_tokens: int, writes_before_the_crash: int
) -> None:
    levels = at_level(free, first)
    record = free.record(asking(free))
    await free.crash_after(record, writes=writes_before_the_crash)
    change(levels)
    await free.pipeline.handle_request(record)
    opened, work = free.log.of(Opened, "local.generated"), free.log.of(AdmittedRequest, LANE)
    cut = Brownout(level=2, max_tokens=8) if first else None
    assert {(each.max_tokens, each.brownout, each.reserved_tokens) for _, each in opened} == {
        (max_tokens, cut, 5 + max_tokens)
    }
    assert {each.max_tokens for _, each in work} == {max_tokens}
    assert free.quota.tenants["acme"].tokens == 500 - 5 - max_tokens


async def test_where_the_stages_are_split_what_was_reserved_stays(free: World) -> None:
    levels = at_level(free, 1)
    await free.pipeline.handle_request(free.record(asking(free)), STAGES[:1])
    validated = free.log.records[-1]
    await free.pipeline.handle_admission(validated, STAGES[1:2])
    falls(levels)
    await free.pipeline.handle_admission(validated, STAGES[1:2])
    first, again = (record for record in free.log.records if record.topic == "local.admission.reserved")
    await free.pipeline.handle_admission(again, STAGES[2:])
    await free.pipeline.handle_admission(first, STAGES[2:])
    work = [each for _, each in free.log.of(AdmittedRequest, LANE)]
    assert {(each.max_tokens) for each in work} == {8}
    assert len(work) == 2
    cuts = [each.brownout for _, each in free.log.of(Opened, "local.generated")]
    assert cuts == [Brownout(level=1, max_tokens=8)] * 2, "the one that came at level 0 is told that it was cut, too"


@pytest.fixture
def two_pools(free: World) -> World:
    """The first of them is full, and the second is idle."""
    free.catalog.change_model("tiny", alternates=["other"])
    free.beat(queued_tokens=10**6, lease_ms=3_600_000)
    free.beat("worker-2", pool="other", home_partitions=[6], lease_ms=3_600_000)
    return free


@pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "split"])
@pytest.mark.parametrize(("first", "second", "max_tokens"), [(1, 0, 30), (0, 3, 8)])
async def test_it_goes_by_the_pool_that_has_room(
    two_pools: World, stages: Sequence[Stage], first: int, second: int, max_tokens: int
) -> None:
    levels = at_level(two_pools, first)
    levels.take(said(second, "other"))
    await two_pools.pipeline.handle_request(two_pools.record(asking(two_pools)), stages)
    [(_, opened)] = two_pools.log.of(Opened, "local.generated")
    assert (opened.pool, opened.max_tokens) == ("other", max_tokens)


async def test_who_was_given_less_is_counted_where_it_goes(two_pools: World) -> None:
    def counted(pool: str) -> float:
        return float(metrics.BROWNED_OUT.labels(pool, 1)._value.get())

    at_level(two_pools, 0).take(said(1, "other"))
    before = counted("default"), counted("other")
    await two_pools.pipeline.handle_request(two_pools.record(asking(two_pools)))
    [(_, opened)] = two_pools.log.of(Opened, "local.generated")
    assert (opened.pool, opened.brownout) == ("other", Brownout(level=1, max_tokens=8))
    assert (counted("default"), counted("other")) == (before[0], before[1] + 1)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2])
async def test_it_goes_by_the_pool_that_takes_it_in_the_end(
    two_pools: World, first: int, writes_before_the_crash: int
) -> None:
    """The one that had room when quota reserved for it has filled up since; what is decided is replayed."""
    two_pools.beat(lease_ms=3_600_000)
    levels = at_level(two_pools, first)
    levels.take(said(3, "other"))
    await two_pools.pipeline.handle_request(two_pools.record(asking(two_pools)), STAGES[:1])
    await two_pools.pipeline.handle_admission(two_pools.log.records[-1], STAGES[1:2])
    two_pools.beat(queued_tokens=10**6, lease_ms=3_600_000)
    reserved, two_pools.log.fail_after = two_pools.log.records[-1], writes_before_the_crash
    with pytest.raises(PublishFailed):
        await two_pools.pipeline.handle_admission(reserved, STAGES[2:])
    two_pools.log.fail_after = None
    levels.take(said(0, "other"))
    await two_pools.pipeline.handle_admission(reserved, STAGES[2:])
    opened = [each for _, each in two_pools.log.of(Opened, "local.generated")]
    assert {(each.pool, each.max_tokens, each.brownout) for each in opened} == {
        ("other", 8, Brownout(level=3, max_tokens=8))
    }
    work = two_pools.log.of(AdmittedRequest, "local.inference.other.standard")
    assert {each.max_tokens for _, each in work} == {8}


async def test_jobs_go_to_a_pool_that_takes_some(two_pools: World) -> None:
    """Also where the one that takes none has room for them."""
    two_pools.beat(lease_ms=3_600_000)
    at_level(two_pools, 3)
    await two_pools.submit(two_pools.job())
    lanes = [record.topic for record in two_pools.log.records if ".inference." in record.topic]
    assert lanes == ["local.inference.other.batch"]
    assert two_pools.now_ms < NOW + 1_000


async def test_who_was_given_less_is_counted_once(free: World) -> None:
    def counted() -> float:
        return float(metrics.BROWNED_OUT.labels("default", 2)._value.get())

    at_level(free, 2)
    record, before = free.record(asking(free)), counted()
    for _ in range(2):
        await free.pipeline.handle_request(record)
    assert counted() == before + 1


async def test_after_a_loss_of_redis_it_is_known_from_the_log(free: World) -> None:
    at_level(free, 1)
    opened, _ = await admitted(free, asking(free))
    rebuild = Rebuild(NOW)
    rebuild.add(opened, 5, 0, NOW)
    [restored] = rebuild.open()
    assert (restored.tokens, restored.decision and restored.decision.brownout) == (
        13, Brownout(level=1, max_tokens=8),
    )  # fmt: skip


async def test_at_the_last_level_jobs_wait_and_chats_go_on(world: World) -> None:
    world.beat(lease_ms=3_600_000)
    levels = at_level(world, 3, POLICY.model_copy(update={"paid_max_tokens": None}))
    slept = world.pipeline.sleep

    async def until_it_falls(seconds: float) -> None:
        await slept(seconds)
        assert not world.log.of(AdmittedRequest, "local.inference.default.batch")
        if world.now_ms >= NOW + 5_000 and levels.level("default") == 3:
            await world.pipeline.handle_request(world.record(world.request()))
            levels.take(said(2))

    world.pipeline = replace(world.pipeline, sleep=until_it_falls)
    await world.submit(world.job())
    assert world.now_ms >= NOW + 5_000
    assert not world.log.endings
    lanes = [record.topic for record in world.log.records if ".inference." in record.topic]
    assert lanes == [LANE, "local.inference.default.batch"], "the chat first"


# Who decides


def sampled(**figures: int) -> dict[str, dict[Lane, LaneSample] | None]:
    return {"default": {Lane.STANDARD: LaneSample(**figures)}, "other": {}}


LONG = {"oldest_ms": 10**6}


def decided(decider: Decider, levels: Brownouts, seconds: int, first_s: int = 0, **figures: int) -> list[PoolLevel]:
    """Second by second; what is decided is written and read at once."""
    changes = []
    for second in range(first_s, first_s + seconds):
        for change in decider.changes(sampled(**figures), NOW + second * 1_000):
            levels.take(change)
            changes.append(change)
    return changes


def test_a_level_is_written_when_it_changes_and_says_why() -> None:
    levels = Brownouts(POLICY)
    decider = Decider(POLICY, ["default", "other"], levels)
    assert decided(decider, levels, 100) == []
    [change] = decided(decider, levels, 15, first_s=100, **LONG)
    assert (change.pool, change.level, change.since_ms) == ("default", 1, NOW + 110_000)
    assert change.why == "standard: a wait of 1000000 ms, target 60000"
    [back] = decided(decider, levels, 50, first_s=115)
    assert (back.level, back.why) == (0, "targets are met")


def test_whoever_decides_next_goes_on_from_what_stands() -> None:
    levels = Brownouts(POLICY)
    levels.take(said(2))
    decider = Decider(POLICY, ["default"], levels)
    assert [change.level for change in decided(decider, levels, 72, **LONG)] == [3]
    decider.rest()
    assert decided(decider, levels, 35, first_s=72) == [], "it has just begun to look"


def test_a_pool_of_which_nobody_says_anything_stays_where_it_is() -> None:
    levels = Brownouts(POLICY)
    levels.take(said(2))
    decider = Decider(POLICY, ["default"], levels)
    assert [decider.changes({"default": None}, NOW + second * 1_000) for second in range(300)] == [[]] * 300


def test_a_request_that_waits_for_the_only_worker_raises_no_level(world: World) -> None:
    """Two minutes it loads its model, and then it answers what has come meanwhile, all of it late."""
    levels = Brownouts(POLICY)
    decider = Decider(POLICY, ["default"], levels)
    changes = []
    for second in range(180):
        world.now_ms = NOW + second * 1_000
        is_ready = second >= 120
        queue = {"waiting": 1, "oldest_ms": second * 1_000} if second < 130 else {"left": 40}
        queue |= {"first_tokens": 40, "late_first_tokens": 40} if second >= 130 else {}
        world.beat(state="ready" if is_ready else "starting", queues={Lane.STANDARD: queue}, counts_since_ms=1)
        samples = world.workers.samples("default", world.now_ms)
        assert (samples is not None) == is_ready
        changes += decider.changes({"default": samples}, world.now_ms)
    assert changes == []


def test_the_operators_level_holds_whatever_is_measured() -> None:
    policy = POLICY.model_copy(update={"pinned": {"default": 2}})
    levels = Brownouts(policy)
    decider = Decider(policy, ["default", "other"], levels)
    [change] = decided(decider, levels, 100, **LONG)
    assert (change.level, change.why) == (2, "set by the operator")
    assert decided(decider, levels, 300, first_s=100) == []


def test_what_workers_say_of_their_lanes_is_taken_together(world: World) -> None:
    for second in range(4):
        world.now_ms = NOW + (second + 1) * 1_000
        for worker, oldest_ms in (("worker-1", 4_000), ("worker-2", 9_000)):
            queue = {"waiting": 3, "left": second, "oldest_ms": oldest_ms}
            queue |= {"first_tokens": 5 + 10 * second, "late_first_tokens": 2 * second}
            world.beat(worker, queues={Lane.STANDARD: queue}, counts_since_ms=1)
    world.beat("worker-3", pool="other", queues={Lane.STANDARD: {"oldest_ms": 10**6}})
    world.beat("worker-4", lease_ms=1, beat_at_ms=NOW, queues={Lane.STANDARD: {"oldest_ms": 10**6}})
    world.beat("worker-5", state="starting", queues={Lane.STANDARD: {"oldest_ms": 10**6}})
    samples = world.workers.samples("default", world.now_ms)
    assert samples is not None
    assert samples[Lane.STANDARD] == LaneSample(oldest_ms=9_000, wait_ms=3_500, first_tokens=60, late=12)
    assert world.workers.samples("default", world.now_ms + 10_000) is None, "their leases have run out"
