"""Whose lease is waited for no longer: a worker has left, and what it had begun goes on at once."""

import pytest

from gpu_consumers.core.asking import Asking
from gpu_consumers.core.claims import Claim
from gpu_consumers.core.waits import Waits
from gpu_consumers.core.work import Phase
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Fence
from tests.unit.gpu_consumers.fleet import LEASE_MS, NOW_MS, TOPICS, Fleet, check

AT_ONCE_MS = 200


def two_workers() -> tuple[Fleet, str]:
    """A long answer of `a`, of which `b` has read the record."""
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=400)
    fleet.run_until_told(begun, 20)
    fleet.start("b")
    return fleet, begun


def takeovers(fleet: Fleet) -> int:
    return sum(fence.kind == "takeover" for fence in fleet.region.records(TOPICS.generated.name, Fence, GENERATED))


def test_what_a_worker_hands_over_goes_on_at_once_where_it_was_asked_for_already() -> None:
    fleet, begun = two_workers()
    leaving = fleet.workers["a"]
    leaving.drain()
    fleet.run(300)  # `b` has its partitions by now, and waits
    fleet.workers.pop("a")
    leaving.core.hand_over(fleet.region.now_ms)
    leaving._run_effects()
    leaving.producer.flush(1)
    told = len(fleet.region.tokens[begun])
    fleet.run(AT_ONCE_MS)
    assert len(fleet.region.tokens[begun]) == told, "nobody has said yet that `a` is gone"
    fleet.workers["b"].core.buried("a", fleet.region.now_ms)
    fleet.run(AT_ONCE_MS)
    assert len(fleet.region.tokens[begun]) > told
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


@pytest.mark.parametrize("who", ["a", "another"])
def test_a_worker_that_is_taken_for_gone_keeps_what_it_has_while_its_lease_runs(who: str) -> None:
    fleet, begun = two_workers()
    fleet.workers["a"].drain()
    for _ in range(10):
        fleet.run(100)
        fleet.workers["b"].core.buried(who, fleet.region.now_ms)
    assert not takeovers(fleet)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


def test_a_frozen_worker_that_was_taken_for_gone_is_heard_by_nobody() -> None:
    """Its lease ends, `b` goes on, and then it comes back and says more."""
    fleet, begun = two_workers()
    zombie = fleet.workers["a"]
    zombie.drain()
    fleet.run(300)
    fleet.workers.pop("a")
    fleet.workers["b"].core.buried("a", fleet.region.now_ms)
    fleet.run(AT_ONCE_MS)
    assert not takeovers(fleet), "it may live"
    fleet.run(LEASE_MS)
    assert takeovers(fleet) == 1
    fleet.workers["a"] = zombie
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


def test_what_waits_for_a_lease_is_asked_for_when_it_ends_though_its_partition_has_gone() -> None:
    """`a` is dead; `c` joins just then, and has not read by the time at which the lease ends."""
    fleet, begun = two_workers()
    fleet.crash("a")
    fleet.run(300)
    heir = fleet.workers["b"]
    heir.core.revoked(heir.lanes.assignment())
    told = len(fleet.region.tokens[begun])
    fleet.run(LEASE_MS)
    assert len(fleet.region.tokens[begun]) > told


def test_who_loses_the_partition_and_finds_another_alive_forgets_what_it_waited_for() -> None:
    fleet, begun = two_workers()
    fleet.workers["a"].drain()
    fleet.run(300)
    heir = fleet.workers["b"]
    assert begun in heir.core._works.by_response
    heir.core.revoked(heir.lanes.assignment())
    fleet.run(LEASE_MS + 100)
    assert begun not in heir.core._works.by_response
    assert not takeovers(fleet)


@pytest.mark.parametrize(("is_asked_since", "waits_ms"), [(False, 0), (True, 3_000)])
def test_an_answer_may_be_older_than_the_news_that_its_worker_has_left(is_asked_since: bool, waits_ms: int) -> None:
    fleet, begun = two_workers()
    works = fleet.workers["a"].core._works
    work = works.by_response[begun]
    Waits(works).worker_left(NOW_MS)
    if is_asked_since:
        Asking().ask(work, "att", "begin", NOW_MS)
    assert Waits.until_ms(work, Claim("leased", "att", 3_000), NOW_MS) == NOW_MS + waits_ms


def test_who_only_tries_again_later_is_not_hurried_by_a_worker_that_left() -> None:
    fleet, begun = two_workers()
    works = fleet.workers["a"].core._works
    work, waits = works.by_response[begun], Waits(works)
    works.set_phase(work, Phase.WAITING)
    waits.add(work, NOW_MS + 1_000)
    waits.worker_left(NOW_MS)
    assert [*waits.take_due(NOW_MS + 999)] == []
    assert [*waits.take_due(NOW_MS + 1_000)] == [work]


def test_who_waits_while_two_workers_leave_has_one_turn() -> None:
    fleet, begun = two_workers()
    works = fleet.workers["a"].core._works
    work, waits = works.by_response[begun], Waits(works)
    works.set_phase(work, Phase.WAITING)
    waits.add(work, NOW_MS + 1_000, behind_lease=True)
    waits.worker_left(NOW_MS)
    waits.worker_left(NOW_MS)
    turns = 0
    for due in waits.take_due(NOW_MS):
        works.set_phase(due, Phase.QUEUED)
        turns += 1
    assert turns == 1
