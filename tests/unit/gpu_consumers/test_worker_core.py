"""What a worker does with requests: answers, frames, cancels, deadlines, heartbeats."""

from dataclasses import replace

import pytest

from gpu_consumers.core.claims import ClaimTable
from gpu_consumers.engines.port import EngineDelta, EngineStats
from schemas.base import Scope
from schemas.control import Halt
from schemas.dead_letter import DeadLetter
from schemas.endings import EndingCode
from schemas.generated import Ending, QueueAhead
from schemas.request import LANES, Lane, ReplyTo
from schemas.worker import LaneQueue, WorkerState
from streams.brownout import BrownoutPolicy
from streams.log.port import TopicPartition
from streams.queue_place import place_now
from tests.unit.gpu_consumers.fleet import CONFIG, LEASE_MS, NOW_MS, SCOPE, TOPICS, Fleet, check


def test_a_request_is_answered_in_full_and_its_offset_committed() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert fleet.region.log.committed("workers.pool", source).offset == 1
    [compute] = fleet.region.computed()
    assert (compute.outcome, compute.generated_tokens, compute.prompt_tokens) == ("completed", 12, 4)
    [fence] = fleet.region.fences()
    assert NOW_MS <= fence.stage_ms["taken"] <= fence.stage_ms["worker"]


def test_under_load_steps_leave_together_but_a_first_and_a_last_token_at_once() -> None:
    fleet = Fleet("a")
    fleet.region.request(max_tokens=12)
    fleet.settle()
    frames = fleet.region.frames()
    assert [[len(tokens) for tokens in frame.token_ids] for frame in frames] == [[1], [3], [3], [3], [2]]
    assert [frame.first_sequence for frame in frames] == [[1], [2], [5], [8], [11]]
    assert [frame.finish for frame in frames] == [[""], [""], [""], [""], ["length"]]
    # A frame is as old as its oldest token: waiting counts as latency.
    ages_us = [later.emitted_at_us - frames[0].emitted_at_us for later in frames]
    assert ages_us == [0, 20_000, 80_000, 140_000, 200_000]


def test_what_ends_an_answer_comes_behind_the_tokens_that_waited() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=100)
    fleet.run_until_told(response_id, tokens=4)
    fleet.run(20)
    fleet.region.cancel(response_id)
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert len(fleet.region.tokens[response_id]) > 4


def test_a_late_engine_gives_several_steps_at_once_and_their_order_stays() -> None:
    fleet = Fleet("a")
    early = fleet.region.request(max_tokens=30)
    fleet.run_until_told(early, tokens=4)
    fleet.run(20)  # rows wait now
    late = [fleet.region.request(max_tokens=30) for _ in range(3)]
    fleet.workers["a"].late_rounds = 2
    fleet.settle()
    check(fleet.region)
    assert all(fleet.region.terminal(each) is EndingCode.COMPLETED for each in (early, *late))


def test_a_whole_answer_in_one_late_step_stays_in_its_order() -> None:
    """Its first token leaves at once, its middle might wait for the next step, and its end comes with it."""
    fleet = Fleet("a")
    early = fleet.region.request(max_tokens=30)
    fleet.run_until_told(early, tokens=4)
    fleet.run(20)  # its row waits now
    core = fleet.all[0].core
    fleet.region.request(max_tokens=30)
    short = fleet.region.request(max_tokens=3)
    fleet.workers["a"].late_rounds = 1  # what the engine gives instead is told here
    fleet.run(20)
    attempt_id = core._works.by_response[short].attempt_id
    middle = [EngineDelta(attempt_id, 0, [token], "x", [1]) for token in (1, 2)]
    end = EngineDelta(attempt_id, 0, [3], "x", [1], finish="length")
    core.deltas([*middle, end], (fleet.region.now_ms + 5) * 1_000)
    fleet.run(100)
    assert fleet.region.terminal(short) is EndingCode.COMPLETED
    assert fleet.region.tokens[short] == [1, 2, 3]


def test_text_without_a_token_fails_its_own_request_alone() -> None:
    """Nobody could say which sequence number it has."""
    fleet = Fleet("a", coalesce_ms=0)
    ids = [fleet.region.request(max_tokens=20) for _ in range(4)]
    fleet.run_until_told(ids[0], tokens=4)
    core = fleet.all[0].core
    attempt_id = core._works.by_response[ids[0]].attempt_id
    core.deltas([EngineDelta(attempt_id, 0, [], "a rest", [], finish="stop")], (fleet.region.now_ms + 5) * 1_000)
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(ids[0]) is EndingCode.ENGINE_FAILED
    assert {fleet.region.terminal(each) for each in ids[1:]} == {EndingCode.COMPLETED}


def test_one_step_makes_one_record_per_partition_and_scopes_are_shared_without_trace() -> None:
    fleet = Fleet("a", max_running=8, coalesce_ms=0)
    for _ in range(8):
        fleet.region.request(max_tokens=10)
    fleet.settle()
    frames = fleet.region.frames()
    assert len(frames) == 20
    assert all(len(frame) == 4 and frame.scopes == [Scope(tenant_id="acme")] for frame in frames)


