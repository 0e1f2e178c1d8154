"""What fails before its first token may go to another pool, and what comes from another pool is begun here anew."""

from dataclasses import replace
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpu_consumers.core.claims import AskClaim, ClaimTable, FinishClaim
from gpu_consumers.core.work import MAX_LOSSES
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence
from tests.unit.gpu_consumers.fleet import CONFIG, ENGINE, LEASE_MS, SCOPE, TOPICS, Fleet, check


def endings(fleet: Fleet) -> list[Ending]:
    """Those that workers of this pool wrote: with an attempt, or of what never fits."""
    found = fleet.region.endings()
    return [ending for ending in found if ending.stage_ms or ending.attempt_id]


def with_engine(fleet: Fleet, **settings: Any) -> Fleet:
    for worker in fleet.all:
        worker._new_engine = partial(SimulatedCore, ENGINE.model_copy(update={"max_running": 4, **settings}))
    return fleet


def test_what_the_engine_refuses_may_be_answered_elsewhere() -> None:
    fleet = with_engine(Fleet("a"), refuse_every=1)
    fleet.region.request()
    fleet.settle()
    [ending] = endings(fleet)
    assert (ending.code, ending.elsewhere, ending.move) == (EndingCode.ENGINE_FAILED, True, 0)
    assert ending.attempt_id


def test_what_never_fits_here_may_fit_elsewhere() -> None:
    fleet = Fleet("a")
    fleet.region.request(prompt=16_000)
    fleet.settle()
    [ending] = endings(fleet)
    assert (ending.code, ending.elsewhere, ending.pool) == (EndingCode.CONTEXT_LENGTH_EXCEEDED, True, "pool")


@pytest.mark.parametrize("why", ["it kills engines", "it has said something", "its deadline passes"])
def test_what_other_pools_are_to_be_spared_or_cannot_answer_ends_here(why: str) -> None:
    fleet = Fleet("a")
    if why == "it kills engines":
        fleet.poison(fleet.region.request())
        fleet.settle()
    elif why == "it has said something":
        fleet.region.poison_after = 2
        fleet.poison(fleet.region.request())
        fleet.settle()
    else:
        fleet.region.request(max_tokens=400, deadline_ms=fleet.region.now_ms + 500)
        fleet.run(2_000)
    written = endings(fleet)
    assert written
    assert not any(ending.elsewhere for ending in written)


def test_what_was_moved_here_is_begun_and_says_of_which_move_it_is() -> None:
    fleet = Fleet("a")
    moved = fleet.region.request(moved=True)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(moved) is EndingCode.COMPLETED
    [fence] = fleet.region.fences()
    assert (fence.move, fence.kind, fence.pool, fence.model, fence.prompt_tokens) == (1, "fresh", "pool", "m", 4)


def test_a_worker_that_dies_with_it_is_followed_by_one_that_reads_back_from_where_it_was_moved() -> None:
    fleet = Fleet("a")
    moved = fleet.region.request(moved=True, max_tokens=60)
    fleet.run(300)
    fleet.crash("a")
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(moved) is EndingCode.COMPLETED
    fences = fleet.region.fences()
    assert [(fence.move, fence.kind) for fence in fences] == [(1, "fresh"), (1, "takeover")]


def test_a_late_fence_of_the_former_pool_is_nothing_to_who_reads_back() -> None:
    fleet = Fleet("a")
    moved = fleet.region.request(moved=True, max_tokens=60)
    fleet.run(300)
    late = Fence(response_id=moved, scope=SCOPE, attempt_id="late", worker_id="z", kind="fresh", pool="former")
    partition = fleet.region.requests[moved].generated_partition
    fleet.region.log.append(TOPICS.generated.name, late.encode(), partition=partition)
    fleet.crash("a")
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(moved) is EndingCode.COMPLETED


@pytest.mark.parametrize(
    ("began", "ending"), [("smaller", EndingCode.GENERATION_INTERRUPTED), ("m", EndingCode.COMPLETED)]
)
def test_what_another_models_pool_has_begun_is_not_continued(began: str, ending: EndingCode) -> None:
    """Two records of one move, in pools of two models: each counts its own token ids."""
    fleet = Fleet("a", config=replace(CONFIG, model=began))
    moved = fleet.region.request(moved=True, max_tokens=60)
    fleet.run_until_told(moved, 10)
    fleet.crash("a")
    fleet.each = {"config": CONFIG}
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(moved) is ending
    if ending is EndingCode.GENERATION_INTERRUPTED:
        assert not fleet.workers["b"].submitted
        assert "another model began it" in endings(fleet)[-1].message


