"""Turns of a conversation come to the worker that has what was said before, through the stages and onto the log."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from agents.admission.stages import FUSED, STAGES, Stage
from schemas.request import LANES, AdmittedRequest, Lane, Message, Sampling, TextPart
from streams.directory import Limits
from tests.unit.agents.admission.world import IDS, World

FEW = Sampling(max_tokens=5)


def said(role: str, text: str) -> Message:
    return Message.model_validate({"role": role, "content": [TextPart(text=text)]})


def three_workers(world: World, **fields: object) -> None:
    for number in range(3):
        partitions = {lane: [number] for lane in LANES}
        world.beat(
            f"worker-{number}", home_partitions=[number], lane_partitions=partitions, max_running=256, **fields
        )  # fmt: skip


async def sent(world: World, stages: Sequence[Stage], tenant: str = "gold", **fields: Any) -> None:
    values: dict[str, Any] = {"sampling": FEW, "service_tier": "default", "response_id": IDS.mint(3)}
    await world.pipeline.handle_request(world.record(world.request(tenant=tenant, **(values | fields))), stages)


def admitted(world: World) -> list[tuple[int, str]]:
    """Of each piece of work: which worker's partition it stands in, and the cache id that it carries."""
    lane = world.topics.lane("default", Lane.STANDARD).name
    return [(record.partition, work.cache_id) for record, work in world.log.of(AdmittedRequest, lane)]


@pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "stage by stage"])
async def test_each_turn_goes_where_the_last_one_went_and_carries_its_tenants_id(
    world: World, stages: Sequence[Stage]
) -> None:
    three_workers(world)
    world.limit(tokens_per_minute=10**6)
    for turns in range(3):
        for number in range(8):
            begun = [said("system", "be brief"), said("user", f"question {number}")]
            later = [said(role, f"{role} {turn}") for turn in range(turns) for role in ("assistant", "user")]
            for tenant in ("acme", "gold"):
                await sent(world, stages, tenant, messages=[*begun, *later])
    found: defaultdict[str, list[int]] = defaultdict(list)
    for partition, cache_id in admitted(world):
        found[cache_id].append(partition)
    assert len(found) == 16, "two tenants that say the same have nothing in common"
    assert all(len(partitions) == 3 and len({*partitions}) == 1 for partitions in found.values()), found
    assert {partitions[0] for partitions in found.values()} == {0, 1, 2}


async def test_what_a_client_gives_one_key_goes_to_one_worker(world: World) -> None:
    three_workers(world)
    world.change("gold", limits=Limits(tokens_per_minute=10**6))
    for number in range(6):
        await sent(world, FUSED, messages=[said("user", f"{number} of a document")], cache_key="its name")
    assert len({*admitted(world)}) == 1


async def test_none_is_preferred_where_the_operator_asks_for_the_least_loaded() -> None:
    world = World(prefix_load_excess=0.0)
    three_workers(world)
    world.change("gold", limits=Limits(tokens_per_minute=10**6))
    for _ in range(6):
        await sent(world, FUSED)
    assert sorted(partition for partition, _ in admitted(world)) == [0, 0, 1, 1, 2, 2]


async def test_a_conversation_moves_on_when_its_worker_is_gone_and_comes_back_with_it(world: World) -> None:
    world.change("gold", limits=Limits(tokens_per_minute=10**6))
    three_workers(world)
    await sent(world, FUSED)
    [(home, _)] = admitted(world)
    world.beat(f"worker-{home}", state="draining")
    await sent(world, FUSED)
    three_workers(world)
    await sent(world, FUSED)
    partitions = [partition for partition, _ in admitted(world)]
    assert partitions[0] == partitions[2] == home != partitions[1]
