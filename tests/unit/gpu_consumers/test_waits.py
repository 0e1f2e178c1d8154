"""Whose lease is waited for no longer: a worker has left, and what it had begun goes on at once."""

from typing import Any

import pytest

from gpu_consumers.core.asking import Asking
from gpu_consumers.core.waits import Waits
from gpu_consumers.core.work import Phase, Work
from gpu_consumers.engines.port import EngineStats
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Fence
from tests.unit.gpu_consumers.fleet import LEASE_MS, NOW_MS, TOPICS, Fleet, Worker, check

AT_ONCE_MS = 200


def two_workers() -> tuple[Fleet, str]:
    """A long answer of `a`, of which `b` has read the record."""
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=400)
    fleet.run_until_told(begun, 20)
    fleet.start("b")
    return fleet, begun


def leaves(hearer: Worker, who: str, pool: str = "pool") -> None:
    """Another worker has been there, and is no more, as `hearer` is told."""
    now_ms = hearer.region.now_ms
    state = hearer.core.state("ready", EngineStats(), 0.0, True, now_ms)
    hearer.core.heard(state.model_copy(update={"worker_id": who, "pool": pool}))
    hearer.core.buried(who, now_ms)


def reads_no_more(fleet: Fleet, name: str, heir: str) -> Worker:
    """Its partitions go to another, which has not read them yet."""
    worker = fleet.workers[name]
    worker.is_draining = True
    worker.lanes.close()
    started = fleet.start(heir)
    started.stopped_until_ms = fleet.region.now_ms + 2 * LEASE_MS
    return worker


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
    leaves(fleet.workers["b"], "a")
    fleet.run(AT_ONCE_MS)
    assert len(fleet.region.tokens[begun]) > told
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


@pytest.mark.parametrize("who", ["a", "another"])
def test_a_worker_that_is_taken_for_gone_keeps_what_it_has_while_its_lease_runs(who: str) -> None:
    fleet, begun = two_workers()
    fleet.workers["a"].drain()
    heir = fleet.workers["b"]
    for _ in range(10):
        fleet.run(100)
        leaves(heir, who)
    assert heir.claims_asked >= 10, "it has asked each time"
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
    leaves(fleet.workers["b"], "a")
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


@pytest.mark.parametrize("lacks", ["a slot", "an engine"])
def test_who_lost_the_partition_and_cannot_go_on_when_the_lease_ends_leaves_it_to_the_reader(lacks: str) -> None:
    """`b` has its one slot taken for long, or no engine; `c` is idle, and reads just behind the lease's end."""
    fleet = Fleet("a", max_running=1)
    begun = fleet.region.request(max_tokens=400)
    fleet.run_until_told(begun, 20)
    busy = fleet.start("b")
    fleet.workers["a"].drain()
    fleet.run(300)
    if lacks == "a slot":
        fleet.region.request(max_tokens=1_000, partition=1)
    else:
        busy.engine_starts, busy.kill_engine = False, True
    fleet.run(300)
    fleet.crash("a")
    fleet.run(LEASE_MS - 500)
    reads_no_more(fleet, "b", "c").core.tick(fleet.region.now_ms)
    heir, told = fleet.workers["c"], len(fleet.region.tokens[begun])
    heir.stopped_until_ms = fleet.region.now_ms + 800
    fleet.run(1_000)
    assert heir.submitted
    assert [each.worker_id for each in fleet.region.fences() if each.response_id == begun] == ["a", "c"]
    assert len(fleet.region.tokens[begun]) > told
    busy.engine_starts = True
    fleet.settle()
    check(fleet.region)


def test_what_was_asked_for_early_is_asked_for_when_its_lease_ends_though_its_partition_has_gone_meanwhile() -> None:
    """`c`, of which nothing was, leaves; and `d` has the partition by the time at which the answer comes."""
    fleet, begun = two_workers()
    fleet.workers["a"].drain()
    fleet.run(300)
    heir = fleet.workers["b"]
    fleet.crash("a")
    heir.claims_are_late = True
    leaves(heir, "c")
    fleet.run(20)
    assert heir.claims_on_their_way
    reads_no_more(fleet, "b", "d")
    heir.claims_are_late = False
    told = len(fleet.region.tokens[begun])
    fleet.run(LEASE_MS + AT_ONCE_MS)
    assert len(fleet.region.tokens[begun]) > told
    fleet.settle()
    check(fleet.region)


