"""What no other worker can have read is generated while its claim is asked for, whatever the answer turns out to be."""

from dataclasses import replace

import pytest

from gpu_consumers.core.claims import AskClaim, FinishClaim
from gpu_consumers.core.effects import Abort, Publish, Submit
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Fence
from schemas.request import Lane
from schemas.usage import USAGE, ComputeRecord
from streams.log.port import Committed, TopicPartition
from tests.unit.gpu_consumers.fleet import LEASE_MS, TOPICS, Fleet, Worker, check

LANE = TOPICS.lane("pool", Lane.STANDARD).name
LATE_MS = 200
"""Some tokens of the simulated engine later."""


def reading(*, claims_late_ms: int = LATE_MS, max_running: int = 4) -> tuple[Fleet, Worker]:
    """A worker that has its partitions, and whose claims are answered late."""
    fleet = Fleet("a", max_running=max_running, claims_late_ms=claims_late_ms)
    fleet.run(20)
    return fleet, fleet.workers["a"]


def fences(fleet: Fleet, response_id: str) -> list[Fence]:
    found = fleet.region.records(TOPICS.generated.name, Fence, GENERATED)
    return [fence for fence in found if fence.response_id == response_id]


def committed(fleet: Fleet) -> int:
    source = TopicPartition(LANE, 0)
    return fleet.region.log.committed("workers.pool", source).offset or 0


# What may run ahead


def test_what_was_written_after_the_worker_came_has_tokens_before_its_claim_is_answered() -> None:
    fleet, worker = reading()
    response_id = fleet.region.request()
    fleet.run(LATE_MS - 20)
    assert fleet.region.tokens[response_id]
    order = [type(effect) for effect in worker.effects_seen if isinstance(effect, AskClaim | Submit)]
    assert order == [AskClaim, Submit]
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert [fence.kind for fence in fences(fleet, response_id)] == ["fresh"]
    assert worker.claims_asked == 1


def test_a_backlog_waits_for_its_claims() -> None:
    fleet = Fleet(claims_late_ms=LATE_MS)
    ids = [fleet.region.request() for _ in range(3)]
    worker = fleet.start("a")
    fleet.run(LATE_MS)
    assert worker.claims_asked == 3
    assert not worker.submitted
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


def test_a_rebalance_puts_no_backlog_into_a_second_engine() -> None:
    fleet, first = reading(max_running=8)
    ids = [fleet.region.request(max_tokens=100, partition=number % 2) for number in range(16)]
    fleet.run(LATE_MS - 20)
    assert first.claims_on_their_way, "what is begun is not known to be its own yet"
    heir = fleet.start("b")
    fleet.run(LATE_MS)
    assert heir.claims_asked
    assert not heir.submitted
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}
    assert len(first.submitted) + len(heir.submitted) == len(ids)


def test_where_a_partition_s_end_is_not_known_everything_waits_for_its_claim() -> None:
    fleet = Fleet("a", claims_late_ms=LATE_MS)
    fleet.region.ends_known = False
    fleet.run(20)
    response_id = fleet.region.request()
    fleet.run(LATE_MS)
    assert not fleet.workers["a"].submitted
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_what_cannot_be_asked_for_waits_until_that_is_known() -> None:
    """The store is away: nothing was sent, so nothing is counted."""
    fleet, worker = reading()
    fleet.region.claims_up, fleet.region.claims_lost = False, True
    response_id = fleet.region.request()
    fleet.run(LATE_MS)
    assert not worker.submitted
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED


def test_a_copy_waits_for_its_claim_since_the_first_may_have_been_begun_elsewhere() -> None:
    fleet, worker = reading()
    response_id = fleet.region.request()
    fleet.region.stranger(response_id, lives=True)
    copy = fleet.region.requests[response_id].model_copy(update={"replayed": True})
    [record] = fleet.region.log.records(LANE, 0)
    worker.core.lane_records([replace(record, value=copy.encode())], fleet.region.now_ms)
    fleet.run(LATE_MS + 60)
    assert worker.claims_asked
    assert not worker.submitted
    assert len(fences(fleet, response_id)) == 1, "the other goes on"


