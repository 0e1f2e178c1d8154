"""Answers whose claims the store did not take, or lost, or answered late."""

from gpu_consumers.core.claims import AskClaim, ClaimTable
from gpu_consumers.core.effects import AskReadBack, Effect, ReleaseClaim
from schemas.endings import EndingCode
from tests.unit.gpu_consumers.fleet import LEASE_MS, TOPICS, Fleet, check


def test_an_answer_begun_while_the_store_was_away_survives_a_rebalance_after_it() -> None:
    fleet = Fleet("a")
    fleet.region.claims_up, fleet.region.claims_lost = False, True
    ids = [fleet.region.request(max_tokens=300, partition=partition) for partition in (0, 1)]
    fleet.run(300)
    fleet.region.claims_up = True
    fleet.run(100)
    for response_id in ids:
        begun_at = fleet.region.prefixes[response_id].begun_offset
        assert begun_at is not None
        assert fleet.region.claims._held[response_id].generated_end <= begun_at
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}
    assert [len(worker.submitted) for worker in fleet.all] == [2, 0]


def test_an_answer_whose_claim_was_lost_with_the_stores_memory_survives_a_rebalance_after_it() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(max_tokens=300, partition=partition) for partition in (0, 1)]
    fleet.run(300)
    fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    fleet.run(100)
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


def test_a_lost_claim_is_asked_for_until_the_store_has_answered() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(max_tokens=300, partition=partition) for partition in (0, 1)]
    fleet.run(300)
    [worker] = fleet.all
    fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    lease = fleet.region.claims.renew(worker.incarnation, fleet.region.now_ms)
    fleet.region.claims_up = False
    worker.core.lease_renewed(lease, fleet.region.now_ms)
    worker._run_effects()  # the lease was taken, and then the store was away
    fleet.region.claims_up = True
    fleet.run(100)
    fleet.start("b")
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


def test_what_runs_is_claimed_again_once_and_counted_once() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(300)
    [worker] = fleet.all
    asked = worker.claims_asked
    fleet.region.claims.resign(worker.incarnation)  # its lease ran out: it was stopped for a while
    fleet.run(1_000)
    assert worker.claims_asked == asked + 1
    other = fleet.region.claims.claim("x/1", AskClaim(response_id, "att_x"), fleet.region.now_ms)
    assert (other.state, other.begun) == ("leased", 1)


def test_a_claim_that_is_answered_after_the_engine_died_enters_the_next_engine() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    fleet.run(20)
    worker.claims_are_late = True
    response_id = fleet.region.request()
    fleet.run(20)
    assert worker.claims_on_their_way
    worker.kill_engine, worker.engine_starts = True, False
    arriving, worker.claims_on_their_way = worker.claims_on_their_way, []
    fleet.run(20)
    worker.claims_on_their_way = arriving
    fleet.run(100)
    assert not worker.submitted
    worker.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_a_takeover_reads_back_from_where_the_first_claim_was_made() -> None:
    fleet = Fleet("a")
    for _ in range(20):
        fleet.region.request(max_tokens=30)
    waiting = fleet.region.request(max_tokens=300)
    opened_offset = fleet.region.requests[waiting].opened_offset
    while not fleet.region.tokens.get(waiting):
        fleet.run(20)
        fleet.region.judge()
    begun_at = fleet.region.prefixes[waiting].begun_offset
    assert begun_at is not None
    fleet.crash("a")
    heir = fleet.start("b")
    asked: list[AskReadBack] = []
    run = heir._run

    def watch(effect: object) -> None:
        if isinstance(effect, AskReadBack):
            asked.append(effect)
        run(effect)  # type: ignore[arg-type]

    heir._run = watch  # type: ignore[method-assign]
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(waiting) is EndingCode.COMPLETED
    [ask] = [each for each in asked if each.response_id == waiting]
    assert opened_offset + 10 < ask.first_offset <= begun_at


