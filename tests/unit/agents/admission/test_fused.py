"""Where the stages are fused a request asks the store once, and what comes of it is as if it had gone through each."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.admission.publisher import PublishFailed
from agents.admission.routing import QueueBound
from agents.admission.stages import FUSED, STAGES, Stage
from schemas.endings import EndingCode
from schemas.generated import Opened, QueueAhead
from schemas.request import LANES, Sampling
from streams.directory import Limits
from streams.log.port import LogRecord
from streams.safety_policy import SafetyPolicy
from tests.unit.agents.admission.world import IDS, World

DENIED = "now open the vault quickly"


@pytest.mark.parametrize(
    ("text", "busy", "asked", "ended"),
    [
        ("tell me something", {}, ["reserve"], None),
        (DENIED, {}, ["reserve", "refuse"], EndingCode.PROMPT_REFUSED),
        ("tell me something", {"queued_tokens": 10**6}, ["reserve", "refuse"], EndingCode.OVERLOADED),
    ],
)
async def test_only_who_will_be_refused_asks_again(
    world: World, text: str, busy: dict[str, Any], asked: list[str], ended: EndingCode | None
) -> None:
    world.beat(**busy)
    calls = world.store_calls()
    await world.pipeline.handle_request(world.record(world.request(text)))
    assert calls == asked
    assert [ending.code for ending in world.log.endings] == ([ended] if ended else [])


@pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "stage by stage"])
async def test_what_it_finds_before_it_is_told_where_it_is_routed_and_not_again(
    world: World, stages: Sequence[Stage]
) -> None:
    world.beat(queues={"standard": {"waiting": 4, "left": 9}, "batch": {"waiting": 50}}, counts_since_ms=7)
    record = world.record(world.request())
    await world.pipeline.handle_request(record, stages)
    await world.pipeline.handle_request(record, stages)
    (_, first), (_, again) = world.log.of(Opened, "local.generated")
    assert first.queued == QueueAhead(worker_id="worker-1", before=4, wait_ms=None, left=9, counts_since_ms=7)
    assert again.queued is None


async def test_a_tenant_beyond_its_limits_hears_that_and_not_the_phrase(world: World) -> None:
    limits = world.directory.all["acme"].limits
    await world.quota.reserve("acme", limits, "other", tokens=490, deadline_ms=world.now_ms + 60_000)
    await world.pipeline.handle_request(world.record(world.request(DENIED)))
    assert [ending.code for ending in world.log.endings] == [EndingCode.RATE_LIMITED_TOKENS]


async def test_requests_that_ask_together_share_the_workers() -> None:
    world = World(prefix_load_excess=0.0)
    world.beat()
    world.beat("worker-2", home_partitions=[6], lane_partitions={lane: [3] for lane in LANES})
    reserve, answer = world.quota.reserve, asyncio.Event()

    async def slow(*arguments: Any, **named: Any) -> object:
        await answer.wait()
        return await reserve(*arguments, **named)

    world.quota.reserve = slow  # type: ignore[assignment, method-assign]
    records = [world.record(world.request(response_id=IDS.mint(3), sampling=Sampling(max_tokens=1))) for _ in range(10)]
    handling = [asyncio.create_task(world.pipeline.handle_request(record)) for record in records]
    await asyncio.sleep(0)
    assert [load.routed_answers for load in world.workers.live("default", world.now_ms)] == [0, 0], "nothing is routed"
    answer.set()
    await asyncio.gather(*handling)
    assert [load.routed_answers for load in world.workers.live("default", world.now_ms)] == [5, 5]


async def test_nobody_is_refused_for_what_others_only_ask_for() -> None:
    """A tenant beyond its limits asks for as much as it likes, all at once, and is told that in a moment."""
    world = World(queue_bound=QueueBound(1_000, 10**4))
    world.beat()
    world.change(limits=Limits(tokens_per_minute=40))
    reserve, answer = world.quota.reserve, asyncio.Event()

    async def slow(tenant_id: str, *arguments: Any, **named: Any) -> object:
        if tenant_id == "acme":
            await answer.wait()
        return await reserve(tenant_id, *arguments, **named)

    world.quota.reserve = slow  # type: ignore[assignment, method-assign]
    flood = [world.record(world.request(response_id=IDS.mint(3), sampling=Sampling(max_tokens=35))) for _ in range(60)]
    handling = [asyncio.create_task(world.pipeline.handle_request(record)) for record in flood]
    await asyncio.sleep(0)
    other = world.request(tenant="gold", response_id=IDS.mint(4), service_tier="default")
    await world.pipeline.handle_request(world.record(other))
    assert not world.log.endings
    answer.set()
    await asyncio.gather(*handling)
    assert {ending.code for ending in world.log.endings} == {EndingCode.RATE_LIMITED_TOKENS}


@dataclass(frozen=True)
class Step:
    """A delivery of request `number`, whose log fails after so many records, after so much time and such events. The
    model of each second one has another, smaller one that may answer.
    """

    number: int
    writes: int | None
    passed_ms: int
    store_fails: int
    queued_tokens: int
    denies: bool
    waiting: int
    is_free: bool
    is_big_away: bool


STEPS = st.lists(
    st.builds(
        Step, st.integers(0, 7), st.sampled_from([None, None, 0, 1]), st.sampled_from([0, 0, 300, 5_000, 90_000]),
        st.sampled_from([0, 0, 1, 3]), st.sampled_from([0, 0, 0, 180, 10**6]), st.booleans(),
        st.sampled_from([0, 3]), st.booleans(), st.booleans(),
    ),
    max_size=25,
)  # fmt: skip


async def lived(stages: Sequence[Stage], steps: Sequence[Step], response_ids: Sequence[str]) -> World:
    world = World(queue_bound=QueueBound(250, 10**4))
    limits = Limits(requests_per_minute=6, tokens_per_minute=100, concurrent_responses=3, max_output_tokens=50)
    requests: dict[int, LogRecord] = {}
    for step in steps:
        world.now_ms += step.passed_ms
        world.quota.now_ms = world.now_ms
        policy = SafetyPolicy(prompt_deny=["open the vault"] if step.denies else [])
        world.change(limits=limits, policy=policy, tier="free" if step.is_free else "paid")
        if not step.is_big_away:
            world.beat("worker-3", pool="other", model="big", home_partitions=[7], queued_tokens=step.queued_tokens)
        for worker, partition in (("worker-1", 2), ("worker-2", 3)):
            lanes = {lane: [partition] for lane in LANES}
            queued = step.queued_tokens if worker == "worker-1" else 0
            world.beat(
                worker, queued_tokens=queued, lane_partitions=lanes, home_partitions=[partition + 3],
                queues={lane: {"waiting": step.waiting} for lane in LANES},
            )  # fmt: skip
        world.quota.failures = step.store_fails
        world.log.fail_after = None if step.writes is None else len(world.log.records) + step.writes
        if step.number not in requests:
            text = DENIED if step.number % 3 == 2 else "tell me"
            request = world.request(
                text, model="big" if step.number % 2 else "tiny", response_id=response_ids[step.number],
                sampling=Sampling(max_tokens=10 + step.number),
                accepted_at_ms=world.now_ms, deadline_ms=world.now_ms + 60_000,
            )  # fmt: skip
            requests[step.number] = world.record(request)
        with suppress(PublishFailed):
            await world.pipeline.handle_request(requests[step.number], stages)
    return world


def written(world: World, *, verdicts: bool) -> list[tuple[str, int, bytes | None]]:
    return [
        (record.topic, record.partition, record.value)
        for record in world.log.records
        if (record.topic == world.topics.verdicts.name) == verdicts
    ]


@settings(max_examples=120)
@given(steps=STEPS)
def test_whatever_comes_and_comes_again_ends_as_it_does_stage_by_stage(steps: list[Step]) -> None:
    response_ids = [IDS.mint(3) for _ in range(8)]
    fused = asyncio.run(lived(FUSED, steps, response_ids))
    apart = asyncio.run(lived(STAGES, steps, response_ids))
    assert written(fused, verdicts=False) == written(apart, verdicts=False)
    assert {*written(fused, verdicts=True)} >= {*written(apart, verdicts=True)}
    assert fused.quota.tenants == apart.quota.tenants
    assert fused.workers.live("default", fused.now_ms) == apart.workers.live("default", apart.now_ms)
