"""Who reads the lanes while engines load, die and come back."""

from typing import Literal

import pytest

from gpu_consumers.core.membership import LISTEN_MS, LOST_MS, PATIENCE_MS, Membership, beat_every_ms
from schemas.request import Lane
from schemas.worker import WorkerState

LEASE_MS = 4_000
NOW_MS = 1_000_000


def beat(
    worker_id: str, state: Literal["starting", "ready", "draining", "failed"], at_ms: int, pool: str = "pool",
    lease_ms: int = LEASE_MS,
) -> WorkerState:  # fmt: skip
    return WorkerState(
        worker_id=worker_id, pool=pool, model="m", engine="vllm", state=state, beat_at_ms=at_ms, lease_ms=lease_ms
    )


@pytest.fixture
def membership() -> Membership:
    """Of worker `a`, which has listened from `NOW_MS` on."""
    membership = Membership("a", "pool")
    membership.listening(NOW_MS)
    return membership


def test_a_ready_worker_reads_at_once() -> None:
    assert Membership("a", "pool").reads_lanes(True, NOW_MS)


def test_a_loading_worker_that_could_not_listen_yet_waits() -> None:
    assert not Membership("a", "pool").reads_lanes(False, NOW_MS + 60_000)


def test_a_loading_worker_takes_no_partition_from_a_ready_one(membership: Membership) -> None:
    for at_ms in range(NOW_MS, NOW_MS + 60_000, 1_000):
        membership.heard(beat("b", "ready", at_ms))
        assert not membership.reads_lanes(False, at_ms)
    assert membership.reads_lanes(True, NOW_MS + 60_000)


@pytest.mark.parametrize("lease_ms", [500, 1_000, LEASE_MS, 60_000])
def test_a_worker_is_ready_between_its_beats_too_however_short_its_lease(membership: Membership, lease_ms: int) -> None:
    every_ms = beat_every_ms(lease_ms)
    for at_ms in range(NOW_MS, NOW_MS + 60_000, every_ms):
        # On its way for half of its lease.
        membership.heard(beat("b", "ready", at_ms - lease_ms // 2, lease_ms=lease_ms))
        assert not membership.reads_lanes(False, at_ms + every_ms - 1)


def test_a_loading_worker_reads_when_nobody_else_is_ready(membership: Membership) -> None:
    membership.heard(beat("b", "starting", NOW_MS))
    membership.heard(beat("c", "ready", NOW_MS, pool="another"))
    membership.heard(beat("a", "ready", NOW_MS))  # what it said itself, before it was killed
    assert not membership.reads_lanes(False, NOW_MS + LISTEN_MS - 1)
    assert membership.reads_lanes(False, NOW_MS + LISTEN_MS)


def test_a_loading_worker_stands_in_when_the_last_ready_one_is_lost(membership: Membership) -> None:
    membership.heard(beat("b", "ready", NOW_MS + 10_000))
    assert not membership.reads_lanes(False, NOW_MS + 10_000 + LEASE_MS - 1)
    assert membership.reads_lanes(False, NOW_MS + 10_000 + LEASE_MS)


def test_a_loading_worker_stands_in_when_the_last_ready_one_leaves(membership: Membership) -> None:
    membership.heard(beat("b", "ready", NOW_MS + 10_000))
    assert not membership.reads_lanes(False, NOW_MS + 10_000)
    membership.heard(beat("b", "draining", NOW_MS + 10_500))
    assert membership.reads_lanes(False, NOW_MS + 10_500)


@pytest.mark.parametrize("peer_is_ready", [True, False])
def test_a_member_whose_engine_stays_away_leaves_the_lanes_to_a_ready_one(
    membership: Membership, peer_is_ready: bool
) -> None:
    died_at_ms = NOW_MS + 10_000
    assert membership.reads_lanes(True, died_at_ms)
    member_at_ms = []
    for at_ms in range(died_at_ms, died_at_ms + 60_000, 500):
        membership.heard(beat("b", "ready" if peer_is_ready else "starting", at_ms))
        if membership.reads_lanes(False, at_ms):
            member_at_ms.append(at_ms)
    assert member_at_ms[-1] == died_at_ms + (PATIENCE_MS if peer_is_ready else 60_000) - 500


def test_a_member_whose_engine_is_soon_back_stays_each_time(membership: Membership) -> None:
    for at_ms in range(NOW_MS, NOW_MS + 60_000, 1_000):
        membership.heard(beat("b", "ready", at_ms))
        assert membership.reads_lanes(at_ms == NOW_MS or at_ms % PATIENCE_MS == 0, at_ms)


def test_a_worker_that_was_lost_is_named_once_after_a_while_whatever_its_pool(membership: Membership) -> None:
    membership.heard(beat("b", "ready", NOW_MS))
    membership.heard(beat("c", "ready", NOW_MS, pool="another"))
    membership.heard(beat("d", "ready", NOW_MS + 1))
    assert membership.take_lost(NOW_MS + LOST_MS - 1) == []
    assert membership.take_lost(NOW_MS + LOST_MS) == ["b", "c"]
    membership.heard(beat("b", "ready", NOW_MS + LOST_MS))
    assert membership.take_lost(NOW_MS + LOST_MS) == []


def test_who_left_is_not_lost(membership: Membership) -> None:
    membership.heard(beat("b", "ready", NOW_MS + 10_000))
    assert not membership.reads_lanes(False, NOW_MS + 10_000)
    membership.buried("b")
    assert membership.reads_lanes(False, NOW_MS + 10_000)
    assert membership.take_lost(NOW_MS + 2 * LOST_MS) == []


def reads(worker_id: str, at_ms: int, *standard: int, held_up: tuple[int, ...] = ()) -> WorkerState:
    return beat(worker_id, "ready", at_ms).model_copy(
        update={"lane_partitions": {Lane.STANDARD: [*standard]}, "held_up": {Lane.STANDARD: [*held_up]}}
    )


LEFT = {Lane.STANDARD: {0, 1}, Lane.BATCH: set[int]()}


def test_what_a_worker_has_left_is_to_be_read_until_others_read_all_of_it(membership: Membership) -> None:
    membership.heard(reads("b", NOW_MS, 2))
    assert membership.are_to_be_read(LEFT, NOW_MS)
    membership.heard(reads("b", NOW_MS + 300, 2, 0))
    membership.heard(reads("c", NOW_MS + 300, 3))
    assert membership.are_to_be_read(LEFT, NOW_MS + 300)
    membership.heard(reads("c", NOW_MS + 310, 3, held_up=(1,)))
    assert not membership.are_to_be_read(LEFT, NOW_MS + 310)


def test_where_nobody_is_ready_nobody_is_waited_for(membership: Membership) -> None:
    assert not membership.are_to_be_read(LEFT, NOW_MS)
    membership.heard(beat("b", "starting", NOW_MS))
    membership.heard(reads("a", NOW_MS, 2))  # what it said itself
    assert not membership.are_to_be_read(LEFT, NOW_MS)
    membership.heard(reads("c", NOW_MS, 2))
    assert membership.are_to_be_read(LEFT, NOW_MS + LEASE_MS - 1)
    assert not membership.are_to_be_read(LEFT, NOW_MS + LEASE_MS), "it has not been heard since"
