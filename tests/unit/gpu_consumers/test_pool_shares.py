"""Workers of a pool tell each other whom they gave what; a successor goes on where a worker left."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from gpu_consumers.core.fair_queue import FairQueue, Queued
from gpu_consumers.core.pool_shares import PoolShares
from schemas.request import Lane
from schemas.worker import MAX_TENANTS, WorkerState

LANE = Lane.STANDARD
OWN_LIFE = 500


def beat(worker_id: str, given_of: dict[str, int], *, life: int = 1, pool: str = "pool", **fields: Any) -> WorkerState:
    return WorkerState(
        worker_id=worker_id, pool=pool, model="m", engine="simulated", state="ready", beat_at_ms=0, lease_ms=1,
        counts_since_ms=life, given_of={LANE: given_of}, **fields,
    )  # fmt: skip


class Listening:
    """To what is heard, and what was taken of it in all."""

    def __init__(self) -> None:
        self.shares = PoolShares("own", "pool")
        self.given: dict[str, int] = {}

    def hear(self, *beats: WorkerState) -> "Listening":
        for each in beats:
            assert self.shares.heard(each, OWN_LIFE) is None
        for tenant_id, tokens in self.shares.take_given().get(LANE, {}).items():
            self.given[tenant_id] = self.given.get(tenant_id, 0) + tokens
        return self


def test_what_others_gave_is_counted_from_the_first_beat_on() -> None:
    heard = Listening().hear(beat("other", {"acme": 100}), beat("other", {"acme": 130, "beta": 5}))
    assert heard.given == {"acme": 30, "beta": 5}


@given(st.lists(st.integers(0, 50), min_size=2, max_size=20), st.data())
def test_beats_that_are_lost_or_come_twice_change_nothing(gains: list[int], data: st.DataObject) -> None:
    totals = [sum(gains[: number + 1]) for number in range(len(gains))]
    heard = Listening().hear(beat("other", {"acme": totals[0]}))
    for total in totals[1:-1]:
        heard.hear(*[beat("other", {"acme": total})] * data.draw(st.integers(0, 2)))
    heard.hear(beat("other", {"acme": totals[-1]}))
    assert heard.given.get("acme", 0) == totals[-1] - totals[0]


def test_one_that_began_again_counts_anew() -> None:
    heard = Listening().hear(beat("other", {"acme": 100}), beat("other", {"acme": 20}, life=2))
    assert heard.given == {"acme": 20}


def test_who_was_left_out_of_a_full_list_is_not_charged_for_all_that_it_ever_had() -> None:
    full = {f"t{number}": 10 for number in range(MAX_TENANTS)}
    back = {**dict(list(full.items())[1:]), "acme": 5_000}
    heard = Listening().hear(beat("other", full), beat("other", back), beat("other", back | {"acme": 5_030}))
    assert heard.given["acme"] == 30


def test_other_pools_and_the_buried_are_passed_over() -> None:
    heard = Listening().hear(beat("far", {"acme": 1}, pool="else"), beat("far", {"acme": 9}, pool="else"))
    heard.hear(beat("other", {"acme": 1}))
    heard.shares.buried("other")
    heard.hear(beat("other", {"acme": 90}))
    assert not any(heard.given.values())


def test_a_worker_hears_once_how_far_tenants_were_ahead_before_it() -> None:
    shares = PoolShares("own", "pool")
    ahead = {LANE: {"acme": 700}}
    for former in ({LANE: {"acme": 3}}, ahead):
        assert shares.heard(beat("own", {}, life=OWN_LIFE - 1, ahead_of=former), OWN_LIFE) is None
    assert shares.heard(beat("own", {}, life=OWN_LIFE, ahead_of={}), OWN_LIFE) == ahead
    assert shares.heard(beat("own", {}, life=OWN_LIFE, ahead_of={LANE: {"acme": 1}}), OWN_LIFE) is None


# What a lane makes of it


def filled(**counts: int) -> FairQueue:
    queue = FairQueue()
    for tenant_id, count in counts.items():
        for number in range(count):
            queue.add(Queued(f"{tenant_id}{number}", LANE, 60, 0, 1, tenant_id, 10, 50))
    return queue


def serve(queue: FairQueue, count: int) -> list[str]:
    """Each answer comes to 45 tokens: 100 of service."""
    order = []
    for _ in range(count):
        item = queue.peek()
        assert item is not None
        queue.take(item)
        queue.left(item.response_id, 45)
        order.append(item.tenant_id)
    return order


def test_who_is_given_more_elsewhere_is_held_back_but_not_for_ever() -> None:
    queue = filled(rich=500, poor=1_000)
    serve(queue, 20)
    queue.given_elsewhere({})
    order: list[str] = []
    for _ in range(90):
        order += serve(queue, 9)
        queue.given_elsewhere({"rich": 900})
    later = order[-400:]
    assert 0.08 < later.count("rich") / len(later) < 0.15, "one in nine is its own in any case"


def test_it_is_held_back_until_both_have_had_the_same_in_all() -> None:
    queue = filled(rich=500, poor=500)
    serve(queue, 20)
    queue.given_elsewhere({"rich": 1_000})
    order = []
    for _ in range(20):
        order += serve(queue, 10)
        queue.given_elsewhere({})
    assert 9 <= order.count("poor") - order.count("rich") <= 11


def test_what_all_were_given_elsewhere_changes_nothing() -> None:
    queue, alone = filled(acme=300, beta=300), filled(acme=300, beta=300)
    orders: tuple[list[str], list[str]] = [], []
    for _ in range(20):
        orders[0].extend(serve(queue, 7))
        queue.given_elsewhere({"acme": 500, "beta": 500})
        orders[1].extend(serve(alone, 7))
    assert orders[0] == orders[1]


def test_what_was_given_elsewhere_while_it_waited_alone_is_no_debt() -> None:
    queue = filled(acme=200)
    for _ in range(10):
        serve(queue, 5)
        queue.given_elsewhere({"acme": 5_000})
    for number in range(50):
        queue.add(Queued(f"beta{number}", LANE, 60, 0, 1, "beta", 10, 50))
    assert abs(serve(queue, 40).count("beta") - 20) <= 1


@given(
    st.lists(st.dictionaries(st.sampled_from(["acme", "beta", "chip"]), st.integers(0, 10_000)), max_size=30),
    st.integers(1, 30),
)
def test_nobody_starves_for_what_it_gets_elsewhere(elsewhere: list[dict[str, int]], times: int) -> None:
    """Whatever is told, each has had its part here before the others have had nine times as much, and some turns."""
    queue = filled(acme=1_000, beta=1_000, chip=1_000)
    counts = dict.fromkeys(("acme", "beta", "chip"), 0)
    for service in elsewhere:
        for tenant_id in serve(queue, times):
            counts[tenant_id] += 1
        queue.given_elsewhere(service)
        assert min(counts.values()) >= max(counts.values()) / 9 - times


@given(st.lists(st.tuples(st.sampled_from(["acme", "beta", "chip"]), st.integers(1, 400)), max_size=60))
def test_after_a_restart_it_is_the_same_tenants_turn(served: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    for number, (tenant_id, tokens) in enumerate(served):
        item = Queued(f"r{number}", LANE, 500, 0, 1, tenant_id, 10, 400)
        queue.add(item)
        queue.take(item)
        queue.left(item.response_id, tokens)
    names = [f"w{number}" for number in range(3)]
    heir = FairQueue()
    heir.restore(queue.ahead(MAX_TENANTS))
    for each in (queue, heir):
        for name, tenant_id in zip(names, ("acme", "beta", "chip"), strict=True):
            each.add(Queued(name, LANE, 500, 0, 1, tenant_id, 10, 400))
    assert queue.served("acme") - queue.served("beta") == heir.served("acme") - heir.served("beta")
    assert queue.served("chip") - queue.served("beta") == heir.served("chip") - heir.served("beta")


def test_what_is_in_the_engine_is_not_held_against_who_goes_on_with_it() -> None:
    queue = filled(acme=2, beta=2)
    item = queue.peek()
    assert item is not None
    queue.take(item)
    assert queue.ahead(MAX_TENANTS) == {}
    queue.left(item.response_id, 45)
    assert queue.ahead(MAX_TENANTS) == {item.tenant_id: 100}


def test_of_many_those_are_told_that_were_given_something_last() -> None:
    queue = FairQueue()
    for number in range(100):
        item = Queued(f"r{number}", LANE, 60, 0, 1, f"t{number}", 10, 50)
        queue.add(item)
        queue.take(item)
        queue.left(item.response_id, 45)
    assert set(queue.given(10)) == {f"t{number}" for number in range(90, 100)}
