"""What a heartbeat says of the prefix cache is of the last minute."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from gpu_consumers.core.prompt_hits import HALF_MS, PromptHits
from gpu_consumers.engines.port import EngineStats
from gpu_consumers.metrics import WorkerMetrics
from tests.unit.gpu_consumers.fleet import Fleet
from tests.unit.gpu_consumers.test_vectors_survive import Pooling

prompts = st.lists(st.tuples(st.integers(0, 3 * HALF_MS), st.integers(1, 1_000), st.integers(0, 1_000)))


@given(prompts, st.integers(0, 2 * HALF_MS), st.integers(0, 10**12))
def test_it_is_of_half_a_minute_at_least_and_of_a_minute_at_most(
    begun: list[tuple[int, int, int]], later_ms: int, since_ms: int
) -> None:
    hits, begun = PromptHits(), sorted(begun)
    for at_ms, prompt, cached in begun:
        hits.add(prompt, cached, since_ms + at_ms)
    now_ms = max((at_ms for at_ms, _, _ in begun), default=0) + later_ms
    of_half, of_whole = (
        [(prompt, cached) for at_ms, prompt, cached in begun if at_ms > now_ms - window_ms]
        for window_ms in (HALF_MS, 2 * HALF_MS)
    )
    found = hits.lately(since_ms + now_ms)
    for each, told in enumerate(found):
        assert sum(pair[each] for pair in of_half) <= told <= sum(pair[each] for pair in of_whole)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    hits = PromptHits()
    hits.add(100, 40, 10 * HALF_MS)
    hits.add(100, 40, HALF_MS)
    assert hits.lately(HALF_MS) == (200, 80)


def test_a_worker_says_how_much_of_its_prompts_it_had() -> None:
    fleet = Fleet("a")
    [worker] = fleet.all
    for tenant_id in ("acme", "acme", "gold"):
        fleet.region.request(prompt=100, tenant_id=tenant_id, begins=5)
    fleet.settle()
    state = worker.core.state("ready", EngineStats(), 0.0, True, fleet.region.now_ms)
    assert (state.prompt_tokens, state.cached_tokens) == (300, 96), "six full blocks of the second, within its tenant"
    later = worker.core.state("ready", EngineStats(), 0.0, True, fleet.region.now_ms + 2 * HALF_MS)
    assert (later.prompt_tokens, later.cached_tokens) == (0, 0)
    assert b"cached_tokens" not in later.encode()


def test_vectors_say_nothing_of_it() -> None:
    fleet = Fleet("a", embeds=Pooling)
    fleet.region.request(inputs=2)
    fleet.settle()
    state = fleet.all[0].core.state("ready", EngineStats(), 0.0, True, fleet.region.now_ms)
    assert (state.prompt_tokens, state.cached_tokens) == (0, 0)


def test_a_scraper_counts_both() -> None:
    registry = CollectorRegistry()
    metrics = WorkerMetrics(registry)
    metrics.prompt(100, 64)
    metrics.prompt(50, 0)
    names = ("prompt_tokens", "cached_prompt_tokens")
    assert [registry.get_sample_value(f"sluice_worker_{name}_total") for name in names] == [150, 64]
