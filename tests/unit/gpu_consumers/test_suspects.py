"""A request that kills whoever works on it is tried a bounded number of times, and not with others' answers."""

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpu_consumers.core.claims import ClaimTable
from gpu_consumers.core.slots import MAX_HOLD_MS
from gpu_consumers.core.work import MAX_LOSSES
from schemas.endings import EndingCode
from schemas.generated import Ending
from schemas.request import LANES, Lane
from tests.unit.gpu_consumers import fleet as fleet_module
from tests.unit.gpu_consumers.fleet import ENGINE, LEASE_MS, Fleet, Worker, check


def entered(fleet: Fleet, response_id: str) -> int:
    """How often it was in an engine."""
    attempts = {fence.attempt_id for fence in fleet.region.fences() if fence.response_id == response_id}
    return sum(attempt in attempts for worker in fleet.all for attempt in worker.submitted)


def in_engine(worker: Worker) -> set[str]:
    return set() if worker.engine is None else set(worker.engine._requests)


def endings_of(fleet: Fleet, response_id: str) -> list[Ending]:
    found: list[Ending] = fleet.region.endings()
    return [ending for ending in found if ending.response_id == response_id]


def ending_of(fleet: Fleet, response_id: str) -> Ending:
    [ending] = endings_of(fleet, response_id)
    return ending


def test_what_kills_its_engine_is_tried_three_times_then_ends_with_a_reason() -> None:
    fleet = Fleet("a")
    fleet.poison(fleet.region.request())
    [killer] = fleet.region.requests
    fleet.settle()
    assert entered(fleet, killer) == MAX_LOSSES
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert "3 times" in ending_of(fleet, killer).message


def test_who_was_in_an_engine_that_died_enters_alone_and_takes_no_answer_with_it() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    answers = [fleet.region.request(max_tokens=400) for _ in range(3)]
    fleet.run(200)
    killer = fleet.poison(fleet.region.request())
    fleet.run(100)
    later = [fleet.region.request(max_tokens=100) for _ in range(6)]
    fleet.settle()
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert {fleet.region.terminal(each) for each in (*answers, *later)} == {EndingCode.COMPLETED}
    assert worker.deaths == MAX_LOSSES
    assert worker.killed_with == [3, 0, 0]


def test_what_was_lost_twice_in_other_pools_enters_alone_and_is_tried_once_more() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    answers = [fleet.region.request(max_tokens=60) for _ in range(3)]
    fleet.run(200)
    killer = fleet.poison(fleet.region.request(moved=True, losses=2))
    fleet.settle()
    assert {fleet.region.terminal(each) for each in answers} == {EndingCode.COMPLETED}
    assert (worker.deaths, worker.killed_with) == (1, [0])
    ending = [each for each in endings_of(fleet, killer) if each.move == 1]
    assert [(each.code, each.elsewhere) for each in ending] == [(EndingCode.ENGINE_FAILED, False)]
    assert "3 times" in ending[0].message


def test_what_was_lost_three_times_in_other_pools_enters_no_engine_and_holds_nobody_up() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    running = fleet.region.request(max_tokens=200)
    fleet.run(200)
    killer = fleet.poison(fleet.region.request(moved=True, losses=3))
    fleet.run(100)
    assert fleet.region.terminal(running) is None
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert (worker.deaths, entered(fleet, killer)) == (0, 0)


@pytest.mark.parametrize(("losses", "deaths"), [(0, 3), (1, 2), (2, 1)])
def test_workers_that_are_lost_here_are_counted_with_those_elsewhere(losses: int, deaths: int) -> None:
    fleet = Fleet("a")
    killer = fleet.poison(fleet.region.request(moved=True, losses=losses), kills_worker=True)
    fleet.settle("abc")
    assert entered(fleet, killer) == deaths
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED


