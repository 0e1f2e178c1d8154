"""The benchmark of giving away tells apart what it is to tell apart, and the same seed gives the same."""

from functools import cache

import pytest

from benchmarks.spilling import POLICIES, SCENES, Pool, Scene

SECONDS = 25.0


@cache
def ran(policy: str, scene: Scene) -> Pool:
    pool = Pool(policy, scene, 7)
    pool.run(SECONDS)
    return pool


def slowest_s(pool: Pool) -> float:
    waits_s = sorted((SECONDS if each.first_s is None else each.first_s) - each.at_s for each in pool.asked)
    return waits_s[int(0.99 * len(waits_s))]


@pytest.mark.parametrize("scene", [SCENES[1], SCENES[3]], ids=lambda scene: scene.title)
def test_who_waits_longest_waits_less_where_requests_are_given_away(scene: Scene) -> None:
    assert slowest_s(ran("spills", scene)) < slowest_s(ran("stays", scene))
    assert not any(each.spills for each in ran("stays", scene).asked)


def test_the_same_is_asked_whatever_becomes_of_it_and_everything_is_begun_once() -> None:
    asked = [[(each.at_s, each.prompt) for each in ran(policy, SCENES[3]).asked] for policy in POLICIES]
    assert asked[0] == asked[1]
    for policy in POLICIES:
        pool = ran(policy, SCENES[3])
        known = [name for worker in pool.workers for name in (*worker.waiting, *worker.running)]
        assert len(known) == len(set(known))


def test_a_worker_without_a_backlog_of_its_own_has_its_share_by_what_others_give() -> None:
    assert ran("stays", SCENES[3]).has_share_s is None
    share_s = ran("spills", SCENES[3]).has_share_s
    assert share_s is not None
    assert share_s < 5


def test_a_slow_worker_is_sent_what_it_serves_however_short_its_queue_is_since_it_gives_away() -> None:
    pool = ran("spills", SCENES[1])
    slow, *others = (pool.sent[worker.worker_id] for worker in pool.workers)
    assert 4 * slow < min(others)
    assert sum(each.spills for each in pool.asked) < len(pool.asked) / 10


def test_the_same_seed_gives_the_same() -> None:
    again = Pool("spills", SCENES[0], 7)
    again.run(SECONDS)
    assert [each.first_s for each in again.asked] == [each.first_s for each in ran("spills", SCENES[0]).asked]