def test_higher_lanes_enter_the_engine_first() -> None:
    fleet = Fleet("a", max_running=1)
    batch = [fleet.region.request(Lane.BATCH) for _ in range(2)]
    urgent = fleet.region.request(Lane.INTERACTIVE)
    fleet.settle()
    fences = [fence.response_id for fence in fleet.region.fences()]
    order = [record.value for record in fleet.region.log.records(TOPICS.usage.name)]
    assert set(fences) == {*batch, urgent}
    ended = sorted(fleet.region.computed(), key=lambda record: int(record.attempt_id[4:]))
    assert [record.response_id for record in ended] == [urgent, *batch]
    assert len(order) == 3


def test_a_running_request_is_cancelled_after_what_it_said() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(max_tokens=500)
    fleet.run(400)
    fleet.region.cancel(response_id)
    fleet.run(100)
    check(fleet.region)
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert 5 < len(fleet.region.tokens[response_id]) < 30
    [worker] = fleet.all
    assert worker.engine is not None
    assert worker.engine.stats() == EngineStats(kv_blocks_total=1_000, block_tokens=16, shares_prefixes=True)


def test_what_a_budget_has_no_room_for_ends_as_that_whether_it_runs_or_waits() -> None:
    fleet = Fleet("a", max_running=1)
    running, waiting = fleet.region.request(max_tokens=500), fleet.region.request()
    fleet.run(400)
    for response_id in (running, waiting):
        fleet.region.cancel(response_id, "budget")
    fleet.run(100)
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in (running, waiting)} == {EndingCode.BUDGET_EXHAUSTED}
    assert len(fleet.region.tokens[running]) > 5, "what was generated is billed"


def test_a_waiting_request_is_cancelled_without_entering_the_engine() -> None:
    fleet = Fleet("a", max_running=1)
    first, second = fleet.region.request(max_tokens=100), fleet.region.request()
    fleet.run(200)
    fleet.region.cancel(second)
    fleet.run(100)
    assert fleet.region.terminal(second) is EndingCode.CANCELLED
    assert len(fleet.all[0].submitted) == 1
    fleet.settle()
    assert fleet.region.terminal(first) is EndingCode.COMPLETED


@pytest.mark.parametrize("claims_lost", [False, True])
def test_a_halt_stops_the_generation_silently_and_nobody_begins_it_again_while_its_ending_is_on_the_way(
    claims_lost: bool,
) -> None:
    fleet = Fleet("a", "b")
    response_id = fleet.region.request(max_tokens=500)
    fleet.run(300)
    [began] = [name for name, worker in fleet.workers.items() if worker.submitted]
    fleet.region.control(Halt(response_id=response_id, scope=SCOPE, reason="safety"))
    fleet.run(100)
    assert len(fleet.workers[began].aborted) == 1
    fleet.crash(began)
    if claims_lost:
        fleet.region.claims, fleet.region.claims_lost = ClaimTable(LEASE_MS), True
    fleet.run(10_000)
    assert sum(len(worker.submitted) for worker in fleet.all) == 1
    ending = Ending(
        response_id=response_id, scope=SCOPE, code=EndingCode.SAFETY_HALTED, written_by="post-safety",
        reply_to=ReplyTo(partition=0), accepted_at_ms=0,
    )  # fmt: skip
    fleet.region.log.append(TOPICS.generated.name, ending.encode(), partition=0)
    fleet.run(1_000)
    assert fleet.region.terminal(response_id) is EndingCode.SAFETY_HALTED
    assert len(fleet.region.endings()) == 1


@pytest.mark.parametrize("max_running", [1, 4])
def test_a_deadline_ends_running_and_waiting_work(max_running: int) -> None:
    fleet = Fleet("a", max_running=max_running)
    ids = [fleet.region.request(max_tokens=500, deadline_ms=NOW_MS + 1_000) for _ in range(2)]
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(response_id) for response_id in ids} == {EndingCode.DEADLINE_EXCEEDED}
    assert len(fleet.all[0].submitted) == min(max_running, 2)


def test_a_record_that_cannot_be_read_goes_to_dead_letters_and_the_next_is_served() -> None:
    fleet = Fleet("a")
    fleet.region.log.append(TOPICS.lane("pool", Lane.STANDARD).name, b'{"schema_version": 9}')
    fleet.region.claims_lost = True  # the harness cannot read it either
    response_id = fleet.region.request()
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    [letter] = fleet.region.log.records(TOPICS.dead_letters.name)
    assert DeadLetter.model_validate_json(letter.value or b"").reason == "unknown_version"
    source = TopicPartition(TOPICS.lane("pool", Lane.STANDARD).name, 0)
    assert fleet.region.log.committed("workers.pool", source).offset == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_token_ids", [1, -1]),
        ("prompt_token_ids", [2**32]),
        ("generated_partition", 2),
        ("generated_partition", 2**70),
    ],
)
def test_a_record_that_can_be_read_and_not_be_worked_at_goes_to_dead_letters_too(field: str, value: object) -> None:
    fleet = Fleet("a")
    lane = TOPICS.lane("pool", Lane.STANDARD).name
    fleet.region.request()
    [admitted] = fleet.region.requests.values()
    bad = admitted.model_copy(update={"response_id": "resp_test-0_" + "f" * 32, field: value})
    fleet.region.log.append(lane, bad.encode())
    fleet.region.claims_lost = True  # its response is post-safety's to end, at its deadline
    after = fleet.region.request()
    fleet.settle()
    assert {fleet.region.terminal(each) for each in fleet.region.requests} == {EndingCode.COMPLETED}
    assert after in fleet.region.requests
    [letter] = [
        DeadLetter.model_validate_json(r.value or b"") for r in fleet.region.log.records(TOPICS.dead_letters.name)
    ]
    assert (letter.reason, letter.offset, letter.detail.split(":")[0]) == ("invalid", 1, field)
    assert fleet.region.log.committed("workers.pool", TopicPartition(lane, 0)).offset == 3


