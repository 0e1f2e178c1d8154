"""Workers whose engines fail request after request are sent nothing, and then one request at a time."""

from collections.abc import Sequence

import pytest

from agents.admission.routing import PICKUP_MS, WorkersView
from agents.admission.stages import FUSED, STAGES, Stage, room
from agents.admission.validation import validation
from agents.quota.port import NotYet
from schemas.admission import Admission
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import Opened
from schemas.request import AdmittedRequest
from tests.unit.agents.admission.world import IDS, World

PLACEMENTS = pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "stage by stage"])
OPEN_MS = 3_000


def fails(world: World, worker_id: str = "worker-1", **fields: object) -> None:
    """Said now: for `OPEN_MS` it is sent nothing."""
    said = {"until_ms": world.now_ms + OPEN_MS, "failed": 10, "attempts": 20}
    world.beat(worker_id, **{"failing": said, "lease_ms": 60_000, **fields})


async def asked(world: World, stages: Sequence[Stage] = FUSED, number: int = 0, model: str = "default") -> None:
    request = world.request(f"tell me {number}", response_id=IDS.mint(3), model=model)
    await world.pipeline.handle_request(world.record(request), stages)


def outcomes(world: World) -> tuple[int, list[EndingCode]]:
    return len(world.log.of(Opened, "local.generated")), [ending.code for ending in world.log.endings]


@PLACEMENTS
async def test_where_all_engines_fail_who_comes_is_refused_at_once(world: World, stages: Sequence[Stage]) -> None:
    fails(world)
    fails(world, "worker-2", home_partitions=[6])
    await asked(world, stages)
    assert outcomes(world) == (0, [EndingCode.UNAVAILABLE])
    [ending] = world.log.endings
    assert ending.message == "rejected-unavailable: the engines of this model fail; nothing was generated."
    assert ending.retry_after_ms is not None
    assert OPEN_MS <= ending.retry_after_ms <= 2 * OPEN_MS


@PLACEMENTS
async def test_one_that_works_has_all_however_busy_it_is(world: World, stages: Sequence[Stage]) -> None:
    fails(world, max_running=64)
    world.beat("worker-2", home_partitions=[6], running=60, max_running=64, queued_tokens=500, lease_ms=60_000)
    for number in range(8):
        await asked(world, stages, number)
    assert outcomes(world) == (8, [])
    work = [record for _, record in world.log.of(AdmittedRequest, "local.inference.default.standard")]
    assert [record.generated_partition for record in work] == [6] * 8


@PLACEMENTS
async def test_once_its_time_is_over_one_tries_and_all_go_there_when_it_works(
    world: World, stages: Sequence[Stage]
) -> None:
    fails(world)
    world.now_ms += OPEN_MS
    for number in range(3):
        await asked(world, stages, number)
    assert outcomes(world) == (1, [EndingCode.UNAVAILABLE] * 2)
    world.now_ms += PICKUP_MS + 1
    world.beat(lease_ms=60_000)
    for number in range(3, 6):
        await asked(world, stages, number)
    assert outcomes(world)[0] == 4


@PLACEMENTS
async def test_a_smaller_model_answers_for_one_whose_engines_fail(world: World, stages: Sequence[Stage]) -> None:
    world.change(fallback=True)
    world.beat()
    fails(world, "worker-2", pool="other", model="big", home_partitions=[6])
    await asked(world, stages, model="best")
    [(_, record)] = world.log.of(Opened, "local.generated")
    assert record.fallback == Fallback(asked="big", reason="no_worker"), "as releases before can read it"


async def test_a_job_waits_until_they_work(world: World) -> None:
    fails(world)
    admission = await validation(world.request(), world.services)
    assert isinstance(admission, Admission)
    assert isinstance(await room(admission, world.services), NotYet)
    world.beat()
    assert await room(admission, world.services) == admission


def test_one_that_has_something_to_try_with_is_sent_nothing_more(world: World) -> None:
    view = WorkersView()
    world.workers = view
    until_ms = world.now_ms
    for waiting, out in ((1, True), (0, False)):
        world.now_ms += 1
        world.beat(failing={"until_ms": until_ms, "failed": 1, "attempts": 1}, waiting=waiting)
        [load] = view.live("default", world.now_ms)
        assert bool(load.out_for_ms) is out
