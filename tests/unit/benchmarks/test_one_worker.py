"""The worker in virtual time serves what comes, and counts what it did."""

import random

import pytest

from benchmarks import memory
from benchmarks.fairness import BATCH, ENGINE, POLICIES, SIZES
from benchmarks.one_worker import Arrival, OneWorker, Policy, StaticBatches, at_once, jain, steady
from schemas.request import Lane


@pytest.mark.parametrize("policy", POLICIES)
def test_all_that_comes_is_answered_and_the_same_seed_gives_the_same(policy: str) -> None:
    def run() -> tuple[dict[str, int], float]:
        rng = random.Random(3)
        arrivals = [*steady(rng, "now and then", Lane.INTERACTIVE, 1.0, 10.0), *at_once(rng, "all", Lane.BATCH, 80)]
        seen = OneWorker(POLICIES[policy](), ENGINE, 3).run(arrivals, 60.0)
        answered = {tenant_id: len(waits) for (tenant_id, _), waits in seen.waits_ms.items()}
        assert answered == {"now and then": len(arrivals) - 80, "all": 80}
        return answered, seen.busy_s

    assert run() == run()


def test_a_full_memory_is_overrun_by_count_and_not_by_what_is_expected() -> None:
    def run(policy: str) -> OneWorker:
        arrivals = at_once(random.Random(3), "all", Lane.STANDARD, 60, prompt_tokens=(100, 200), max_tokens=256)
        worker = OneWorker(memory.POLICIES[policy](32), memory._engine(32, blocks=200), 3)
        seen = worker.run(arrivals, 300.0)
        assert (seen.failed, len(seen.answered)) == (0, 60)
        assert seen.tokens == worker.engine.produced_tokens == sum(each.tokens for each in seen.answered)
        assert all(each.waited_s < each.took_s for each in seen.answered)
        return worker

    by_count, by_memory = (run(policy).engine.recomputed_tokens for policy in memory.POLICIES)
    assert by_count > 20 * by_memory


def test_who_asks_beside_a_full_batch_lane_waits_as_if_alone_and_what_is_paused_for_it_is_answered_whole() -> None:
    """One tenant asks so often that it holds more than an eighth of the slots."""

    def run(max_pauses: int) -> OneWorker:
        rng = random.Random(3)
        arrivals = [*steady(rng, "asks", Lane.INTERACTIVE, 4.0, 15.0), *at_once(rng, "batch", Lane.BATCH, 200)]
        worker = OneWorker(POLICIES["fair"](), ENGINE, 3, max_pauses=max_pauses)
        seen = worker.run(arrivals, 120.0)
        assert len(seen.answered) == len(arrivals)
        assert sum(each.tokens for each in seen.answered) == worker.engine.produced_tokens
        assert all(120 <= each.tokens <= 480 for each in seen.answered), "as the engine's answers are"
        return worker

    alone_ms = 2 + 20 + 0.05 * 500
    paused, never = run(3), run(0)
    assert max(paused.seen.waits_ms["asks", Lane.INTERACTIVE]) <= alone_ms * 1.3
    assert max(never.seen.waits_ms["asks", Lane.INTERACTIVE]) > alone_ms * 4
    assert (paused.seen.pauses > 0, never.seen.pauses) == (True, 0)


def test_as_answers_end_others_take_their_slots_which_a_static_batch_leaves_unused() -> None:
    def used(policy: Policy) -> float:
        arrivals = at_once(random.Random(3), "batch", Lane.BATCH, 640)
        return OneWorker(policy, ENGINE, 3).run(arrivals, 30.0).busy_s / 30.0 / BATCH

    assert used(StaticBatches(BATCH)) < 0.7
    assert used(POLICIES["fair"]()) > 0.95


def test_slots_and_service_are_those_of_the_answers() -> None:
    asked = [Arrival(0.0, "one", Lane.STANDARD, prompt_tokens=100, max_tokens=20)]
    seen = OneWorker(POLICIES["fair"](), ENGINE, 3).run(asked, 10.0)
    assert seen.service[0]["one"] == 100 + 2 * 20
    [[wait_ms]] = seen.waits_ms.values()
    assert 25 <= wait_ms <= 35, "two of a claim, twenty and the prompt's five of the engine"
    assert seen.slot_s[Lane.STANDARD] == pytest.approx(wait_ms / 1_000 + 19 * 0.018, abs=0.01)


def test_the_default_of_a_pool_keeps_something_free_and_uses_nineteen_of_twenty() -> None:
    assert 0 < SIZES.headroom <= SIZES.batch // 20


def test_the_index_of_jain() -> None:
    assert jain([5, 5, 5, 5]) == 1
    assert jain({"one": 8, "other": 0}) == 0.5
