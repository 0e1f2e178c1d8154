"""A worker that was overtaken while it was stopped learns so from `control`, be it late."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpu_consumers.core.claims import AskClaim, ClaimTable
from schemas.endings import EndingCode
from schemas.generated import Fence
from schemas.request import LANES
from tests.unit.gpu_consumers.fleet import LEASE_MS, SCOPE, TOPICS, Fleet, check


@contextmanager
def partition_elsewhere(fleet: Fleet) -> Iterator[None]:
    """Meanwhile the lanes' partition 1 is not `a`'s. Whoever has it does nothing."""
    heir = fleet.region.log.consumer("workers.pool", "heir")
    heir.subscribe([TOPICS.lane("pool", lane).name for lane in LANES])
    fleet.run(20)
    yield
    heir.close()


def overtake(fleet: Fleet, response_id: str, *, with_claim: bool = True) -> None:
    """`b` takes over what `a` runs, whose lease has run out, and is killed when its fence is written."""
    region = fleet.region
    if with_claim:
        region.claims.resign(fleet.workers["a"].incarnation)
        claim = region.claims.claim("b/1", AskClaim(response_id, "att_b", "take"), region.now_ms)
        assert claim.state == "expired"
        region.claims.resign("b/1")
    fence = Fence(response_id=response_id, scope=SCOPE, attempt_id="att_b1", worker_id="b", kind="takeover")
    partition = region.requests[response_id].generated_partition
    region.log.append(TOPICS.generated.name, fence.encode(), partition=partition)


def begun(fleet: Fleet, *, max_tokens: int) -> str:
    response_id = fleet.region.request(max_tokens=max_tokens, partition=1)
    fleet.run_until_told(response_id, 3)
    return response_id


def test_an_overtaken_worker_that_is_told_stops_and_leaves_the_response_to_its_new_worker() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=600)
    fleet.run(20)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    fleet.start("b")
    fleet.run(LEASE_MS + 2_000)
    fences = fleet.region.fences()
    assert {(fence.worker_id, fence.kind) for fence in fences[1:]} == {("b", "takeover")}
    fleet.workers["a"] = zombie
    fleet.run(200)
    assert zombie.aborted
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert fleet.region.fences() == fences


@pytest.mark.parametrize("claims_up", [True, False])
def test_an_end_that_came_behind_anothers_fence_is_not_believed(claims_up: bool) -> None:
    """Its worker heard of the fence only after its last token was acknowledged, and gets the record back."""
    fleet = Fleet("a")
    region = fleet.region
    response_id = begun(fleet, max_tokens=20)
    with partition_elsewhere(fleet):
        region.voids_are_late, region.claims_up = True, claims_up
        overtake(fleet, response_id)
        fleet.run(1_000)
        assert not fleet.workers["a"].core.unfinished_attempts, "all is said and acknowledged"
        region.claims_up = True
        region.say_voids()
        fleet.run(40)
    fleet.settle()
    check(region)
    assert region.terminal(response_id) is EndingCode.COMPLETED


@pytest.mark.parametrize("drains", ["never", "before it is told", "while it asks whose the response is"])
def test_an_end_that_was_believed_when_its_record_came_back_is_made_up_for(drains: str) -> None:
    fleet = Fleet("a")
    region, [worker] = fleet.region, fleet.all
    response_id = begun(fleet, max_tokens=20)
    with partition_elsewhere(fleet):
        region.voids_are_late = region.claims_lost = True
        overtake(fleet, response_id)
        fleet.run(1_000)
    fleet.run(2_000)
    assert region.terminal(response_id) is None, "and a commit has passed its record"
    if drains == "before it is told":
        worker.core.drain()
    region.say_voids()
    fleet.run(40)
    if drains == "while it asks whose the response is":
        worker.core.drain()
    assert worker.core.unfinished_attempts == 1
    fleet.settle()
    check(region)
    assert region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    assert worker.core.unfinished_attempts == 0


def test_what_another_has_overtaken_is_free_at_once_when_its_worker_is_told() -> None:
    """`b` could not reach the claims: `a` has its own still."""
    fleet = Fleet("a")
    region = fleet.region
    response_id = begun(fleet, max_tokens=600)
    with partition_elsewhere(fleet):
        overtake(fleet, response_id, with_claim=False)
        fleet.run(100)
        assert fleet.workers["a"].aborted
        assert region.claims.claim("c/1", AskClaim(response_id, "att_c"), region.now_ms).state == "expired"


@pytest.mark.parametrize("remembers", [True, False])
def test_an_end_behind_anothers_fence_is_not_believed_whether_or_not_the_store_remembers(remembers: bool) -> None:
    """Who was overtaken gets no claim back. Where the store has lost its memory its claim is as good as new, whoever
    has fenced meanwhile.
    """
    fleet = Fleet("a")
    region = fleet.region
    response_id = begun(fleet, max_tokens=60)
    with partition_elsewhere(fleet):
        region.voids_are_late, region.claims_lost = True, not remembers
        overtake(fleet, response_id)
        if not remembers:
            region.claims = ClaimTable(LEASE_MS)
        fleet.run(3_000)
        assert not fleet.workers["a"].core.unfinished_attempts, "all is said and acknowledged"
        fleet.crash("a")
        fleet.start("c")
    fleet.settle()
    check(region)
    assert region.terminal(response_id) is EndingCode.COMPLETED


def test_what_is_about_to_be_asked_for_again_is_free_meanwhile() -> None:
    """Its worker may lose the partition before it asks, and holds no claim then for which others would wait."""
    fleet = Fleet("a")
    region = fleet.region
    response_id = begun(fleet, max_tokens=600)
    region.voids_are_late = region.claims_lost = True
    overtake(fleet, response_id)
    region.claims = ClaimTable(LEASE_MS)
    fleet.run(1_500)
    region.say_voids()
    fleet.run(40)
    assert fleet.workers["a"].aborted
    assert region.claims.claim("c/1", AskClaim(response_id, "att_c"), region.now_ms).state == "expired"
