"""Answers that are continued, while who continues them is frozen, asked to stop, without claims, or beside a killer."""

from gpu_consumers.core.effects import Effect, ReleaseClaim
from gpu_consumers.core.work import MAX_LOSSES
from gpu_consumers.engines.port import EngineDied
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.endings import EndingCode
from tests.unit.gpu_consumers.fleet import LEASE_MS, Fleet, check


def test_a_frozen_worker_that_wakes_does_not_end_what_another_goes_on_with() -> None:
    """It had taken the answer over as a suspect, and was full: others have waited for the suspect for too long."""
    fleet = Fleet(max_running=1)
    suspect = fleet.region.request(max_tokens=4_000)
    for name in "xy":
        lost = fleet.start(name)
        while not lost.submitted:
            fleet.run(20)
        fleet.crash(name)
    frozen = fleet.start("a")
    long = fleet.region.request(max_tokens=5_000, partition=1)
    fleet.run(LEASE_MS + 1_000)
    fleet.region.request(max_tokens=3, partition=1)
    fleet.run(1_000)
    frozen.lanes.drop()
    fleet.workers.pop("a")
    fleet.each["max_running"] = 8
    fleet.start("b")
    fleet.region.cancel(long)
    fleet.run(35_000)
    told = len(fleet.region.tokens[suspect])
    assert told > 100
    frozen.core.tick(fleet.region.now_ms)
    frozen._run_effects()
    frozen.producer.poll()
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(suspect) is EndingCode.COMPLETED


def test_who_was_cleared_begins_although_the_claims_are_away() -> None:
    fleet = Fleet("a")
    fleet.run(40)
    fleet.region.claims_up = False
    response_id = fleet.region.request()
    fleet.run(20)
    fleet.workers["a"].kill_engine = True
    fleet.run(2_000)
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_a_release_that_comes_late_blames_nobody_who_was_cleared() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    for name in "ab":
        if name not in fleet.workers:
            fleet.start(name)
        while not fleet.workers[name].submitted:
            fleet.run(20)
        fleet.crash(name)
    worker = fleet.start("c")
    run, late = worker._run, list[Effect]()

    def releases_late(effect: Effect) -> None:
        if isinstance(effect, ReleaseClaim):
            late.append(effect)
        else:
            run(effect)

    worker._run = releases_late  # type: ignore[method-assign]
    fleet.settle()
    assert late
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_who_says_something_and_kills_its_engine_each_time_does_so_three_times() -> None:
    fleet = Fleet("a", max_running=8)
    [worker] = fleet.all
    killer = fleet.poison(fleet.region.request(max_tokens=400))

    def eight_tokens_are_harmless(engine: SimulatedCore) -> None:
        for choices in engine._requests.values():
            for running in choices.values():
                said = 0 if running.request.accepted is None else running.request.accepted.tokens
                if running.request.prompt_token_ids[0] in fleet.region.poison and running.answer.produced >= said + 8:
                    raise EngineDied("poisoned")

    worker._take_poison = eight_tokens_are_harmless  # type: ignore[method-assign]
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(killer) is EndingCode.GENERATION_INTERRUPTED
    [ending] = fleet.region.endings()
    assert ending.message.endswith("it is not continued: its engine died 3 times.")
    assert worker.deaths == MAX_LOSSES


def test_what_is_cancelled_while_it_waits_to_go_on_is_forgotten() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=200)
    fleet.run(500)
    worker = fleet.workers["a"]
    worker.kill_engine, worker.engine_starts = True, False
    fleet.run(40)
    fleet.region.cancel(response_id)
    fleet.run(200)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert not worker.core._works.by_response
    assert not worker.core._works.by_attempt


def test_what_is_read_back_for_a_partition_that_has_gone_goes_on_with_its_new_reader() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(max_tokens=200, partition=partition) for partition in (0, 1)]
    fleet.run(500)
    waiting = fleet.workers["a"]
    waiting.engine_starts, waiting.engine = False, None
    waiting.core.engine_died(fleet.region.now_ms)
    waiting._run_effects()
    fleet.start("b")
    fleet.run(5_000)
    assert EndingCode.COMPLETED in {fleet.region.terminal(each) for each in ids}
    waiting.engine_starts = True
    fleet.settle()
    check(fleet.region)
