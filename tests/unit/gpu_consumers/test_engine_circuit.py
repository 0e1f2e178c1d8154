"""An engine that fails request after request is given one at a time, and routers are told so."""

from dataclasses import replace

from gpu_consumers.core.engine_circuit import JITTER_SHARE, CircuitPolicy, EngineCircuit
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.endings import EndingCode
from schemas.worker import EngineFailing
from tests.unit.gpu_consumers.fleet import CONFIG, ENGINE, Fleet, Worker, delta

POLICY = CircuitPolicy(failures=3, of=6, open_ms=1_000)
FAILS = ENGINE.model_copy(update={"refuse_every": 1})


def failing_fleet() -> tuple[Fleet, Worker]:
    fleet = Fleet("a", config=replace(CONFIG, circuit=POLICY), max_running=2)
    worker = fleet.workers["a"]
    worker._new_engine = lambda: SimulatedCore(FAILS)
    return fleet, worker


def endings(fleet: Fleet) -> list[EndingCode]:
    return [code for each in fleet.region.requests if (code := fleet.region.terminal(each)) is not None]


def until_it_opens(fleet: Fleet, worker: Worker) -> EngineFailing:
    for _ in range(200):
        fleet.run(20)
        if (failing := worker.core.failing) is not None:
            return failing
    raise AssertionError("it never opened")


def test_what_waits_is_kept_while_its_engine_fails_and_answered_when_it_works() -> None:
    fleet, worker = failing_fleet()
    for _ in range(12):
        fleet.region.request()
    failing = until_it_opens(fleet, worker)
    eaten = len(endings(fleet))
    assert 3 <= eaten <= 5, "those that were in the engine by then, and no others"
    assert (failing.failed, failing.attempts) == (3, 3)
    while fleet.region.now_ms < failing.until_ms - 50:
        fleet.run(20)
    assert len(endings(fleet)) == eaten, "nobody enters it meanwhile"
    fleet.run(100)
    assert len(endings(fleet)) == eaten + 1, "one tried"
    again = worker.core.failing
    assert again is not None
    assert again.until_ms - fleet.region.now_ms > POLICY.open_ms, "longer each time"
    assert worker.engine is not None
    worker.engine.settings = ENGINE
    fleet.run(20_000)
    assert worker.core.failing is None
    codes = endings(fleet)
    assert (codes.count(EndingCode.ENGINE_FAILED), codes.count(EndingCode.COMPLETED)) == (eaten + 1, 12 - eaten - 1)


def test_an_engine_that_fails_some_is_given_all() -> None:
    """A client's own requests may be what it fails on."""
    fleet, worker = failing_fleet()
    worker._new_engine = lambda: SimulatedCore(ENGINE.model_copy(update={"refuse_every": 4}))
    for _ in range(40):
        fleet.region.request(max_tokens=2)
    fleet.run(20_000)
    assert worker.core.failing is None
    assert endings(fleet).count(EndingCode.ENGINE_FAILED) == 10


def test_an_engine_whose_answers_cannot_be_parsed_does_not_count_as_failing() -> None:
    fleet = Fleet("a", config=replace(CONFIG, circuit=POLICY))
    for _ in range(2 * POLICY.failures):
        response_id, attempt_id = fleet.told_here()
        fleet.says(delta(attempt_id, error="its parser failed: KeyError", parser_error="KeyError"))
        fleet.run(40)
        assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED
    assert fleet.workers["a"].core.failing is None


def test_of_an_engine_that_dies_each_death_counts_once() -> None:
    fleet, worker = failing_fleet()
    worker._new_engine = lambda: SimulatedCore(ENGINE)
    for _ in range(4):
        fleet.region.request(max_tokens=40)
    for deaths in range(1, 4):
        assert worker.core.failing is None
        while worker.core._works.silent_since_ms is None:
            fleet.run(20)
        worker.kill_engine = True
        fleet.run(20)
        assert worker.deaths == deaths
    assert worker.core.failing is not None


def test_workers_do_not_try_together_and_none_much_later_than_it_may() -> None:
    until = set[int]()
    for number in range(20):
        circuit = EngineCircuit(POLICY, f"worker-{number}")
        for _ in range(3):
            circuit.failed(0, 0)
        failing = circuit.failing()
        assert failing is not None
        until.add(failing.until_ms)
    assert len(until) > 10
    assert POLICY.open_ms <= min(until) <= max(until) <= POLICY.open_ms * (1 + 1 / JITTER_SHARE)
