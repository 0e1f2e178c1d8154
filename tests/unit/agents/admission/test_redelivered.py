"""A request that was admitted stays so, whatever has changed when it is delivered again."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from agents.admission.stages import STAGES
from schemas.endings import EndingCode
from schemas.generated import Ending, Opened
from schemas.request import AdmittedRequest, Sampling
from streams.directory import Model
from tests.unit.agents.admission.world import NOW, World

LANE = "local.inference.default.standard"


def lowers_the_limit(world: World) -> None:
    world.limit(max_output_tokens=9)


def takes_the_model_away(world: World) -> None:
    world.change(models=["elsewhere"])


def shortens_the_context(world: World) -> None:
    world.catalog._models = (Model(name="tiny", aliases=["default"], path="unused", pool="default", context_window=16),)


def brings_an_engine_without_seeds(world: World) -> None:
    world.beat(accepts_seed=False)


CHANGES = [lowers_the_limit, takes_the_model_away, shortens_the_context, brings_an_engine_without_seeds]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2])
@pytest.mark.parametrize("choices", [1, 2])
async def test_what_was_admitted_is_admitted_again(
    world: World, change: Callable[[World], None], writes_before_the_crash: int, choices: int
) -> None:
    world.beat(accepts_seed=True)
    request = world.request(sampling=Sampling(max_tokens=12, seed=1), choices=choices)
    record = world.record(request)
    await world.crash_after(record, writes=writes_before_the_crash)
    change(world)
    await world.pipeline.handle_request(record)
    assert not world.log.endings
    opened, work = world.log.of(Opened, "local.generated"), world.log.of(AdmittedRequest, LANE)
    assert {place.partition for place, _ in opened} == {5}
    assert {place.partition for place, _ in work} == {2}
    assert {(each.max_tokens, each.choices, each.reserved_tokens) for _, each in opened} == {
        (12, choices, 5 + 12 * choices)
    }
    assert {(each.max_tokens, each.choices) for _, each in work} == {(12, choices)}
    assert world.quota.tenants["acme"].tokens == 500 - 5 - 12 * choices


async def test_so_it_is_where_the_stages_are_split(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record)
    lowers_the_limit(world)
    await world.pipeline.handle_request(record, STAGES[:1])
    waiting = world.log.records[-1]
    assert waiting.topic == "local.admission.validated"
    await world.pipeline.handle_admission(waiting, STAGES[1:])
    assert not world.log.endings
    assert len(world.log.of(AdmittedRequest, LANE)) == 2


@pytest.mark.parametrize("taken", ["tenant", "model"])
async def test_whom_or_what_nobody_knows_any_more_is_ended_beside_its_opened(world: World, taken: str) -> None:
    record = world.record(world.request())
    await world.crash_after(record, writes=1)
    if taken == "tenant":
        del world.directory.all["acme"]
    else:
        world.catalog._models = ()
    await world.pipeline.handle_request(record)
    assert {place.partition for place, _ in world.log.of(Ending, "local.generated")} == {5}


async def test_what_was_reserved_and_not_routed_is_refused_and_returned(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record, STAGES[:2])
    lowers_the_limit(world)
    await world.pipeline.handle_request(record)
    assert [ending.code for ending in world.log.endings] == [EndingCode.INVALID_REQUEST]
    assert world.quota.tenants["acme"].tokens == 500
    [reserved] = [each for each in world.log.records if each.topic == "local.admission.reserved"]
    await world.pipeline.handle_admission(reserved, STAGES[2:])
    assert not world.log.of(Opened, "local.generated"), "the first delivery meets the refusal"
    assert len({ending.code for ending in world.log.endings}) == 1


async def test_what_has_ended_is_not_said_again(world: World) -> None:
    record = world.record(world.request())
    await world.pipeline.handle_request(record)
    limits = world.directory.all["acme"].limits
    await world.quota.settle("acme", limits, world.request().response_id, 0, 12)
    lowers_the_limit(world)
    written = len(world.log.records)
    await world.pipeline.handle_request(record)
    assert len(world.log.records) == written


@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2])
async def test_what_a_gateway_writes_again_later_under_the_same_id_is_the_same_request(
    world: World, writes_before_the_crash: int
) -> None:
    """Its client came back with its idempotency key, and nothing was known of the response."""
    await world.crash_after(world.record(world.request()), writes=writes_before_the_crash)
    later_ms = NOW + 20_000
    world.now_ms = world.quota.now_ms = later_ms
    again = world.record(world.request(accepted_at_ms=later_ms, deadline_ms=later_ms + 60_000))
    await world.pipeline.handle_request(replace(again, timestamp_ms=later_ms))
    assert not world.log.endings
    assert {place.partition for place, _ in world.log.of(Opened, "local.generated")} == {5}
    assert {place.partition for place, _ in world.log.of(AdmittedRequest, LANE)} == {2}