def test_who_was_suspected_elsewhere_and_is_harmless_is_answered_in_full() -> None:
    fleet = Fleet("a")
    suspect = fleet.region.request(moved=True, losses=2, max_tokens=60)
    fleet.run_until_told(suspect, 5)
    for worker in "abc":
        fleet.crash(worker)
        fleet.start(worker)
        fleet.run(LEASE_MS + 1_000)
    fleet.settle("abc")
    check(fleet.region)
    assert fleet.region.terminal(suspect) is EndingCode.COMPLETED


def test_the_innocent_of_an_engines_death_are_answered_in_full() -> None:
    fleet = Fleet("a", max_running=8)
    fleet.poison(fleet.region.request())
    innocent = [fleet.region.request(max_tokens=50) for _ in range(5)]
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in innocent} == {EndingCode.COMPLETED}


def test_what_kills_its_worker_is_tried_three_times_by_all_of_them_together() -> None:
    fleet = Fleet("a")
    killer = fleet.poison(fleet.region.request(), kills_worker=True)
    fleet.settle("abc")
    assert entered(fleet, killer) == MAX_LOSSES
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED


def test_what_killed_two_workers_waits_until_nobody_can_die_with_it() -> None:
    fleet = Fleet("a")
    killer = fleet.poison(fleet.region.request(), kills_worker=True)
    while len(fleet.all) < 3:
        fleet.run(100)
        if not fleet.workers:
            heir = fleet.start(f"w{len(fleet.all)}")
    running = [fleet.region.request(max_tokens=600, partition=1) for _ in range(2)]
    fleet.run(200)
    assert len(in_engine(heir)) == 2
    fleet.run(LEASE_MS + 500)
    assert entered(fleet, killer) == 2, "not beside the answers that run"
    late = fleet.region.request(max_tokens=5)
    fleet.run(500)
    assert fleet.region.terminal(late) is None, "others wait, so that its moment comes"
    fleet.run(600 * 20)
    assert {fleet.region.terminal(each) for each in running} == {EndingCode.COMPLETED}
    assert not fleet.workers
    fleet.settle("z")
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert fleet.region.terminal(late) is EndingCode.COMPLETED


def test_who_waits_behind_a_suspect_is_not_blamed_for_the_worker_that_is_lost_with_it() -> None:
    fleet = Fleet("x")
    killer = fleet.region.request()
    while not fleet.all[0].submitted:
        fleet.run(20)
    fleet.crash("x")
    second = fleet.start("y")
    second.engine_starts = False
    fleet.run(LEASE_MS + 500)
    innocent = fleet.region.request()
    fleet.run(40)
    second.engine_starts = True
    while len(second.submitted) < 2:
        fleet.run(20)
    fleet.crash("y")
    fleet.poison(killer, kills_worker=True)
    third = fleet.start("z")
    while fleet.workers:
        fleet.run(20)
    assert len(third.submitted) == 1
    assert fleet.region.claims._held[innocent].begun == 1, "lost with the second worker alone"
    fleet.settle("z")
    check(fleet.region)
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert fleet.region.terminal(innocent) is EndingCode.COMPLETED


def test_others_do_not_wait_for_ever_for_a_suspects_moment() -> None:
    fleet = Fleet("a")
    killer = fleet.poison(fleet.region.request(), kills_worker=True)
    while len(fleet.all) < 3:
        fleet.run(100)
        if not fleet.workers:
            fleet.start(f"w{len(fleet.all)}")
    fleet.region.request(max_tokens=5_000, partition=1)
    fleet.run(LEASE_MS + 500)
    late = fleet.region.request(max_tokens=5)
    fleet.run(MAX_HOLD_MS + 500)
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert "no moment" in ending_of(fleet, killer).message
    assert fleet.region.terminal(late) is EndingCode.COMPLETED


def _fleet_of_suspects(monkeypatch: pytest.MonkeyPatch, lanes: Sequence[Lane]) -> Fleet:
    """They were in an engine that died; each needs a second there for a first token."""
    slow = ENGINE.model_copy(update={"ttft_ms": 1_000, "inter_token_ms": 100, "step_ms": 100})
    monkeypatch.setattr(fleet_module, "ENGINE", slow)
    fleet = Fleet("a", max_running=len(lanes))
    for lane in lanes:
        fleet.region.request(lane, max_tokens=2)
        fleet.run(10, 10)
    fleet.run(100, 100)
    fleet.all[0].kill_engine = True
    fleet.run(100, 100)
    return fleet


