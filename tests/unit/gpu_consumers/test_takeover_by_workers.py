"""What becomes of answers whose worker, engine or claim was lost."""

import dataclasses

import pytest

from gpu_consumers.core.claims import ClaimTable
from gpu_consumers.core.continuation import MAX_ATTEMPTS
from gpu_consumers.core.effects import (
    AskClaim,
)
from gpu_consumers.core.slots import MAX_LOOKS
from gpu_consumers.core.work import MAX_LOSSES
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import EngineDelta
from schemas.endings import EndingCode
from schemas.request import Lane
from streams.log.memory import Fault, FaultKind
from streams.log.port import Committed, TopicPartition
from tests.unit.gpu_consumers.fleet import (
    LEASE_MS,
    NOW_MS,
    TOPICS,
    Fleet,
    check,
)


def test_a_dead_workers_answer_is_continued_by_the_next_worker() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=200)
    fleet.run(1_000)
    fleet.crash("a")
    fleet.start("b")
    fleet.run(LEASE_MS // 2)
    assert fleet.region.terminal(begun) is None
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


def test_a_dead_workers_answer_is_continued_once_the_next_workers_engine_has_loaded() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=200)
    fleet.run(1_000)
    fleet.crash("a")
    unheard = [fleet.region.request() for _ in range(3)]
    heir = fleet.start("b")
    heir.engine_starts = False
    fleet.run(LEASE_MS + 200)
    told = len(fleet.region.tokens[begun])
    assert not heir.submitted
    heir.engine_starts = True
    fleet.run(200)
    assert len(fleet.region.tokens[begun]) > told
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in (begun, *unheard)} == {EndingCode.COMPLETED}


def test_a_dead_workers_answer_is_the_next_that_a_full_worker_with_a_backlog_goes_on_with() -> None:
    fleet = Fleet("a", "b", max_running=1)
    begun = [fleet.region.request(max_tokens=600, partition=partition) for partition in (0, 1)]
    fleet.run(1_000)
    backlog = [fleet.region.request(partition=number % 2) for number in range(60)]
    fleet.run(200)
    fleet.crash("a")
    while not all(fleet.region.terminal(response_id) for response_id in begun):
        fleet.run(500)
    assert sum(fleet.region.terminal(response_id) is not None for response_id in backlog) <= 2
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in (*begun, *backlog)} == {EndingCode.COMPLETED}


def test_a_dead_workers_answer_that_said_nothing_waits_for_the_engine_alone() -> None:
    fleet = Fleet("a", max_running=1)
    silent = fleet.region.request()
    fleet.run(20)
    fleet.crash("a")
    heir = fleet.start("b")
    heir.engine_starts = False
    fleet.run(LEASE_MS + 200)
    assert fleet.region.terminal(silent) is None
    heir.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED


def test_work_that_finds_a_slot_at_once_costs_one_round_trip_to_the_claims() -> None:
    fleet = Fleet("a", max_running=4)
    for _ in range(4):
        fleet.region.request()
    fleet.settle()
    assert fleet.all[0].claims_asked == 4


def test_looking_for_what_others_began_takes_nothing_and_is_bounded() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    worker.engine_starts = False
    region = fleet.region
    ids = [region.request() for _ in range(MAX_LOOKS + 20)]
    core = WorkerCore(dataclasses.replace(worker.core.config, max_uncommitted_records=1_000), lambda: "att_look")
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    core.assigned({source: Committed(None)})
    core.lane_records(region.log.records(source.topic), NOW_MS)
    core.tick(NOW_MS)
    looks = [effect for effect in core.effects() if isinstance(effect, AskClaim)]
    assert [look.response_id for look in looks] == ids[:MAX_LOOKS]
    core.tick(NOW_MS)
    assert core.effects() == []
    for look in looks:
        claim = region.claims.claim("w", look, NOW_MS)
        core.claimed(look.response_id, look.attempt_id, claim, NOW_MS)
    core.tick(NOW_MS)
    assert [look.response_id for look in core.effects() if isinstance(look, AskClaim)] == ids[MAX_LOOKS:]
    assert all(region.claims.claim("other", AskClaim(each, "att"), NOW_MS).state == "fresh" for each in ids)


