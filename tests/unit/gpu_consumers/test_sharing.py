"""A worker shares its slots between tenants and lanes, whatever came first and whatever ends how."""

from array import array

from gpu_consumers.core.capacity import Capacity
from gpu_consumers.core.scheduler import Sizes
from gpu_consumers.core.slots import Slots
from gpu_consumers.core.work import Work, Works
from gpu_consumers.engines.port import EngineStats
from schemas.endings import EndingCode
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.lane_policy import LANE_POLICIES
from tests.unit.gpu_consumers.fleet import SCOPE, TOPICS, Fleet, Worker, check


def begun(fleet: Fleet) -> list[str]:
    """Whose answers were begun, in this order."""
    fences = sorted(fleet.region.fences(), key=lambda fence: fence.stage_ms["worker"])
    return [fence.scope.tenant_id for fence in fences]


def served(worker: Worker, tenant_id: str) -> float:
    worker.core.tick(worker.region.now_ms)
    return worker.core._slots._scheduler._lanes[Lane.STANDARD].shared.served(tenant_id)


def test_a_tenants_backlog_keeps_nobody_else_waiting() -> None:
    fleet = Fleet("a", max_running=2)
    flood = [fleet.region.request(tenant_id="flood") for _ in range(40)]
    fleet.run(500)
    small = [fleet.region.request(tenant_id="small") for _ in range(2)]
    fleet.run(1_500)
    assert [fleet.region.terminal(each) for each in small] == [EndingCode.COMPLETED] * 2
    assert fleet.region.terminal(flood[-1]) is None
    fleet.settle()
    check(fleet.region)


def test_the_weight_of_a_tenant_comes_with_its_requests() -> None:
    fleet = Fleet("a", max_running=2)
    for _ in range(25):
        fleet.region.request(tenant_id="heavy", weight=4)
        fleet.region.request(tenant_id="light")
    fleet.settle()
    order = begun(fleet)
    assert order[:25].count("heavy") in range(19, 22)
    assert len(order) == 50


def told(worker: Worker, **fields: object) -> WorkerState:
    """Its heartbeat, after which it shares with what others have told."""
    state = worker.core.state("ready", EngineStats(), 0.0, True, worker.region.now_ms)
    return state.model_copy(update=fields)


def test_what_another_worker_gives_counts_here_too() -> None:
    fleet = Fleet("a", max_running=1)
    for tenant_id in ("everywhere", "here"):
        for _ in range(40):
            fleet.region.request(tenant_id=tenant_id, max_tokens=10)
    [worker] = fleet.all
    for beat in range(1, 9):
        fleet.run(1_000)
        worker.core.heard(told(worker, worker_id="b", given_of={Lane.STANDARD: {"everywhere": 1_000 * beat}}))
    order = begun(fleet)
    assert order.count("here") > 2 * order.count("everywhere") > 0
    fleet.settle()
    check(fleet.region)


def test_a_worker_that_is_started_again_knows_whose_turn_it_was() -> None:
    fleet = Fleet("a", max_running=1)
    for _ in range(3):
        fleet.region.request(tenant_id="early", max_tokens=30)
    fleet.region.request(tenant_id="late", max_tokens=30)
    fleet.run(100)
    [worker] = fleet.all
    before = told(worker, ahead_of={Lane.STANDARD: {"early": 500}})
    fleet.crash("a")
    heir = fleet.start("a")
    own = told(heir)
    for state in (before, own, own):
        heir.core.heard(state)
    assert served(heir, "early") - served(heir, "late") == 500
    fleet.settle()
    check(fleet.region)


def test_who_reads_the_lane_after_a_crash_shares_it_too() -> None:
    """What each was given before is another worker's: they begin anew, beside each other."""
    fleet = Fleet("a", max_running=2)
    for _ in range(40):
        fleet.region.request(tenant_id="flood", max_tokens=30)
    small = [fleet.region.request(tenant_id="small", max_tokens=30) for _ in range(6)]
    fleet.run(300)
    fleet.crash("a")
    fleet.start("b")
    fleet.settle("b")
    check(fleet.region)
    ended = [each for each in fleet.region.requests if fleet.region.terminal(each) is EndingCode.COMPLETED]
    assert set(small) <= set(ended)
    assert max(index for index, tenant_id in enumerate(begun(fleet)) if tenant_id == "small") < 25