def test_suspects_are_tried_in_the_order_of_their_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = [Lane.BATCH, Lane.BATCH, Lane.STANDARD, Lane.BATCH, Lane.INTERACTIVE]
    fleet = _fleet_of_suspects(monkeypatch, lanes)
    [worker] = fleet.all
    begun = len(worker.submitted)
    while len(worker.submitted) < begun + len(lanes):
        fleet.run(100, 100)
    fences = {fence.attempt_id: fence for fence in fleet.region.fences()}
    tried = [fleet.region.requests[fences[attempt_id].response_id].lane for attempt_id in worker.submitted[begun:]]
    assert tried == sorted(lanes, key=LANES.index)
    fleet.settle()
    check(fleet.region)


def test_others_have_a_turn_when_many_suspects_take_long_and_no_suspect_ends_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = _fleet_of_suspects(monkeypatch, [Lane.BATCH] * 50)
    suspects = list(fleet.region.requests)
    since_ms = fleet.region.now_ms
    # One that runs on for long after its turn is over.
    long = fleet.region.request(Lane.STANDARD, max_tokens=600, partition=1)
    late = fleet.region.request(Lane.INTERACTIVE, max_tokens=2, partition=1)
    while fleet.region.terminal(late) is None:
        fleet.run(100, 100)
    assert fleet.region.now_ms - since_ms < MAX_HOLD_MS + 5_000
    fleet.settle(limit_ms=400_000)
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in [*suspects, long]} == {EndingCode.COMPLETED}


def test_a_suspect_that_others_leave_no_moment_gives_up_after_three_turns_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = _fleet_of_suspects(monkeypatch, [Lane.BATCH] * 50)
    suspects = list(fleet.region.requests)
    fleet.region.request(Lane.STANDARD, max_tokens=5_000, partition=1)
    fleet.run(MAX_HOLD_MS + 5_000, 100)
    waiting = [each for each in suspects if fleet.region.terminal(each) is None]
    assert waiting
    others = []
    for _ in range(8):
        others.append(fleet.region.request(Lane.STANDARD, max_tokens=2, partition=1))
        fleet.run(MAX_HOLD_MS, 100)
    assert all(fleet.region.terminal(each) is not None for each in [*others, *waiting])
    gave_up = [each for each in suspects if fleet.region.terminal(each) is EndingCode.ENGINE_FAILED]
    assert gave_up
    assert all("no moment" in ending_of(fleet, each).message for each in gave_up)


def test_a_frozen_worker_that_wakes_gives_up_no_suspect_that_another_goes_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = _fleet_of_suspects(monkeypatch, [Lane.BATCH] * 50)
    suspects = list(fleet.region.requests)
    long = fleet.region.request(Lane.STANDARD, max_tokens=5_000, partition=1)
    fleet.run(MAX_HOLD_MS + 5_000, 100)
    slots = fleet.workers["a"].core._slots
    while slots._turns_left or slots._holding_since_ms is None:
        if not slots._scheduler:
            fleet.region.request(Lane.STANDARD, max_tokens=2, partition=1)
        fleet.run(1_000, 100)
    waiting = [each for each in suspects if fleet.region.terminal(each) is None]
    frozen = fleet.workers.pop("a")
    frozen.lanes.drop()
    fleet.run(MAX_HOLD_MS, 100)
    fleet.each["max_running"] = 64
    fleet.start("b")
    fleet.run(900, 100)
    taken = [each for each in waiting if fleet.region.prefixes[each].attempts > 1]
    assert taken
    frozen.core.tick(fleet.region.now_ms)
    frozen._run_effects()
    frozen.producer.poll()
    fleet.region.cancel(long)
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in taken} == {EndingCode.COMPLETED}