def test_work_that_said_nothing_yet_is_generated_by_the_next_worker() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.run(20)
    assert fleet.all[0].submitted
    fleet.crash("a")
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_after_a_revoke_the_worker_goes_on_and_the_next_owner_waits() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(max_tokens=300, partition=partition) for partition in (0, 1)]
    fleet.run(500)
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in ids} == {EndingCode.COMPLETED}
    assert [len(worker.submitted) for worker in fleet.all] == [2, 0]
    assert fleet.region.commits_checked > 0


def test_a_dead_engines_requests_begin_again_or_go_on() -> None:
    fleet = Fleet("a", max_running=2)
    begun = fleet.region.request(max_tokens=100)
    fleet.run(300)
    fresh = fleet.region.request()
    fleet.all[0].kill_engine = True
    fleet.run(20)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED
    assert fleet.region.terminal(fresh) is EndingCode.COMPLETED


def test_a_worker_that_leaves_without_an_engine_gives_back_what_was_in_it() -> None:
    fleet = Fleet("a")
    begun = fleet.region.request(max_tokens=100)
    fleet.run(300)
    silent = fleet.region.request()
    fleet.run(20)
    leaving = fleet.workers["a"]
    leaving.kill_engine = True
    leaving.engine_starts = False
    fleet.run(100)
    assert len(leaving.submitted) == 2
    fleet.workers.pop("a").lanes.close()
    leaving._run_effects()
    fleet.start("b")
    fleet.run(LEASE_MS // 4)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(begun) is EndingCode.COMPLETED


def test_an_engine_that_keeps_dying_fails_the_request_in_the_end() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    for _ in range(12):
        fleet.all[0].kill_engine = True
        fleet.run(20)
    assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED


def test_an_undelivered_frame_stops_its_attempts_and_a_takeover_continues_them() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.log.inject(Fault(FaultKind.FAIL, "a-producer", 10))
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert not fleet.region.log.pending_faults()


def test_a_fresh_fence_after_lost_claims_is_void_and_the_worker_continues_what_it_cut_off() -> None:
    """`a` is a zombie: it lost its partitions and its claim, and was stopped while `b` began anew."""
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    fleet.region.claims = ClaimTable(LEASE_MS)
    fleet.region.claims_lost = True
    fleet.start("b")
    fleet.run(500)
    fleet.workers["a"] = zombie
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_a_worker_that_drains_keeps_nothing_from_others_that_it_starts_no_more() -> None:
    """It took over what a dead worker had said nothing of, and was full."""
    fleet = Fleet("a", "b", max_running=1)
    fleet.region.request(max_tokens=600, partition=1)
    waiting = fleet.region.request(partition=0)
    fleet.run(20)
    fleet.region.claims.resign(fleet.workers["a"].incarnation)
    fleet.crash("a")
    fleet.run(200)
    assert fleet.region.claims._held[waiting].incarnation == fleet.workers["b"].incarnation
    leaving = fleet.workers.pop("b")
    leaving.core.drain()
    leaving.lanes.close()
    leaving._run_effects()
    assert leaving.core.unfinished_attempts == 1, "it finishes what runs"
    fleet.start("c")
    fleet.run(LEASE_MS // 2)
    assert fleet.region.terminal(waiting) is EndingCode.COMPLETED


def test_what_was_to_begin_when_its_worker_is_stopped_begins_elsewhere() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    fleet.run(20)
    worker.claims_are_late = True
    response_id = fleet.region.request()
    fleet.run(20)
    assert worker.claims_on_their_way
    leaving = fleet.workers.pop("a")
    leaving.core.drain()
    leaving.lanes.close()
    for told_id, attempt_id, claim, move in leaving.claims_on_their_way:
        leaving.core.claimed(told_id, attempt_id, claim, fleet.region.now_ms, move)
    leaving._run_effects()
    assert not leaving.submitted
    fleet.start("b")
    fleet.run(LEASE_MS // 2)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_handed_over_work_is_taken_without_waiting_for_the_lease() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    leaving = fleet.workers["a"]
    assert leaving.core.unfinished_attempts == 1
    fleet.hand_over("a")
    assert leaving.core.unfinished_attempts == 0
    told = len(fleet.region.tokens[response_id])
    fleet.start("b")
    fleet.run(500)
    assert len(fleet.region.tokens[response_id]) > told
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def lost_again_and_again(fleet: Fleet, response_id: str, times: int, tokens_each: int) -> None:
    for number in range(1, times + 1):
        fleet.run_until_told(response_id, tokens_each * number)
        fleet.crash("a")
        fleet.start("a")
    fleet.settle()
    check(fleet.region)


def test_an_answer_goes_on_however_many_workers_are_lost_with_it() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300, choices=2)
    lost_again_and_again(fleet, response_id, MAX_LOSSES + 2, 40)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert len(fleet.region.of_choice[response_id, 0]) == 300


def test_who_kills_engines_in_the_middle_of_its_answer_is_found_and_the_others_are_answered_in_full() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    fleet.region.poison_after = 30
    killer = fleet.poison(fleet.region.request(max_tokens=100))
    others = [fleet.region.request(max_tokens=400) for _ in range(5)]
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert {fleet.region.terminal(each) for each in others} == {EndingCode.COMPLETED}
    assert worker.deaths <= MAX_LOSSES + 1


def test_who_kills_workers_in_the_middle_of_its_answer_is_found() -> None:
    fleet = Fleet("a", "b")
    fleet.region.poison_after = 30
    killer = fleet.poison(fleet.region.request(max_tokens=100), kills_worker=True)
    other = fleet.region.request(max_tokens=400)
    fleet.settle("ab")
    check(fleet.region)
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert fleet.region.terminal(other) is EndingCode.COMPLETED


def test_what_the_next_engine_cannot_continue_ends_and_its_client_is_told_why() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    fleet.crash("a")
    heir = fleet.start("a")
    while not heir.submitted:
        fleet.run(20)
    [attempt_id] = heir.core._works.by_attempt
    fleet.says(EngineDelta.failure(attempt_id, "its grammar would begin anew", is_not_continued=True))
    fleet.settle()
    check(fleet.region)
    [ending] = fleet.region.endings()
    assert (ending.response_id, ending.code) == (response_id, EndingCode.GENERATION_INTERRUPTED)
    assert ending.message.endswith("tokens of it came, and it is not continued: its grammar would begin anew.")


@pytest.mark.parametrize("its_engine_alone", [True, False])
def test_where_policy_forbids_to_continue_an_answer_ends_as_soon_as_its_loss_is_known(its_engine_alone: bool) -> None:
    fleet = Fleet("a", max_running=2)
    [worker] = fleet.all
    begun = fleet.region.request(max_tokens=300, continuation=False)
    fleet.run(500)
    silent = fleet.region.request(max_tokens=20, continuation=False)
    told = len(fleet.region.tokens[begun])
    if its_engine_alone:
        worker.engine_starts, worker.kill_engine = False, True
        fleet.run(200)
    else:
        fleet.crash("a")
        fleet.start("a").engine_starts = False
        fleet.run(LEASE_MS + 200)
    [ending] = fleet.region.endings()
    assert (ending.response_id, ending.code) == (begun, EndingCode.GENERATION_INTERRUPTED)
    assert ending.message.endswith("it is not continued: the policy of its tenant or model forbids it.")
    assert f" {len(fleet.region.tokens[begun])} tokens of it came" in ending.message
    assert len(fleet.region.tokens[begun]) >= told > 0, "no engine was waited for"
    for each in fleet.all:
        each.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED, "what has not begun is begun elsewhere all the same"


def test_an_answer_is_not_continued_for_ever() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=2_000)
    lost_again_and_again(fleet, response_id, MAX_ATTEMPTS, 10)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    [ending] = fleet.region.endings()
    assert ending.message.endswith("it is not continued: it was begun 12 times.")