def dead_within(fleet: Fleet, name: str, response_id: str, *, starts_late: bool) -> bool:
    """Whether a new worker, whose engine may start after it has taken over, is killed before the response has ended."""
    fleet.start(name).engine_starts = not starts_late
    fleet.run(LEASE_MS + 500)
    if name in fleet.workers:
        fleet.workers[name].engine_starts = True
        fleet.run(500)
    fleet.region.judge()
    return name not in fleet.workers


@pytest.mark.parametrize("places", [2, 3])
@pytest.mark.parametrize("starts_late", [False, True], ids=["their engines run", "their engines start late"])
def test_what_kills_its_workers_kills_three_whichever_pools_it_comes_to(places: int, starts_late: bool) -> None:
    fleet = Fleet()
    killer = fleet.poison(fleet.region.request(further=places - 1), kills_worker=True)
    names = iter("abcdefgh")
    for place in range(places):
        dead_within(fleet, next(names), killer, starts_late=False)
        dead_within(fleet, next(names), killer, starts_late=starts_late)
        if place < places - 1:
            fleet.region.desert(killer)
    while fleet.region.terminal(killer) is None:
        dead_within(fleet, next(names), killer, starts_late=starts_late)
    assert sum(len(worker.killed_with) for worker in fleet.all) == MAX_LOSSES
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED


HEIRS = st.tuples(
    st.sampled_from(["runs", "starts late", "never starts"]), st.sampled_from(["dies", "leaves in order"]),
    st.booleans(),
)  # fmt: skip
"""Of each worker: its engine, how it goes, and whether what it had is moved then."""


@given(st.lists(HEIRS, min_size=1, max_size=7))
@settings(max_examples=30)
def test_a_move_tells_of_those_that_were_lost_with_it_in_their_engines_and_of_no_others(
    heirs: list[tuple[str, str, bool]],
) -> None:
    fleet = Fleet()
    silent = fleet.region.request(further=len(heirs), max_tokens=60)
    lost = 0
    for number, (engine, goes, is_moved) in enumerate(heirs):
        name = f"w{number}"
        worker = fleet.start(name)
        worker.engine_starts, worker.late_rounds = engine == "runs", 10_000
        fleet.run(LEASE_MS + 500)
        worker.engine_starts = engine != "never starts"
        fleet.run(200)
        if goes == "dies":
            lost += bool(worker.submitted)
            fleet.crash(name)
        else:
            fleet.hand_over(name)
        fleet.region.judge()
        assert fleet.region.prefixes[silent].losses == lost
        if is_moved and lost < MAX_LOSSES:
            fleet.region.desert(silent)
            assert fleet.region.requests[silent].losses == lost
    fleet.start("z")
    fleet.settle("z")
    check(fleet.region)
    survives = lost < MAX_LOSSES
    assert fleet.region.terminal(silent) is (EndingCode.COMPLETED if survives else EndingCode.ENGINE_FAILED)


def test_who_waits_at_a_full_engine_that_is_lost_was_not_lost_with_it() -> None:
    fleet = Fleet("a", max_running=1)
    waiting = fleet.region.request(further=1, max_tokens=60)
    fleet.run(20)
    fleet.crash("a")
    fleet.region.request(max_tokens=2_000, partition=1)
    fleet.start("b")
    fleet.run(LEASE_MS + 400)
    assert fleet.region.prefixes[waiting].attempts == 2
    assert len(fleet.workers["b"].submitted) == 1
    fleet.crash("b")
    fleet.region.desert(waiting)
    assert fleet.region.requests[waiting].losses == 1


@pytest.mark.parametrize("starts_late", [False, True], ids=["its engine runs", "its engine starts late"])
def test_what_an_heirs_engine_refuses_goes_on_with_those_that_were_lost_before(starts_late: bool) -> None:
    fleet = Fleet("a")
    refused = fleet.region.request(further=1, max_tokens=60)
    fleet.run(20)
    fleet.crash("a")
    fleet.start("b").engine_starts = not starts_late
    with_engine(fleet, refuse_every=1)
    fleet.region.moves_are_late = True
    fleet.run(LEASE_MS + 500)
    fleet.workers["b"].engine_starts = True
    fleet.run(500)
    assert fleet.region.requests[refused].move == 1
    assert fleet.region.requests[refused].losses == 1


def test_who_was_tried_alone_and_cleared_was_lost_with_nobody_then() -> None:
    fleet = Fleet("a")
    fleet.region.request(moved=True, further=1, losses=2)
    fleet.settle()
    tried, cleared, *beside_others = fleet.region.fences()
    assert (tried.losses, cleared.losses, cleared.attempt_id) == (None, 2, tried.attempt_id)
    assert [fence.losses for fence in beside_others] == [2, 3]


