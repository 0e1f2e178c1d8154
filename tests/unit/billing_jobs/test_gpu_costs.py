"""What GPUs cost is appended and changed as prices are."""

from dataclasses import replace

import pytest

from billing_jobs.gpu_costs import GpuPrice, GpuPriceChange, first_gpu_prices, gpu_prices, in_force, plan_gpu_prices
from billing_jobs.price_changes import PriceRefused
from billing_jobs.pricing import PRICES_SETTLE_MS, PriceInexact
from streams.directory import Pool

OLD = GpuPrice("big", "USD", 0, 2_500_000_000_000, 4)
DEARER = replace(OLD, gpu_hour_pico=3_000_000_000_000)
AT_MS = 500 + PRICES_SETTLE_MS


def pool(name: str, cost: str, **arguments: bool | int | float | str) -> Pool:
    return Pool.model_validate(
        {"name": name, "engine": "vllm", "gpu_hour": {"cost": cost}, "engine_args": arguments}
    )  # fmt: skip


def test_a_worker_has_as_many_gpus_as_its_engine_asks_for_and_its_host_counts_as_one() -> None:
    pools = [
        pool("big", "2.50", tensor_parallel_size=4), pool("cpu", "0.000000000001"), Pool(name="free", engine="vllm"),
    ]  # fmt: skip
    assert gpu_prices(pools) == [OLD, GpuPrice("cpu", "USD", 0, 1, 1)]
    assert first_gpu_prices(pools, [DEARER]) == [GpuPrice("cpu", "USD", 0, 1, 1)]


@pytest.mark.parametrize("cost", ["0.0000000000001", "1e9"])
def test_one_that_would_have_to_be_rounded_is_refused_by_name(cost: str) -> None:
    with pytest.raises(PriceInexact, match=r"^pools\.big\.gpu_hour\.cost: "):
        gpu_prices([pool("big", cost)])


def test_a_change_begins_behind_all_that_were_made_and_the_first_one_from_the_beginning() -> None:
    new = GpuPrice("new", "EUR", 7, 1, 1)
    assert plan_gpu_prices([DEARER, new], [OLD, DEARER], AT_MS, 500) == [
        GpuPriceChange(OLD, DEARER.starting_at(AT_MS)), GpuPriceChange(None, new.starting_at(0)),
    ]  # fmt: skip
    assert plan_gpu_prices([DEARER], [OLD, DEARER.starting_at(AT_MS)], AT_MS, 500) == []
    for wanted, known, begins_ms, why in (
        ([OLD], [OLD, DEARER.starting_at(AT_MS)], AT_MS, "begins at that time or after it"),
        ([OLD], [OLD], AT_MS - 1, "within 60 s"),
        ([DEARER, DEARER], [OLD], AT_MS, "named twice"),
    ):
        with pytest.raises(PriceRefused, match=why):
            plan_gpu_prices(wanted, known, begins_ms, 500)


def test_in_force_is_of_each_pool_the_one_that_began_last_and_of_two_at_once_the_first() -> None:
    later, other = DEARER.starting_at(AT_MS), GpuPrice("cpu", "EUR", 0, 1, 1)
    known = [OLD, DEARER, later, OLD.starting_at(AT_MS), other, OLD.starting_at(AT_MS + 1)]
    assert in_force(known, AT_MS - 1) == [OLD, other]
    assert in_force(known, AT_MS) == [later, other]
    assert in_force([later], AT_MS - 1) == []
