"""A worker lets in what its engine's memory has room for, and tells who can never have any."""

from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from gpu_consumers.core.capacity import MemoryPolicy
from gpu_consumers.engines.port import EngineStats
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.metrics import WorkerMetrics
from schemas.endings import EndingCode
from schemas.request import Lane
from tests.unit.gpu_consumers.fleet import CONFIG, ENGINE, SCOPE, Fleet, Worker, check

BLOCKS_TOKENS = 16_000
"""What all blocks of a fleet's engines hold."""


def small_memory(worker: Worker) -> Worker:
    """From now on its engines have a tenth of it."""
    worker._new_engine = partial(SimulatedCore, ENGINE.model_copy(update={"kv_blocks": 100}))
    return worker


def test_what_never_fits_is_refused_by_name_before_any_gpu_work() -> None:
    fleet = Fleet("a")
    too_long, beside = fleet.region.request(prompt=BLOCKS_TOKENS), fleet.region.request()
    fleet.settle()
    check(fleet.region)
    assert fleet.region.terminal(beside) is EndingCode.COMPLETED
    assert fleet.region.terminal(too_long) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    [ending] = fleet.region.endings()
    assert (ending.message, ending.param) == (
        "The prompt has 16000 tokens, and the memory of the engine that serves this model has room for 15999.",
        "messages",
    )
    assert len(fleet.all[0].submitted) == 1


def test_who_can_never_have_room_waits_for_nobody() -> None:
    fleet = Fleet("a")
    fleet.region.request(prompt=12_000, max_tokens=1_000)
    fleet.run(200)
    too_long = fleet.region.request(prompt=BLOCKS_TOKENS)
    fleet.run(200)
    assert fleet.region.terminal(too_long) is EndingCode.CONTEXT_LENGTH_EXCEEDED


def test_large_prompts_wait_for_room_while_short_ones_flow_and_the_engine_preempts_nobody() -> None:
    fleet = Fleet("a", max_running=20)
    large = [fleet.region.request(prompt=6_000, max_tokens=300, tenant_id="large") for _ in range(6)]
    for _ in range(60):
        short = fleet.region.request(max_tokens=20, tenant_id="small")
        fleet.run(900)
        assert fleet.region.terminal(short) is EndingCode.COMPLETED
        engine = fleet.all[0].engine
        assert engine is not None
        assert engine.stats().waiting == engine.stats().preemptions == 0
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in large} == {EndingCode.COMPLETED}


def test_by_count_alone_the_engine_has_to_find_room_itself() -> None:
    config = replace(CONFIG, memory=MemoryPolicy(foresight=0))
    fleet = Fleet("a", max_running=20, config=config)
    for _ in range(6):
        fleet.region.request(prompt=6_000, max_tokens=300)
    fleet.run(200)
    [worker] = fleet.all
    assert worker.engine is not None
    assert worker.engine.stats().waiting > 0
    assert worker.core.kv_blocks_reserved == 0
    fleet.settle()
    check(fleet.region)


def test_what_an_answer_said_before_counts_where_it_goes_on() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(prompt=1_600, max_tokens=800)
    fleet.run_until_told(response_id, 400)
    fleet.crash("a")
    heir = fleet.start("b")
    while not heir.submitted:
        fleet.run(20)
    assert heir.core.kv_blocks_reserved >= (1_600 + 400) // 16
    fleet.settle()
    check(fleet.region)
    assert heir.core.kv_blocks_reserved == 0


def test_what_goes_on_of_several_choices_is_not_held_against_those_that_have_ended() -> None:
    """All that was said comes to more than the memory, and goes into the engine no more."""
    fleet = Fleet("a", max_running=8)
    region = fleet.region
    response_id = region.request(prompt=14_000, max_tokens=500, choices=8, ignore_eos=False)
    fleet.run_until_told(response_id, 1)
    while len(region.prefixes[response_id].finished) < 7:
        fleet.run(20)
    assert region.terminal(response_id) is None
    assert len(region.tokens[response_id]) > BLOCKS_TOKENS - 14_000
    fleet.crash("a")
    heir = fleet.start("b")
    fleet.settle()
    check(region)
    assert region.terminal(response_id) is EndingCode.COMPLETED
    assert heir.core.kv_blocks_reserved == 0


def test_what_has_begun_in_a_larger_memory_is_interrupted_where_it_never_fits() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request(prompt=1_600, max_tokens=300)
    fleet.run_until_told(response_id, 10)
    fleet.crash("a")
    small_memory(fleet.start("b"))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.GENERATION_INTERRUPTED
    [ending] = fleet.region.endings()
    told = len(fleet.region.tokens[response_id])
    assert ending.param is None
    assert ending.message.endswith(
        f"{told} tokens of it came, and it is not continued: with its prompt it is longer than the 1599 tokens that "
        "the engine's memory has room for."
    )


def test_what_runs_elsewhere_is_not_refused_by_a_smaller_memory_without_claims() -> None:
    fleet = Fleet("a")
    ids = [fleet.region.request(prompt=6_000, max_tokens=100, partition=partition) for partition in (0, 1)]
    fleet.run(300)
    assert len(fleet.all[0].submitted) == 2
    fleet.region.claims_up = False
    small_memory(fleet.start("b"))
    fleet.settle()
    check(fleet.region)
    assert {fleet.region.terminal(each) for each in ids} == {EndingCode.COMPLETED}


def test_what_never_fits_is_refused_once_the_claims_are_back() -> None:
    fleet = Fleet("a")
    fleet.region.claims_up = False
    too_long = fleet.region.request(prompt=BLOCKS_TOKENS)
    fleet.run(3_000)
    assert fleet.region.terminal(too_long) is None
    fleet.region.claims_up = True
    fleet.settle()
    assert fleet.region.terminal(too_long) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    assert not fleet.all[0].submitted


def test_what_is_refused_by_its_next_engine_is_charged_to_nobody() -> None:
    """It was claimed while the first one was lost, and is given a slot of the second."""
    fleet = Fleet("a")
    [worker] = fleet.all
    fleet.run(20)
    worker.claims_are_late = True
    response_id = fleet.region.request(prompt=1_600)
    fleet.run(20)
    arriving, worker.claims_on_their_way = worker.claims_on_their_way, []
    worker.kill_engine, worker.engine_starts = True, False
    fleet.run(20)
    worker.claims_on_their_way = arriving
    fleet.run(20)
    small_memory(worker).engine_starts = True
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CONTEXT_LENGTH_EXCEEDED
    lane = worker.core._slots._scheduler._lanes[Lane.STANDARD].shared
    assert lane.served(SCOPE.tenant_id) == 0
    assert not lane._charges


def test_a_worker_that_embeds_counts_no_memory() -> None:
    assert CONFIG.memory_policy == CONFIG.memory
    assert replace(CONFIG, dimensions=8).memory_policy.foresight == 0


def test_preemptions_are_counted_over_the_starts_of_an_engine() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    for preemptions in (0, 2, 2, 5, 0, 1):
        metrics.memory(EngineStats(0, 0, 30, 100, 16, True, preemptions), 40)
    shown = ("preemptions_total", "kv_blocks", "kv_blocks_used", "kv_blocks_reserved")
    assert [registry.get_sample_value(f"sluice_worker_{name}") for name in shown] == [6, 100, 30, 40]
