"""A worker that was overtaken while it was stopped learns so from `control`."""

from schemas.control import AttemptVoid
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Fence
from tests.unit.gpu_consumers.fleet import LEASE_MS, SCOPE, TOPICS, Fleet, check


def test_an_overtaken_worker_that_is_told_stops_and_leaves_the_response_to_its_new_worker() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=600)
    fleet.run(20)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    fleet.start("b")
    fleet.run(LEASE_MS + 2_000)
    fences = fleet.region.records(TOPICS.generated.name, Fence, GENERATED)
    assert [(fence.worker_id, fence.kind) for fence in fences][1:] == [(fences[-1].worker_id, "takeover")]
    fleet.region.control(
        AttemptVoid(
            response_id=response_id, scope=SCOPE, attempt_id=fences[0].attempt_id, worker_id=fences[0].worker_id,
            why="superseded",
        )
    )  # fmt: skip
    fleet.workers["a"] = zombie
    fleet.run(200)
    assert zombie.aborted
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert fleet.region.records(TOPICS.generated.name, Fence, GENERATED) == fences