def test_suspects_wait_for_one_that_is_tried_however_long_its_engine_takes() -> None:
    """As when it hangs: its engine is ended then, and the turn is the next one's."""
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    innocent = [fleet.region.request(max_tokens=5) for _ in range(4)]
    fleet.run(20)
    worker.kill_engine = True
    fleet.run(20)
    worker.late_rounds = (2 * MAX_HOLD_MS) // 20
    fleet.run(2 * MAX_HOLD_MS)
    assert len(in_engine(worker)) == 1
    worker.kill_engine, worker.late_rounds = True, 0
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in innocent} == {EndingCode.COMPLETED}


def test_a_suspect_that_may_be_anothers_by_now_is_not_ended_while_the_claims_are_away() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    suspect = fleet.region.request(max_tokens=5)
    fleet.run(20)
    worker.kill_engine, worker.engine_starts = True, False
    fleet.run(20)
    # Meanwhile somebody else has taken it over, and works on it.
    fleet.region.claims._held[suspect].incarnation = "b/1"
    fleet.region.claims.renew("b/1", fleet.region.now_ms)
    worker.engine_starts = True
    fleet.run(100)
    fleet.region.claims_up = False
    late = [fleet.region.request(max_tokens=length) for length in (5_000, 5)]
    fleet.run(LEASE_MS + MAX_HOLD_MS + 2_000)
    assert fleet.region.terminal(suspect) is None
    assert fleet.region.terminal(late[1]) is EndingCode.COMPLETED, "nor do others wait for it"
    fleet.region.claims_up = True
    fleet.crash("a")
    fleet.settle("c")
    assert fleet.region.terminal(suspect) is EndingCode.COMPLETED


def test_a_worker_that_is_stopped_cleanly_makes_nobody_suspect() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    for number in range(5):
        fleet.run(20)
        [name] = fleet.workers
        fleet.hand_over(name)
        fleet.start(f"b{number}")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_when_the_claims_lose_the_count_the_fences_in_the_log_still_bound_it() -> None:
    fleet = Fleet("a")
    killer = fleet.poison(fleet.region.request(), kills_worker=True)
    for number in range(40):
        fleet.run(500)
        for claims in fleet.region.claims._held.values():
            claims.begun = 0
        if not fleet.workers:
            fleet.start(f"b{number}")
        if fleet.region.terminal(killer) is not None:
            break
        fleet.run(LEASE_MS)
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED
    assert entered(fleet, killer) <= 12


def test_without_a_claim_store_an_engine_s_deaths_are_counted_by_its_worker() -> None:
    fleet = Fleet("a")
    fleet.region.claims_up, fleet.region.claims_lost = False, True
    killer = fleet.poison(fleet.region.request())
    fleet.settle()
    assert (fleet.region.terminal(killer), entered(fleet, killer)) == (EndingCode.ENGINE_FAILED, MAX_LOSSES)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from([2, 8]),
    st.booleans(),
)
@settings(max_examples=25)
def test_whoever_kills_whom_each_ends_and_no_killer_is_tried_more_often(
    requests: list[tuple[bool, bool, int]], max_running: int, claims_are_lost: bool
) -> None:
    """Each of them: whether it kills, whether its worker too, and how many steps pass before the next."""
    fleet = Fleet("a", "b", max_running=max_running)
    killers = []
    for kills, kills_worker, steps in requests:
        response_id = fleet.region.request(max_tokens=20, partition=steps % 2)
        if kills:
            killers.append(fleet.poison(response_id, kills_worker=kills_worker))
        fleet.run(20 * steps)
    if claims_are_lost:
        fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    fleet.settle("ab", limit_ms=400_000)
    check(fleet.region)
    for killer in killers:
        assert fleet.region.terminal(killer) in (EndingCode.ENGINE_FAILED, EndingCode.GENERATION_INTERRUPTED)
        assert entered(fleet, killer) <= MAX_LOSSES + claims_are_lost * MAX_LOSSES