def test_a_repeated_record_begins_nothing() -> None:
    fleet, worker = reading()
    response_id = fleet.region.request(max_tokens=30)
    fleet.run(60)
    fleet.region.repeat(response_id)
    fleet.settle()
    fleet.region.repeat(response_id)
    fleet.run(1_000)
    check(fleet.region)
    assert len(worker.submitted) == 1
    assert committed(fleet) == 3


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_waits_for_a_slot_while_its_partition_is_elsewhere_waits_for_its_claim_too(comes_back: bool) -> None:
    """Its look-up is on its way when the partition goes, so it is not forgotten."""
    fleet, worker = reading(max_running=1, claims_late_ms=2_000)
    fleet.region.request(max_tokens=5, partition=0)
    fleet.region.request(partition=1)
    fleet.run(40)
    elsewhere = TopicPartition(LANE, 1)
    worker.core.revoked([elsewhere])
    if comes_back:
        worker.core.assigned({elsewhere: Committed(None)}, {elsewhere: 1})
        worker.core.lane_records(fleet.region.log.records(LANE, 1), fleet.region.now_ms)
    fleet.run(1_000)
    assert worker.claims_asked == 3, "it has found a slot"
    assert len(worker.submitted) == 1


# What the answer can be


def test_a_claim_that_is_anothers_who_lives_stops_the_attempt_until_that_one_is_gone() -> None:
    fleet, worker = reading()
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.stranger(response_id, tokens=3, lives=True)
    fleet.region.voids_are_late = True
    fleet.run(LATE_MS + 40)
    assert worker.aborted == worker.submitted
    assert worker.core.unfinished_attempts == 0
    fleet.region.say_voids()
    fleet.run(LEASE_MS // 2)
    assert fleet.region.terminal(response_id) is None, "it is the other's"
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    assert len(fleet.region.tokens[response_id]) == 3
    assert [fence.kind for fence in fences(fleet, response_id)] == ["fresh", "fresh", "takeover"]


def test_a_claim_that_is_finished_stops_the_attempt_and_ends_the_record() -> None:
    fleet, worker = reading()
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.stranger(response_id, tokens=100, lives=True)
    [held] = fleet.region.claims._held.values()
    fleet.region.claims.finish(held.incarnation, FinishClaim(response_id))
    fleet.region.voids_are_late = True
    fleet.run(LATE_MS + 60)
    assert worker.aborted == worker.submitted
    assert committed(fleet) == 1


@pytest.mark.parametrize(
    ("tokens", "ending"), [(0, EndingCode.COMPLETED), (3, EndingCode.GENERATION_INTERRUPTED)], ids=["silent", "told"]
)
def test_a_claim_that_was_a_dead_workers_stops_the_attempt_which_takes_over(tokens: int, ending: EndingCode) -> None:
    """The answer is there before a token of its own is."""
    fleet, worker = reading(claims_late_ms=20)
    response_id = fleet.region.request()
    fleet.region.stranger(response_id, tokens=tokens)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is ending
    assert len(worker.aborted) == 1
    assert [fence.kind for fence in fences(fleet, response_id)] == ["fresh", "fresh", "takeover"]


def test_what_it_has_said_before_such_an_answer_is_kept_and_ended() -> None:
    fleet, _ = reading()
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.stranger(response_id)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    assert fleet.region.tokens[response_id]


def test_what_two_workers_died_with_is_stopped_and_tried_alone() -> None:
    fleet, worker = reading(claims_late_ms=20)
    fleet.region.request(max_tokens=50)
    fleet.run(40)
    suspect = fleet.region.request(max_tokens=5)
    fleet.region.stranger(suspect, losses=2)
    fleet.run(500)
    assert fleet.region.terminal(suspect) is None, "another is in the engine"
    assert len(worker.submitted) == 2
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(suspect) is EndingCode.COMPLETED
    outcomes = [record.outcome for record in fleet.region.records(TOPICS.usage.name, ComputeRecord, USAGE)]
    assert sorted(outcomes) == ["completed", "completed", "not_first", "tried_alone"]


def test_what_three_workers_died_with_is_stopped_and_ends() -> None:
    fleet, worker = reading(claims_late_ms=20)
    response_id = fleet.region.request()
    fleet.region.stranger(response_id, losses=3)
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED
    assert len(worker.submitted) == len(worker.aborted) == 1


def test_without_an_answer_it_goes_on_and_is_claimed_when_the_store_is_back() -> None:
    fleet, worker = reading()
    fleet.region.claims_up, fleet.region.claims_lost, fleet.region.claims_hang = False, True, True
    response_id = fleet.region.request(max_tokens=100)
    fleet.run(LATE_MS + 200)
    assert len(fleet.region.tokens[response_id]) > 5
    fleet.region.claims_up = True
    fleet.run(100)
    assert fleet.region.claims._held[response_id].incarnation == worker.incarnation
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert not worker.aborted


@pytest.mark.parametrize("claims_late_ms", [20, LATE_MS], ids=["silent", "told"])
@pytest.mark.parametrize("finishes_before", [True, False])
def test_an_end_that_its_own_fence_made_void_is_not_believed(claims_late_ms: int, finishes_before: bool) -> None:
    """The other holds the claim and has said nothing: from this worker's fence on, nothing that it says counts."""
    fleet, worker = reading(claims_late_ms=claims_late_ms)
    fleet.region.voids_are_late = True
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.stranger(response_id, lives=True)
    [held] = fleet.region.claims._held.values()
    if finishes_before:
        fleet.region.claims.finish(held.incarnation, FinishClaim(response_id))
    fleet.run(claims_late_ms + 40)
    if not finishes_before:
        fleet.region.claims.finish(held.incarnation, FinishClaim(response_id))
    fleet.settle(limit_ms=20_000)
    check(fleet.region)
    assert committed(fleet) == 1
    assert worker.core.unfinished_attempts == 0


# Around the answer


def test_an_answer_that_has_ended_is_believed_once_its_claim_is_known() -> None:
    fleet, worker = reading(claims_late_ms=1_000)
    response_id = fleet.region.request(max_tokens=3)
    fleet.run(500)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert committed(fleet) == 0
    fleet.run(1_000)
    assert committed(fleet) == 1
    assert [effect for effect in worker.effects_seen if isinstance(effect, FinishClaim)]


@pytest.mark.parametrize("lives", [True, False])
def test_an_end_that_came_behind_another_s_tokens_is_not_believed(lives: bool) -> None:
    fleet, worker = reading(claims_late_ms=1_000)
    response_id = fleet.region.request(max_tokens=10)
    fleet.region.stranger(response_id, tokens=3, lives=lives)
    fleet.region.voids_are_late = True
    fleet.run(900)
    assert worker.core.unfinished_attempts == 1, "all is said and acknowledged"
    assert committed(fleet) == 0
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED


def test_who_is_told_that_its_attempt_is_void_before_the_answer_asks_again_and_gives_back_what_it_got() -> None:
    fleet, worker = reading(claims_late_ms=500)
    response_id = fleet.region.request(max_tokens=100)
    fleet.region.stranger(response_id, tokens=3)
    fleet.run(560)
    assert worker.aborted == worker.submitted
    assert fleet.region.claims._held[response_id].begun == 1, "an attempt that does not count is no loss"
    assert fleet.region.claims._held[response_id].incarnation == ""
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED


def test_a_request_that_kills_its_worker_before_the_answer_has_been_counted() -> None:
    fleet, _ = reading()
    killer = fleet.poison(fleet.region.request(), kills_worker=True)
    fleet.run(100)
    assert not fleet.workers
    assert fleet.region.claims._held[killer].begun == 1
    fleet.settle("bcd")
    assert fleet.region.terminal(killer) is EndingCode.ENGINE_FAILED


def test_a_cancel_before_the_answer_ends_it_with_what_it_said() -> None:
    fleet, worker = reading(claims_late_ms=1_000)
    response_id = fleet.region.request(max_tokens=100)
    fleet.run(200)
    fleet.region.cancel(response_id)
    fleet.run(100)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert [effect for effect in worker.effects_seen if isinstance(effect, Abort)]
    fleet.run(1_000)
    check(fleet.region)
    assert committed(fleet) == 1


def test_the_fence_stands_before_the_request_enters_the_engine() -> None:
    fleet, worker = reading()
    fleet.region.request()
    fleet.run(20)
    begun = [each for each in worker.effects_seen if isinstance(each, Submit | AskClaim)]
    at = worker.effects_seen.index(begun[-1])
    assert isinstance(worker.effects_seen[at - 1], Publish)
