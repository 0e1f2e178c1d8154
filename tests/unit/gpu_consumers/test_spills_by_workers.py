"""A worker that falls behind gives what it has not begun to who would begin it sooner, whatever fails meanwhile."""

from dataclasses import replace

import pytest

from gpu_consumers.core.spilling import MAX_SPILLS
from schemas.endings import EndingCode
from schemas.generated import Fence
from schemas.request import AdmittedRequest, Lane
from schemas.worker import WorkerState
from streams.log.port import TopicPartition
from tests.unit.gpu_consumers.fleet import CONFIG, LEASE_MS, TOPICS, CopyFault, Fleet, check

SLOW = 8
"""Times slower than the other."""
BACKLOG = 30
LANE = TOPICS.lane("pool", Lane.STANDARD).name


def fleet_with_a_slow_worker(backlog: int = BACKLOG, *, spills_per_s: int = 64, spills: int = 0) -> Fleet:
    """`slow` reads one of the partitions, in which the backlog stands; `swift` has nothing to do."""
    fleet = Fleet("slow", "swift", max_running=2, config=replace(CONFIG, spills_per_s=spills_per_s))
    fleet.run(200)
    [partition] = fleet.workers["slow"].core._lanes.owned()[Lane.STANDARD]
    fleet.workers["slow"].slower = SLOW
    for _ in range(backlog):
        fleet.region.request(partition=partition, spills=spills)
    return fleet


def records(fleet: Fleet) -> list[AdmittedRequest]:
    return [
        AdmittedRequest.model_validate_json(record.value or b"")
        for partition in range(TOPICS.counts.lane)
        for record in fleet.region.log.records(LANE, partition)
    ]


def fences(fleet: Fleet) -> list[Fence]:
    return fleet.region.fences()


def run_until_given(fleet: Fleet, copies: int = 1) -> None:
    while len(fleet.all[0].copies) < copies:
        fleet.run(100)
        assert fleet.region.open_responses(), "all has ended, and nothing was given away"


def is_all_committed(fleet: Fleet) -> bool:
    """Whether nobody would read anything of the lane again."""
    places = [TopicPartition(LANE, number) for number in range(TOPICS.counts.lane)]
    commits = fleet.all[-1].lanes.committed(places)
    return all((commits[each].offset or 0) == len(fleet.region.log.records(LANE, each.partition)) for each in places)


def took_ms(fleet: Fleet) -> int:
    began_ms = fleet.region.now_ms
    fleet.settle()
    return fleet.region.now_ms - began_ms


def test_what_a_slow_worker_has_not_begun_is_answered_by_another() -> None:
    fleet, alone = fleet_with_a_slow_worker(), fleet_with_a_slow_worker(spills_per_s=0)
    assert took_ms(fleet) * 3 < took_ms(alone)
    check(fleet.region)
    check(alone.region)
    slow, swift = fleet.all
    assert len(slow.copies) == len(set(slow.copies)) >= BACKLOG // 2
    assert not alone.all[0].copies
    assert len(slow.submitted) + len(swift.submitted) == BACKLOG == len(fences(fleet)), "nothing is begun twice"
    assert {record.spills for record in records(fleet)} == {0, 1}


def test_a_copy_says_what_the_record_said_but_for_where_it_has_been() -> None:
    fleet = fleet_with_a_slow_worker()
    run_until_given(fleet)
    fleet.settle()
    for copy in (record for record in records(fleet) if record.spills):
        assert set(copy.stage_ms) == {"spilled"}
        assert copy.model_copy(update={"spills": 0, "stage_ms": {}}) == fleet.region.requests[copy.response_id]
    given = [fence for fence in fences(fleet) if fence.response_id in fleet.all[0].copies]
    assert all(fence.stage_ms["spilled"] <= fence.stage_ms["taken"] <= fence.stage_ms["worker"] for fence in given)


def test_it_says_how_many_it_has_given_and_these_are_no_part_of_its_speed() -> None:
    fleet = fleet_with_a_slow_worker()
    run_until_given(fleet)
    fleet.run(1_500)
    beats = fleet.region.log.records(TOPICS.workers.name)
    told = [WorkerState.model_validate_json(beat.value or b"") for beat in beats]
    slow = [state for state in told if state.worker_id == "slow"]
    last = slow[-1].queues[Lane.STANDARD]
    assert 0 < last.spilled <= len(fleet.all[0].copies)
    assert last.left >= last.spilled
    moved = {response_id: ahead for state in slow for response_id, ahead in state.moved.items()}
    assert moved.keys() <= {*fleet.all[0].copies}
    assert {ahead.worker_id for ahead in moved.values()} == {"swift"}


