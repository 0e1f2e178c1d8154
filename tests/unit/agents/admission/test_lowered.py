"""Before anybody is refused, who gives way waits behind its lane, and is told so."""

import pytest

from agents.admission.pipeline import Pipeline
from agents.admission.recovery import _restored
from agents.admission.route_plan import Ask, Looked, Option, plan
from agents.admission.routing import QueueBound
from agents.admission.stages import FUSED, STAGES, Stage
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Lane
from streams.directory import Pool, Tier
from streams.log.port import LogRecord
from tests.unit.agents.admission.test_route_plan import load
from tests.unit.agents.admission.world import IDS, World

BOUND = QueueBound(tokens=1_000, answers=100, lowered_from=0.5)


@pytest.fixture
def world() -> World:
    world = World(queue_bound=BOUND)
    world.change("acme", tier="free")
    return world


@pytest.mark.parametrize(
    ("tier", "lane", "queued_tokens", "becomes"),
    [
        ("free", Lane.STANDARD, 399, "as it is"),
        ("free", Lane.STANDARD, 400, "lowered"),
        ("free", Lane.STANDARD, 799, "lowered"),
        ("free", Lane.STANDARD, 800, "refused"),
        ("paid", Lane.STANDARD, 799, "as it is"),
        ("paid", Lane.STANDARD, 800, "refused"),
        ("premium", Lane.INTERACTIVE, 999, "as it is"),
        ("free", Lane.BATCH, 499, "as it is"),
    ],
)
def test_the_lowest_tier_is_lowered_before_anybody_is_refused(
    tier: Tier, lane: Lane, queued_tokens: int, becomes: str
) -> None:
    pool = Pool(name="first", engine="simulated")
    ask = Ask("acme", tier, lane, context=60, output=20)
    at = plan(Option([Looked(pool, [load(queued_tokens=queued_tokens)])], ask), None, BOUND)
    assert becomes == ("refused" if at.standing == "overloaded" else "lowered" if at.is_lowered else "as it is")


def test_many_small_ones_make_a_queue_long_as_well_and_an_operator_may_have_none_lowered() -> None:
    pool, ask = Pool(name="first", engine="simulated"), Ask("acme", "free", Lane.STANDARD, context=60, output=20)
    many = Option([Looked(pool, [load(waiting=40)])], ask)
    assert plan(many, None, BOUND).is_lowered
    assert not plan(many, None, QueueBound(tokens=1_000, answers=100)).is_lowered


@pytest.mark.parametrize(
    ("reads", "becomes"),
    [
        ([{Lane.BATCH: [2]}], "lowered"),
        ([{}], "as it is"),
        ([{Lane.STANDARD: [2], Lane.BATCH: []}, {Lane.STANDARD: [3]}], "as it is"),
        ([{Lane.STANDARD: [2]}, {Lane.BATCH: [3]}], "lowered"),
    ],
)
def test_nobody_is_lowered_into_a_lane_that_no_worker_reads(reads: list[dict[Lane, list[int]]], becomes: str) -> None:
    """As where one long answer holds up all of it."""
    ask = Ask("acme", "free", Lane.STANDARD, context=60, output=20)
    loads = [load(lane_partitions=lanes, held_up={Lane.BATCH: [2]}, queued_tokens=450) for lanes in reads]
    at = plan(
        Option([Looked(Pool(name="first", engine="simulated"), loads)], ask),
        None,
        QueueBound(10_000, 100, lowered_from=0.05),
    )
    assert (at.standing, at.is_lowered) == ("room", becomes == "lowered")


async def through(world: World, record: LogRecord, stages: tuple[Stage, ...]) -> None:
    """As one process does it, or one for each stage."""
    pipeline: Pipeline = world.pipeline
    if stages is FUSED:
        await pipeline.handle_request(record)
        return
    read = len(world.log.records)
    await pipeline.handle_request(record, STAGES[:1])
    for stage in STAGES[1:]:
        for between in world.log.records[read:]:
            if between.topic.startswith("local.admission."):
                read = world.log.records.index(between) + 1
                await pipeline.handle_admission(between, (stage,))
                break


@pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "split"])
async def test_it_waits_in_the_last_lane_says_so_and_stays_there(world: World, stages: tuple[Stage, ...]) -> None:
    world.beat(queued_tokens=450, max_running=4)
    record = world.record(world.request())
    await through(world, record, stages)
    world.beat(queued_tokens=0, max_running=4, beat_at_ms=world.now_ms + 1)
    await through(world, record, stages)
    [(_, first), (_, again)] = world.log.of(Opened, world.topics.generated.name)
    assert (first.lane, first.lowered_from) == (again.lane, again.lowered_from) == (Lane.BATCH, Lane.STANDARD)
    works = world.log.of(AdmittedRequest, world.topics.lane("default", Lane.BATCH).name)
    assert [work.lane for _, work in works] == [Lane.BATCH] * 2
    assert not world.log.endings


async def test_beside_it_paid_ones_keep_their_lane_and_beyond_the_bound_it_is_refused_with_advice(
    world: World,
) -> None:
    world.beat(queued_tokens=450, max_running=4)
    await world.pipeline.handle_request(world.record(world.request(tenant="gold", response_id=IDS.mint(3))))
    [(_, opened)] = world.log.of(Opened, world.topics.generated.name)
    assert (opened.lane, opened.lowered_from) == (Lane.INTERACTIVE, None)
    world.beat(queued_tokens=800, max_running=4, beat_at_ms=world.now_ms + 1)
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert ending.code is EndingCode.OVERLOADED
    assert ending.retry_after_ms is not None


async def test_it_counts_as_a_response_of_its_tenant_and_is_rebuilt_so(world: World) -> None:
    world.beat(queued_tokens=450, max_running=4)
    await world.pipeline.handle_request(world.record(world.request()))
    assert len(world.quota.tenants["acme"].active) == 1
    [(_, opened)] = world.log.of(Opened, world.topics.generated.name)
    decision = _restored(opened, 5, ended=False).decision
    assert decision is not None
    assert (decision.lane, decision.lowered_from) == (Lane.BATCH, Lane.STANDARD)
