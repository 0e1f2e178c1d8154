"""The choice of home partitions."""

import hypothesis.strategies as st
from hypothesis import given

from gpu_consumers.core.home_partitions import home_partitions


@given(st.text(min_size=1, max_size=20), st.integers(1, 16), st.integers(1, 4))
def test_home_partitions_are_stable_and_distinct(worker_id: str, partitions: int, count: int) -> None:
    homes = home_partitions(worker_id, range(partitions), count)
    assert homes == home_partitions(worker_id, range(partitions), count)
    assert len(set(homes)) == min(count, partitions)
    assert set(homes) <= set(range(partitions))


def test_a_new_partition_moves_few_workers_and_load_is_spread() -> None:
    workers = [f"worker-{number}" for number in range(1_000)]
    before = [home_partitions(worker, range(8), 1)[0] for worker in workers]
    after = [home_partitions(worker, range(9), 1)[0] for worker in workers]
    assert sum(old != new for old, new in zip(before, after, strict=True)) < 180
    assert all(80 < before.count(partition) < 180 for partition in range(8))