def test_an_answer_costs_what_it_came_to() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    long, short = fleet.region.request(max_tokens=700), fleet.region.request(tenant_id="short", max_tokens=700)
    fleet.run(1_000)
    expected = 4 + 2 * 257
    assert (served(worker, "acme"), served(worker, "short")) == (expected, expected)
    fleet.region.cancel(short)
    fleet.run(100)
    told = len(fleet.region.tokens[short])
    assert 4 + 2 * told <= served(worker, "short") <= 4 + 2 * (told + 4), "its last tokens may be on their way"
    fleet.run_until_told(long, tokens=300)
    assert served(worker, "acme") > expected, "while it runs"
    fleet.settle()
    assert served(worker, "acme") == 4 + 2 * 700


def test_what_was_not_ours_costs_nothing() -> None:
    fleet = Fleet("a", max_running=1)
    fleet.region.claims_up = False
    fleet.region.request(tenant_id="acme")
    fleet.settle()
    assert served(fleet.all[0], "acme") == 4 + 2 * 12
    fleet.region.claims_up = True
    asked = fleet.region.request(tenant_id="other")
    copy = fleet.region.requests[asked]
    fleet.settle()
    before = served(fleet.all[0], "other")
    fleet.region.log.append(TOPICS.lane("pool", Lane.STANDARD).name, copy.encode(), partition=0)
    fleet.run(500)
    assert served(fleet.all[0], "other") == before, "the claims say that it has ended"


def test_batch_work_goes_on_beside_a_flood_of_the_lanes_above_it_and_is_not_given_way_in_the_engine() -> None:
    fleet = Fleet("a", max_running=20)
    for _ in range(80):
        fleet.region.request(Lane.INTERACTIVE, max_tokens=60)
    fleet.run(500)
    jobs = [fleet.region.request(Lane.BATCH, max_tokens=20) for _ in range(4)]
    fleet.run(1_500)
    [worker] = fleet.all
    engine = worker.engine
    assert engine is not None
    running = [each.request for choices in engine._requests.values() for each in choices.values()]
    assert {request.priority for request in running} == {0}
    fleet.run(1_500)
    assert [fleet.region.terminal(each) for each in jobs] == [EndingCode.COMPLETED] * 4
    assert len([each for each in fleet.region.open_responses() if each not in jobs]) > 20
    fleet.settle()
    check(fleet.region)


def test_a_lane_has_starved_since_its_work_was_queued_first_whatever_that_was_taken_out_for() -> None:
    region, works = Fleet().region, Works()
    slots = Slots(Sizes(4), LANE_POLICIES, works, Capacity())
    for lane in (Lane.BATCH, Lane.INTERACTIVE):
        response_id = region.request(lane)
        works.by_response[response_id] = Work(region.requests[response_id], array("I", [7]), 1, SCOPE)
    job, chat = works.by_response.values()
    starves_after_ms = LANE_POLICIES.of(Lane.BATCH).starves_after_ms
    slots.queue(job, 0, front=False)
    slots.remove(job)
    slots.queue(job, starves_after_ms - 1, front=True)
    slots.queue(chat, starves_after_ms - 1, front=False)
    given = slots.take(starves_after_ms)
    assert given is not None
    assert (given.item.response_id, given.why) == (job.response_id, "starving")


def test_whatever_becomes_of_answers_their_slots_are_free_again() -> None:
    fleet = Fleet("a", "b", max_running=3)
    ids = [
        fleet.region.request(lane, max_tokens=40, choices=1 + number % 3, tenant_id=f"t{number % 4}")
        for number, lane in enumerate(LANES * 10)
    ]
    fleet.run(400)
    fleet.region.cancel(ids[0])
    fleet.workers["a"].kill_engine = True
    fleet.run(400)
    fleet.crash("b")
    fleet.settle("ab")
    check(fleet.region)
    for worker in fleet.workers.values():
        held = worker.core._works.held
        assert held.total == worker.core.kv_blocks_reserved == 0
        assert not held._of_tenant
        for counts in (held.of_lane, held.on_floor, held.silent):
            assert set(counts.values()) == {0}