@pytest.mark.parametrize("fault", ["dies", "dies once told", "told as lost", "told late"])
@pytest.mark.parametrize("then", ["", "rebalance", "lost"])
def test_whatever_happens_to_it_once_a_copy_is_in_the_log(fault: CopyFault, then: str) -> None:
    """backlog, SLOW, SPILL, the fault, and perhaps its partitions move: two records of one response, and one answer."""
    fleet = fleet_with_a_slow_worker()
    fleet.workers["slow"].copy_fault = fault
    run_until_given(fleet)
    if then == "lost" and "slow" in fleet.workers:
        fleet.workers["slow"].lanes.drop()
        fleet.run(400)
    if then == "rebalance":
        bystander = fleet.region.log.consumer("workers.pool", "bystander")
        bystander.subscribe([LANE])
        fleet.run(400)
        bystander.close()
        fleet.run(400)
    for worker in fleet.all:
        worker.tell_copies()
    fleet.settle("slow" if fault.startswith("dies") else "")
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in fleet.region.requests} == {EndingCode.COMPLETED}
    assert len({fence.response_id for fence in fences(fleet)}) == BACKLOG
    fleet.run(LEASE_MS)
    assert is_all_committed(fleet)
    assert fleet.region.commits_checked > BACKLOG


def test_a_copy_that_comes_back_before_it_is_known_to_be_stored_is_not_lost() -> None:
    """The partition that it went into is its own by then: the record counts as ended, and the copy does not."""
    fleet = fleet_with_a_slow_worker()
    slow = fleet.workers["slow"]
    slow.copy_fault = "told late"
    run_until_given(fleet)
    fleet.crash("swift")
    fleet.run(1_000)
    given = [work for work in slow.core._works.by_response.values() if work.response_id in slow.copies]
    assert given
    assert all(len(work.sources) == 2 for work in given)
    slow.tell_copies()
    assert all(len(work.sources) == 1 for work in given)
    slow.slower = 1
    fleet.settle()
    check(fleet.region)


def test_what_was_given_away_twice_stays() -> None:
    fleet = fleet_with_a_slow_worker(spills=MAX_SPILLS)
    fleet.run(6_000)
    assert not fleet.all[0].copies
    run_until_given(fleet_with_a_slow_worker(spills=MAX_SPILLS - 1))


def test_two_that_are_slow_in_turn_do_not_send_requests_to_and_fro() -> None:
    fleet = fleet_with_a_slow_worker(60)
    for slow in ("swift", "slow") * 4:
        run_ms = 4_000
        for name, worker in fleet.workers.items():
            worker.slower = 40 if name == slow else 1
        fleet.run(run_ms)
    for worker in fleet.workers.values():
        worker.slower = 1
    fleet.settle()
    check(fleet.region)
    assert max(record.spills for record in records(fleet)) <= MAX_SPILLS


@pytest.mark.parametrize("when", ["on its way", "there"])
def test_a_cancel_ends_what_was_given_away(when: str) -> None:
    fleet = fleet_with_a_slow_worker()
    slow = fleet.workers["slow"]
    if when == "on its way":
        slow.copy_fault = "told late"
    fleet.workers["swift"].stopped_until_ms = fleet.region.now_ms + LEASE_MS - 500
    run_until_given(fleet)
    given = slow.copies[0]
    fleet.region.cancel(given)
    fleet.run(100)
    slow.tell_copies()
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(given) is EndingCode.CANCELLED


def test_while_nobody_knows_who_has_begun_what_nothing_is_given_away() -> None:
    fleet = fleet_with_a_slow_worker()
    fleet.region.claims_up = False
    fleet.run(4_000)
    assert not fleet.all[0].copies
    fleet.region.claims_up = True
    run_until_given(fleet)


def test_a_worker_that_drains_gives_nothing_away() -> None:
    fleet = fleet_with_a_slow_worker()
    fleet.workers["slow"].core.drain()
    fleet.run(6_000)
    assert not fleet.all[0].copies


def test_how_long_a_beginning_was_is_known_of_those_that_began_here() -> None:
    fleet = Fleet("a", max_running=1)
    [worker] = fleet.all
    fleet.region.request(prompt=90, cache_id="a conversation")
    fleet.run(100)
    for prompt in (40, 200):
        fleet.region.request(prompt=prompt, cache_id="a conversation")
    fleet.region.request(prompt=60, cache_id="another")
    fleet.run(60)
    candidates = [*worker.core._giving_away._candidates(Lane.STANDARD)]
    assert [(each.prompt_tokens, each.kept_tokens) for each in candidates] == [(40, 40), (200, 90), (60, 0)]


def test_a_worker_that_is_added_has_its_part_of_a_backlog_with_its_partitions_and_the_rest_is_evened_out() -> None:
    fleet = Fleet("a", max_running=2)
    for number in range(60):
        fleet.region.request(partition=0 if number % 5 else 1, max_tokens=40)
    fleet.run(2_500)
    fleet.start("b")
    fleet.run(2_000)
    [a, b] = fleet.all
    assert b.submitted, "its partition came with what waited in it"
    left = len(fleet.region.open_responses())
    assert took_ms(fleet) < left * 820 / 4 + 4_000, "both have worked to the end, of two answers at once"
    check(fleet.region)
    assert a.copies or b.copies, "one of the partitions had four times as much in it"