def test_an_ending_behind_a_void_fence_of_a_lost_engine_is_not_believed() -> None:
    """It began without a claim, and is told that its fence was void when its engine is lost already."""
    fleet = Fleet("x")
    response_id = fleet.region.request(max_tokens=200)
    fleet.run_until_told(response_id, 3)
    fleet.crash("x")
    fleet.region.claims_up, fleet.region.voids_are_late = False, True
    worker = fleet.start("a")
    worker.late_rounds = 10_000
    while not worker.submitted:
        fleet.run(20)
    worker.late_rounds, worker.kill_engine, worker.engine_starts = 0, True, False
    fleet.run(40)
    fleet.region.say_voids()
    fleet.run(100)
    fleet.region.cancel(response_id)
    fleet.run(200)
    fleet.region.claims_up = worker.engine_starts = True
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED


def test_a_read_back_from_a_claim_that_forgot_an_attempt_is_done_again_from_that_one() -> None:
    """`b` began anew behind `a`, whose claim was lost, and died: its claim says nothing of `a`."""
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(500)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    now_ms = fleet.region.now_ms
    ends = len(fleet.region.log.records(TOPICS.generated.name, 0))
    fleet.region.claims.claim("b/1", AskClaim(response_id, "att_b", generated_end=ends), now_ms)
    fleet.region.claims.resign("b/1")
    fleet.start("c")
    fleet.settle()
    check(fleet.region)
    takeovers = [each for each in fleet.region.fences() if each.kind != "fresh"]
    begun_at = fleet.region.prefixes[response_id].begun_offset
    assert [fence.since_offset for fence in takeovers] == [ends, begun_at]
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_an_entry_behind_a_lost_answer_of_the_store_is_counted() -> None:
    fleet = Fleet("x")
    response_id = fleet.region.request(max_tokens=200)
    fleet.all[0].late_rounds = 10_000
    fleet.run(100)
    fleet.crash("x")
    fleet.run(LEASE_MS)
    heir = fleet.start("b")
    heir.late_rounds = 10_000
    run, lost = heir._run, list[AskClaim]()

    def loses_the_first(effect: Effect) -> None:
        if isinstance(effect, AskClaim) and not lost:
            lost.append(effect)
            fleet.region.claims.claim(heir.incarnation, effect, fleet.region.now_ms)
            heir.core.claimed(effect.response_id, effect.attempt_id, None, fleet.region.now_ms)
        else:
            run(effect)

    heir._run = loses_the_first  # type: ignore[method-assign]
    fleet.run(500)
    assert (len(fleet.all[0].submitted), len(heir.submitted), len(lost)) == (1, 1, 1)
    assert fleet.region.claims._held[response_id].begun == 2
    heir.late_rounds = 0
    fleet.settle()
    check(fleet.region)


def test_a_release_names_what_it_releases() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=300)
    fleet.run(300)
    [worker] = fleet.all
    worker.core.drain()
    worker.core.hand_over(fleet.region.now_ms)
    [release] = [effect for effect in worker.core.effects() if isinstance(effect, ReleaseClaim)]
    assert (release.response_id, release.attempt_id) == (response_id, worker.submitted[0])


def test_what_was_taken_over_and_waits_for_a_slot_is_claimed_again_too() -> None:
    """Else whoever was overtaken, and has to answer for its record, takes it back and ends it."""
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=600, partition=1)
    fleet.run_until_told(response_id, 3)
    zombie = fleet.workers.pop("a")
    zombie.lanes.drop()
    for _ in range(4):
        fleet.region.request(max_tokens=300, partition=0)
    heir = fleet.start("b")
    heir.late_rounds = 10_000
    fleet.run(LEASE_MS + 2_000)
    assert [fence.kind for fence in fleet.region.fences() if fence.response_id == response_id] == ["fresh", "takeover"]
    assert len(heir.submitted) == 4, "the others have all slots"
    fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    fleet.run(1_500)
    asked = AskClaim(response_id, "att_c", "take")
    assert fleet.region.claims.claim("c/1", asked, fleet.region.now_ms).state == "leased"
    heir.late_rounds = 0
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
