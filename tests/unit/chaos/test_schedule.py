"""Faults as data: what a seed deals."""

from tests.chaos.schedule import DECK, LEASE_S, Kind, schedule


def test_a_seed_deals_the_same_everywhere() -> None:
    assert [(each.name, each.after_s) for each in schedule(7, 3)] == [
        ("freeze post-safety", 0.777),
        ("freeze worker", 0.597),
        ("kill admission", 1.176),
    ]


def test_thirty_are_one_of_each_in_another_order_for_another_seed() -> None:
    assert len(DECK) == 30
    dealt = [[(each.kind, each.processes, each.flushed) for each in schedule(seed, 30)] for seed in (1, 2)]
    assert sorted(dealt[0]) == sorted(dealt[1]) == sorted((e.kind, e.processes, e.flushed) for e in DECK)
    assert dealt[0] != dealt[1]


def test_a_part_of_a_run_is_what_stands_in_the_whole() -> None:
    assert schedule(3, 100)[40:70] == schedule(3, 30, beginning_with=40)


def test_every_process_is_killed_and_what_is_frozen_is_longer_than_its_lease() -> None:
    killed = {name for fault in DECK if fault.kind is Kind.KILL for name in fault.processes}
    assert killed == {
        "worker-1", "worker-2", "gateway-1", "gateway-2", "admission-1", "admission-2", "post-safety", "settlement",
        "billing", "redis", "redis-history", "kafka",
    }  # fmt: skip
    assert all(fault.frozen_s > LEASE_S for fault in DECK if fault.kind is Kind.FREEZE)


def test_a_fault_is_named_by_the_roles_that_it_strikes() -> None:
    names = {fault.name for fault in DECK}
    assert {"kill worker", "kill 2 worker", "kill 2 worker+post-safety", "freeze worker, redis emptied"} <= names
