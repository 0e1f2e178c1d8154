"""The benchmark of a backlog tells the two orders apart, and the same seed gives the same."""

from functools import cache

import pytest

from agents.admission.catching_up import LOOK_AHEAD
from agents.admission.routing import QueueBound
from benchmarks import after_an_outage
from benchmarks.after_an_outage import LATER_AT_ONCE, WORKERS, Policy, Reader, Run, Want, wants

FEW_SLOTS = 128
COUNT = 9_000


@cache
def played(policy: Policy) -> tuple[list[Want], Run]:
    log = wants(COUNT, 3)
    return log, Reader(log, 3).play(policy)


@pytest.fixture(autouse=True)
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_an_outage, "SLOTS", FEW_SLOTS)
    monkeypatch.setattr(after_an_outage, "BOUND", QueueBound(10**6, 10 * FEW_SLOTS))
    monkeypatch.setattr(after_an_outage, "POOL_PER_S", FEW_SLOTS / 8)
    monkeypatch.setattr(after_an_outage, "LIVE_PER_S", 2.0)


def begun(policy: Policy, *tiers: str) -> float:
    log, run = played(policy)
    lives = [want.number for want in log if want.tier in tiers and want.deadline_ms > 180_000]
    return sum(number in run.pool.begun_ms for number in lives) / len(lives)


def test_who_pays_is_answered_first_and_everybody_once() -> None:
    assert begun("paid first", "paid", "premium") > 0.95
    assert begun("paid first", "paid", "premium") > 1.2 * begun("log order", "paid", "premium")
    for policy in ("log order", "paid first"):
        log, run = played(policy)
        assert (len(run.decided), run.twice) == (len(log), 0)
        over = {want.number for want in log if want.deadline_ms <= 0}
        assert not over & run.pool.begun_ms.keys(), "no engine sees what is too late"


def test_what_is_held_is_bounded() -> None:
    _, run = played("paid first")
    assert run.put_aside > 0
    assert run.most_held <= WORKERS * LOOK_AHEAD + LATER_AT_ONCE


def test_the_same_seed_gives_the_same() -> None:
    log = wants(2_000, 5)
    assert log == wants(2_000, 5)
    first, second = (Reader(log, 5).play("paid first") for _ in range(2))
    assert first.pool.begun_ms == second.pool.begun_ms
