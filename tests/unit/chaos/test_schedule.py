"""Faults as data: what a seed deals."""

import random
from pathlib import Path

from deploy.local.data_folder import DataFolder, Keys
from deploy.local.plan import make_plan
from tests.chaos.run import MOVE_AFTER_MS, OPTIONS
from tests.chaos.schedule import BIG, DECK, LEASE_S, SPARE, Kind, schedule


def test_a_seed_deals_the_same_everywhere() -> None:
    assert [(each.name, each.after_s) for each in schedule(7, 3)] == [
        ("freeze post-safety", 0.777),
        ("away 3 worker+admission", 0.597),
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
    killed = {name for fault in DECK if fault.kind in (Kind.KILL, Kind.AWAY) for name in fault.processes}
    assert killed == {
        "worker-1", "worker-2", BIG, SPARE, "gateway-1", "gateway-2", "admission-1", "admission-2", "post-safety",
        "settlement", "billing", "redis", "redis-history", "kafka",
    }  # fmt: skip
    assert all(fault.away_s > LEASE_S for fault in DECK if fault.kind in (Kind.FREEZE, Kind.AWAY))


def test_a_fault_is_named_by_the_roles_that_it_strikes() -> None:
    names = {fault.name for fault in DECK}
    assert {"kill worker", "kill 2 worker", "kill 2 worker+post-safety", "freeze worker, redis emptied"} <= names
    assert {"away worker", "away 2 worker", "away 3 worker+admission", "freeze 2 worker"} <= names


def test_the_bigger_model_is_deserted_for_longer_than_what_waits_for_it_stays_there() -> None:
    bigger = {Kind.FREEZE: {(BIG, SPARE)}, Kind.AWAY: {(BIG,), (BIG, SPARE), (BIG, SPARE, "admission-1")}}
    for kind, struck in bigger.items():
        faults = [fault for fault in DECK if fault.kind is kind and BIG in fault.processes]
        assert {fault.processes for fault in faults} == struck
        assert all(fault.away_s > LEASE_S + 2 * MOVE_AFTER_MS / 1_000 for fault in faults)


def test_the_bigger_models_workers_are_each_alone_in_a_pool(tmp_path: Path) -> None:
    plan = make_plan(DataFolder(tmp_path), Keys(deployment_secret="s" * 32), OPTIONS, random.Random(1))
    environments = {each.name: each.environment for each in plan.processes}
    pools = {name: env["SLUICE_WORKER__POOL"] for name, env in environments.items() if "SLUICE_WORKER__POOL" in env}
    assert pools == {"worker-1": "default", "worker-2": "default", BIG: "big", SPARE: "spare"}