def test_who_has_no_slot_when_somebody_leaves_asks_when_the_lease_ends() -> None:
    fleet = Fleet("a", max_running=1)
    begun = fleet.region.request(max_tokens=400)
    fleet.run_until_told(begun, 20)
    heir = fleet.start("b")
    fleet.crash("a")
    fleet.run(300)
    short = fleet.region.request(max_tokens=50, partition=1)
    fleet.run(300)
    reads_no_more(fleet, "b", "d")
    asked = heir.claims_asked
    leaves(heir, "c")
    fleet.run(300)
    assert fleet.region.terminal(short) is None
    assert heir.claims_asked == asked
    told = len(fleet.region.tokens[begun])
    fleet.run(LEASE_MS)
    assert len(fleet.region.tokens[begun]) > told
    fleet.settle()
    check(fleet.region)


def test_what_is_not_continued_is_not_ended_by_a_worker_that_leaves_while_the_store_has_lost_its_memory() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=400, continuation=False)
    fleet.run_until_told(begun, 20)
    fleet.start("b")
    fleet.workers["a"].drain()
    fleet.run(300)
    fleet.region.claims_lost = True
    fleet.region.claims._held.clear()
    fleet.region.claims._leases.clear()
    fleet.workers["a"].stopped_until_ms = fleet.region.now_ms + 200  # and tells its claims then
    leaves(fleet.workers["b"], "c")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


@pytest.mark.parametrize("who", ["never heard of", "of another pool"])
def test_a_worker_of_whom_nothing_can_be_waited_for_hurries_nobody(who: str) -> None:
    fleet, _ = two_workers()
    fleet.workers["a"].drain()
    fleet.run(300)
    heir = fleet.workers["b"]
    asked = heir.claims_asked
    if who == "of another pool":
        leaves(heir, "c", "other")
    else:
        heir.core.buried("c", fleet.region.now_ms)
    fleet.run(100)
    assert heir.claims_asked == asked


def test_whoever_leaves_together_is_looked_for_once_and_among_what_waits_alone() -> None:
    class Counted(dict[str, Work]):
        looks = 0

        def get(self, key: str, default: Any = None) -> Any:
            self.looks += 1
            return super().get(key, default)

        def values(self) -> Any:
            raise AssertionError("all of it is looked at")

    fleet = Fleet("a")
    begun, *_ = [fleet.region.request(max_tokens=400) for _ in range(40)]
    fleet.run(40)
    works = fleet.workers["a"].core._works
    works.by_response = held = Counted(works.by_response)
    waits = Waits(works)
    works.set_phase(works.by_response[begun], Phase.WAITING)
    waits.add(works.by_response[begun], NOW_MS + 3_000, behind_lease=True)
    for _ in range(20):
        waits.worker_left(NOW_MS)
    assert [each.response_id for each in waits.take_due(NOW_MS)] == [begun]
    assert held.looks == 2, "to hurry it, and as it is due"


@pytest.mark.parametrize("is_asked_since", [False, True])
def test_an_answer_may_be_older_than_the_news_that_its_worker_has_left(is_asked_since: bool) -> None:
    fleet, begun = two_workers()
    works = fleet.workers["a"].core._works
    work, waits = works.by_response[begun], Waits(works)
    Asking().ask(work, "att", "begin", NOW_MS)
    waits.worker_left(NOW_MS + 1)
    if is_asked_since:
        Asking().ask(work, "att", "begin", NOW_MS + 2)
    works.set_phase(work, Phase.WAITING)
    assert [*waits.take_due(NOW_MS + 2)] == []
    waits.add(work, NOW_MS + 3_000, behind_lease=True)
    assert [*waits.take_due(NOW_MS + 2)] == ([] if is_asked_since else [work])


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