def test_the_heartbeat_says_what_waits_and_what_is_consumed() -> None:
    fleet = Fleet("a", max_running=1)
    for _ in range(3):
        fleet.region.request(max_tokens=100)
    fleet.run(200)
    [worker] = fleet.all
    assert worker.engine is not None
    state = worker.core.state("ready", worker.engine.stats(), 50.0, True, fleet.region.now_ms)
    assert (state.running, state.waiting, state.queued_tokens) == (1, 2, 208)
    assert (state.queued_of, state.waiting_of) == ({"acme": 208}, {"acme": 2})
    assert state.oldest_waiting_ms == 180
    assert state.queues[Lane.STANDARD] == LaneQueue(waiting=2, left=1, left_tokens=104, oldest_ms=180, first_tokens=1)
    assert state.queues[Lane.BATCH] == LaneQueue()
    assert worker.core.state("ready", EngineStats(), 0.0, True, 10**14).counts_since_ms == state.counts_since_ms > 0
    assert state.lane_partitions == {lane: [0, 1] for lane in LANES}


def test_what_waits_in_the_engine_for_its_batch_has_not_left_its_lane() -> None:
    """Else who comes next would be told that it is next, and waits for eight."""
    fleet = Fleet("a", max_running=2, config=replace(CONFIG, healthy_buffer=8))
    [worker] = fleet.all
    for _ in range(14):
        fleet.region.request(max_tokens=20)

    def told() -> WorkerState:
        assert worker.engine is not None
        return worker.core.state("ready", worker.engine.stats(), 50.0, True, fleet.region.now_ms)

    fleet.run(200)
    first = told()
    standard = first.queues[Lane.STANDARD]
    assert worker.core.waiting()[Lane.STANDARD] == 4, "ten have a slot, and two of them are in the batch"
    assert (standard.waiting, standard.left, standard.left_tokens) == (12, 2, 2 * 24)
    assert standard.oldest_ms >= 100
    newcomer = fleet.region.request(max_tokens=20)
    queued = QueueAhead(worker_id="a", before=12, wait_ms=None, left=2, counts_since_ms=first.counts_since_ms)
    befores = [12]
    fleet.run(20)
    while not fleet.region.prefixes[newcomer].accepted_tokens:
        fleet.run(20)
        place = place_now(queued, Lane.STANDARD, told(), None)
        assert place is not None
        befores.append(place.before)
    assert befores == sorted(befores, reverse=True)
    assert set(befores) >= {12, 10, 8, 6, 4, 2, 0}, "as the batch takes them"
    assert befores.count(0) <= befores.count(4) + 5, "who hears that it is next is: no more than one turn passes"


def test_the_heartbeat_says_how_many_first_tokens_were_late() -> None:
    policy = BrownoutPolicy.model_validate({"standard": {"first_token_ms": 100}})
    fleet = Fleet("a", max_running=1, config=replace(CONFIG, brownout=policy))
    for lane in (Lane.STANDARD, Lane.STANDARD, Lane.INTERACTIVE, Lane.BATCH):
        fleet.region.request(lane, max_tokens=20)
    fleet.settle()
    [worker] = fleet.all
    queues = worker.core.state("ready", EngineStats(), 50.0, True, fleet.region.now_ms).queues
    told = {lane: (queue.first_tokens, queue.late_first_tokens) for lane, queue in queues.items()}
    assert told == {Lane.INTERACTIVE: (1, 0), Lane.STANDARD: (2, 2), Lane.BATCH: (0, 0)}, "nobody waits for a batch's"


def test_what_another_worker_goes_on_with_has_not_left_the_queue() -> None:
    """Else whoever waits would be told that it is next, and the queue would seem to empty fast."""
    fleet = Fleet("a", max_running=1)
    for _ in range(3):
        fleet.region.request(max_tokens=100)
    fleet.run(200)
    [worker] = fleet.all
    lane = TOPICS.lane("pool", Lane.STANDARD)
    worker.core.revoked([TopicPartition(lane.name, number) for number in range(lane.partitions)])
    state = worker.core.state("ready", EngineStats(), 50.0, True, fleet.region.now_ms)
    assert state.queues[Lane.STANDARD] == LaneQueue(waiting=0, left=1, left_tokens=104, first_tokens=1)