@pytest.mark.parametrize(("leaves", "losses"), [("its worker dies", 1), ("its worker leaves in order", 0)])
def test_who_waited_at_workers_whose_engines_never_started_is_moved_with_what_it_was_lost_with_and_no_more(
    leaves: str, losses: int
) -> None:
    fleet = Fleet("a")
    silent = fleet.region.request(further=1, max_tokens=60)
    fleet.run(20)
    if leaves == "its worker dies":
        fleet.crash("a")
    else:
        fleet.hand_over("a")
    for heir in ("b", "c", "d", "e"):
        fleet.start(heir).engine_starts = False
        fleet.run(LEASE_MS + 200)
        fleet.crash(heir)
    fleet.region.desert(silent)
    assert fleet.region.prefixes[silent].attempts == 5
    assert fleet.region.requests[silent].losses == losses
    fleet.start("f")
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(silent) is EndingCode.COMPLETED


def test_what_was_lost_with_engines_is_moved_with_all_of_them() -> None:
    fleet = Fleet()
    killer = fleet.poison(fleet.region.request(further=1), kills_worker=True)
    for worker in "ab":
        fleet.start(worker)
        while fleet.workers:
            fleet.run(20)
    fleet.region.desert(killer)
    assert fleet.region.requests[killer].losses == 2


def moved_twice() -> tuple[Fleet, str]:
    """Records of all three of its places stand in one lane, the oldest first; only the last of them counts."""
    fleet = Fleet("a")
    response_id = fleet.region.request(further=2)
    fleet.region.desert(response_id)
    fleet.region.desert(response_id)
    return fleet, response_id


@pytest.mark.parametrize("is_finished", [False, True], ids=["nobody has claimed it", "a former claim is finished"])
def test_what_was_moved_twice_is_answered_from_its_last_record_whichever_comes_first(is_finished: bool) -> None:
    fleet, response_id = moved_twice()
    if is_finished:
        for move in (0, 1):
            fleet.region.claims.claim("z", AskClaim(response_id, f"att_z{move}", move=move), fleet.region.now_ms)
            fleet.region.claims.finish("z", FinishClaim(response_id, move=move))
    fleet.run(2_000)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    check(fleet.region)


def test_what_runs_here_is_stopped_when_a_record_says_that_it_was_moved_on() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(further=1, max_tokens=400)
    fleet.run(20)
    fleet.region.voids_are_late = True
    fleet.region.desert(response_id)
    fleet.run(200)
    [former, _] = fleet.all[0].submitted
    assert fleet.all[0].aborted == [former]
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_what_has_failed_here_is_begun_when_it_comes_back_and_its_old_record_is_passed_over() -> None:
    fleet = with_engine(Fleet("a"), refuse_every=2)
    fleet.region.request(max_tokens=2)
    response_id = fleet.region.request(further=1)
    fleet.settle()
    assert [ending.move for ending in endings(fleet)] == [0]
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    fences = len(fleet.region.fences())
    fleet.region.put(fleet.region.records_of[response_id][0], 0)
    fleet.run(1_000)
    assert len(fleet.region.fences()) == fences
    check(fleet.region)


def test_a_cancel_of_what_was_moved_on_is_not_forgotten() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(further=1, max_tokens=400)
    fleet.run(20)
    fleet.region.moves_are_late = True
    fleet.region.desert(response_id)
    fleet.all[0].core._works.by_response[response_id].cancelled = EndingCode.CANCELLED
    fleet.region.place()
    fleet.run(200)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED


def test_the_answer_to_a_look_up_of_a_former_place_is_nothing_to_the_next() -> None:
    fleet = Fleet("a", max_running=1)
    fleet.region.request(max_tokens=200)
    fleet.run(200)
    [worker] = fleet.all
    worker.claims_are_late = True
    waiting = fleet.region.request(further=1)
    fleet.region.claims.claim("z", AskClaim(waiting, "att_z"), fleet.region.now_ms)
    fleet.region.claims.finish("z", FinishClaim(waiting))
    worker.step()
    assert [each[0] for each in worker.claims_on_their_way] == [waiting]
    fleet.region.desert(waiting)
    late, worker.claims_on_their_way = worker.claims_on_their_way, []
    worker.step()
    for told_id, attempt_id, claim, move in late:
        worker.core.claimed(told_id, attempt_id, claim, fleet.region.now_ms, move)
    worker.claims_are_late = False
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(waiting) is EndingCode.COMPLETED


def test_what_is_finished_at_one_place_is_claimed_at_the_next() -> None:
    table = ClaimTable(lease_ms=4_000)
    assert table.claim("a", AskClaim("r", "att_1"), 0).state == "fresh"
    table.finish("a", FinishClaim("r"))
    assert table.claim("b", AskClaim("r", "att_2"), 1).state == "finished"
    assert table.claim("b", AskClaim("r", "att_2", move=1), 1).state == "fresh"
    assert table.claim("c", AskClaim("r", "att_3", move=1), 2).state == "leased"
