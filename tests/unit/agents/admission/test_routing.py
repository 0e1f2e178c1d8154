"""Routing decides on what workers say, and on nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.admission.routing import (
    PICKUP_MS,
    Load,
    QueueBound,
    Weight,
    WorkersView,
    choose,
    drain_ms,
    overloaded,
)
from schemas.generated import QueueAhead
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.drain import Drain

NOW = 1_790_000_000_000


def worker(worker_id: str = "worker-1", **fields: object) -> WorkerState:
    values: dict[str, object] = {
        "worker_id": worker_id, "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
        "beat_at_ms": NOW, "lease_ms": 4_000, "lane_partitions": {lane: [0, 1] for lane in LANES},
        "home_partitions": [3],
    }  # fmt: skip
    return WorkerState.model_validate(values | fields)


partitions = st.lists(st.integers(0, 7), max_size=4, unique=True)
states = st.builds(
    worker,
    st.sampled_from([f"w{i}" for i in range(6)]),
    pool=st.sampled_from(["default", "other"]),
    state=st.sampled_from(["starting", "ready", "draining", "failed"]),
    beat_at_ms=st.integers(NOW - 8_000, NOW),
    lane_partitions=st.fixed_dictionaries(dict.fromkeys(LANES, partitions)),
    home_partitions=partitions,
    running=st.integers(0, 64),
    queued_tokens=st.integers(0, 100_000),
)


@given(st.lists(states), st.sampled_from(LANES), st.text(min_size=1))
def test_a_route_is_always_a_partition_of_a_live_worker_that_reads_the_lane(
    heartbeats: list[WorkerState], lane: Lane, response_id: str
) -> None:
    view = WorkersView()
    for state in heartbeats:
        view.update(state.worker_id, state)
    loads = view.live("default", NOW)
    route = choose(loads, lane, response_id, lane_partitions=8, generated_partitions=8)
    assert route == choose(loads, lane, response_id, lane_partitions=8, generated_partitions=8)
    fit = [load for load in loads if load.state.lane_partitions[lane] and load.state.home_partitions]
    if not fit:
        assert route.worker_id is None
        assert 0 <= route.lane_partition < 8
        assert 0 <= route.generated_partition < 8
        return
    [chosen] = [load for load in fit if load.state.worker_id == route.worker_id]
    assert chosen.state.state == "ready"
    assert chosen.state.pool == "default"
    assert chosen.state.beat_at_ms + chosen.state.lease_ms > NOW
    assert route.lane_partition in chosen.state.lane_partitions[lane]
    assert route.generated_partition in chosen.state.home_partitions
    assert chosen.tokens() == min(load.tokens() for load in fit)


def test_a_worker_whose_lease_ran_out_gets_nothing() -> None:
    view = WorkersView()
    view.update("worker-1", worker())
    assert view.live("default", NOW + 3_999)
    assert not view.live("default", NOW + 4_000)


def test_a_worker_that_left_for_good_is_forgotten() -> None:
    view = WorkersView()
    view.update("worker-1", worker())
    view.update("worker-1", None)
    assert not view.live("default", NOW)


def test_a_late_heartbeat_does_not_undo_a_newer_one() -> None:
    view = WorkersView()
    view.update("worker-1", worker(beat_at_ms=NOW, state="draining"))
    view.update("worker-1", worker(beat_at_ms=NOW - 1))
    assert not view.live("default", NOW)


def test_what_was_routed_counts_until_a_heartbeat_can_have_included_it() -> None:
    view = WorkersView()
    view.update("worker-1", worker())
    view.routed("worker-1", "r1", Weight(300), NOW)
    view.routed("worker-1", "r2", Weight(500, 3), NOW + 100)
    view.routed("worker-1", "r2", Weight(500, 3), NOW + 100)
    view.routed("worker-1", "r3", Weight(900, 7, "acme"), NOW + 100)
    assert [(load.own_tokens, load.own_answers) for load in view.live("default", NOW, "acme")] == [(900, 7)]
    view.not_routed("worker-1", "r3")
    assert [(load.own_tokens, load.own_answers) for load in view.live("default", NOW, "acme")] == [(0, 0)]
    [load] = view.live("default", NOW)
    assert (load.routed_tokens, load.routed_answers) == (800, 4)
    view.update("worker-1", worker(beat_at_ms=NOW + PICKUP_MS, queued_tokens=300))
    [load] = view.live("default", NOW)
    assert (load.queued_tokens, load.queued_answers) == (800, 3)


def test_requests_spread_over_equal_workers_between_heartbeats() -> None:
    view = WorkersView()
    for name in ("a", "b", "c"):
        view.update(name, worker(name))
    chosen = []
    for i in range(30):
        route = choose(view.live("default", NOW), Lane.STANDARD, f"r{i}", lane_partitions=8, generated_partitions=8)
        view.routed(route.worker_id, f"r{i}", Weight(100), NOW)
        chosen.append(route.worker_id)
    assert {name: chosen.count(name) for name in ("a", "b", "c")} == {"a": 10, "b": 10, "c": 10}


def routed_to(view: WorkersView, cache_id: str, response_id: str = "r", *, excess: float = 0.25) -> str | None:
    route = choose(
        view.live("default", NOW), Lane.STANDARD, response_id, lane_partitions=8, generated_partitions=8,
        cache_id=cache_id, excess=excess,
    )  # fmt: skip
    return route.worker_id


def test_what_begins_alike_goes_to_one_worker_while_that_has_room() -> None:
    view = WorkersView()
    for name in ("a", "b", "c"):
        view.update(name, worker(name, max_running=256, queues={lane: {} for lane in LANES}))
    homes = {key: routed_to(view, key) for key in map(str, range(50))}
    assert {*homes.values()} == {"a", "b", "c"}
    for number, (key, home) in enumerate(homes.items()):
        assert routed_to(view, key, f"r{number}") == home
        view.routed(home, f"r{number}", Weight(20_000, lane=Lane.STANDARD), NOW)
    assert {key: routed_to(view, key, "another turn") for key in homes} == homes, "all of it runs at once"
    assert {routed_to(view, key, f"r{key}", excess=0.0) for key in homes} != {*homes.values()}, "the least loaded"


def test_a_flood_that_begins_alike_is_spread_before_it_overruns_its_worker() -> None:
    view = WorkersView()
    for name in ("a", "b", "c"):
        view.update(name, worker(name, max_running=16))
    sent: list[str | None] = []
    for number in range(60):
        sent.append(routed_to(view, "hot"))
        view.routed(sent[-1], f"r{number}", Weight(300), NOW)
    home = sent[0]
    counts = {name: sent.count(name) for name in ("a", "b", "c")}
    assert counts.pop(str(home)) <= 30, counts
    assert min(counts.values()) >= 10
    view.update(str(home), worker(str(home), max_running=16, running=15, kv_blocks_used=95, kv_blocks_total=100))
    assert routed_to(view, "hot") != home, "its memory is full, and that of others is not"


def test_what_waits_in_another_lane_makes_no_worker_slow() -> None:
    slow: dict[str, Any] = {"oldest_waiting_ms": 60_000, "max_running": 8, "kv_blocks_total": 100}
    behind_batch = {"interactive": {}, "standard": {}, "batch": {"waiting": 9}}
    for queues, is_slow in ((behind_batch, False), (behind_batch | {"standard": {"waiting": 1}}, True), ({}, True)):
        [load] = [Load(worker(queues=queues, **slow))]
        assert (load.standing(Lane.STANDARD).oldest_ms > 0) == is_slow
        assert load.standing(Lane.BATCH).oldest_ms == 60_000


@given(st.lists(states, min_size=1), st.sampled_from(LANES), st.text(min_size=1), st.floats(0, 2))
def test_no_cache_id_takes_anybody_where_the_lane_is_not_read_or_beyond_the_bound(
    heartbeats: list[WorkerState], lane: Lane, cache_id: str, excess: float
) -> None:
    view = WorkersView()
    for state in heartbeats:
        view.update(state.worker_id, state)
    loads = view.live("default", NOW)
    route = choose(
        loads, lane, "r", lane_partitions=8, generated_partitions=8, cache_id=cache_id, excess=excess
    )  # fmt: skip
    fit = [load for load in loads if load.state.lane_partitions[lane] and load.state.home_partitions]
    chosen = [load for load in fit if load.state.worker_id == route.worker_id]
    assert len(chosen) == bool(fit)
    for load in chosen:
        assert route.lane_partition in load.state.lane_partitions[lane]
        assert load.tokens() <= (1 + excess) * sum(each.tokens() for each in fit) / len(fit) + 1e-6


def test_a_full_queue_refuses_the_lowest_priority_first() -> None:
    bound = QueueBound(tokens=1_000, answers=10_000)

    def refused(queued_tokens: int) -> list[Lane]:
        loads = [Load(worker(queued_tokens=queued_tokens))]
        return [lane for lane in LANES if overloaded(loads, lane, bound)]

    assert refused(499) == []
    assert refused(500) == [Lane.BATCH]
    assert refused(800) == [Lane.STANDARD, Lane.BATCH]
    assert refused(1_000) == list(LANES)


@pytest.mark.parametrize(
    ("large", "beside"),
    [
        (
            Weight(300_000),
            {"queued_tokens": 1_200_000, "queued_of": {"heavy": 900_000, "light": 200_000}},
        ),
        (
            Weight(1, answers=1_500),
            {"waiting": 6_000, "waiting_of": {"heavy": 4_500, "light": 1_000}},
        ),
    ],
    ids=["long", "of many answers"],
)
def test_a_few_large_requests_leave_the_last_quarter_of_a_queue_to_who_has_none(
    large: Weight, beside: dict[str, object]
) -> None:
    bound = QueueBound(tokens=2_000_000, answers=10_000)

    def sent(view: WorkersView, *tenants: str) -> list[str]:
        """Whose were taken, each as large as the other."""
        taken: list[str] = []
        for tenant_id in tenants:
            if not overloaded(view.live("default", NOW, tenant_id), Lane.STANDARD, bound):
                view.routed("worker-1", f"r{len(taken)}", large._replace(tenant_id=tenant_id), NOW)
                taken.append(tenant_id)
        return taken

    view = WorkersView()
    view.update("worker-1", worker())
    asking = [*["heavy"] * 20, "light", "light", "new", "newer", "newest"]
    assert sent(view, *asking) == [*["heavy"] * 3, "light", "new", "newer"]
    view = WorkersView()
    view.update("worker-1", worker("worker-1", **beside))
    assert sent(view, "heavy", "light", "new", "new", "newer", "newest") == ["new", "newer"], "as heartbeats tell it"


def test_the_number_of_waiting_answers_is_bounded_too() -> None:
    bound = QueueBound(tokens=10**9, answers=10)
    assert overloaded([Load(worker(waiting=7), routed_answers=3)], Lane.INTERACTIVE, bound)
    assert not overloaded([Load(worker(waiting=7), routed_answers=2)], Lane.INTERACTIVE, bound)


def test_without_a_worker_nothing_is_known_to_be_full() -> None:
    assert not overloaded([], Lane.BATCH, QueueBound(tokens=1, answers=1))


@given(st.integers(0, 10**7), st.floats(0, 10**5), st.none() | st.floats(0, 10**5))
def test_retry_advice_stays_within_its_bounds(queued: int, speed: float, drained: float | None) -> None:
    drain = None if drained is None else Drain(1.0, drained)
    load = Load(worker(queued_tokens=queued, tokens_per_second=speed), drain=drain)
    assert 1_000 <= drain_ms([load]) <= 30_000


def beats(view: WorkersView, left_each_s: int, *, queued_tokens: int, seconds: int = 10) -> list[Load]:
    """What a router knows of a worker whose queue is full all the time and that takes so many tokens a second of it."""
    for second in range(seconds + 1):
        queue = {"waiting": 50, "left": second, "left_tokens": second * left_each_s}
        state = worker(
            beat_at_ms=NOW + second * 1_000, queued_tokens=queued_tokens, tokens_per_second=1_000,
            queues={"standard": queue},
        )  # fmt: skip
        view.update("worker-1", state)
    return view.live("default", NOW + seconds * 1_000)


def test_retry_advice_goes_by_how_fast_the_queue_has_emptied() -> None:
    """Not by what engines generate: answers end earlier than they may, and prompts are read faster."""
    assert drain_ms(beats(WorkersView(), 4_000, queued_tokens=80_000)) == 5_000
    assert drain_ms(beats(WorkersView(), 1_000, queued_tokens=80_000)) == 20_000
    assert drain_ms(beats(WorkersView(), 0, queued_tokens=80_000)) == 30_000, "nothing gets by: as late as may be"
    assert drain_ms(beats(WorkersView(), 4_000, queued_tokens=8_000, seconds=1)) == 2_000, "not measured yet"
    assert drain_ms([Load(worker(queued_tokens=80_000))]) == 5_000, "nothing is known"


def test_retry_advice_is_the_whole_pools() -> None:
    [slow] = beats(WorkersView(), 1_000, queued_tokens=40_000)
    [fast] = beats(WorkersView(), 3_000, queued_tokens=40_000)
    idle = Load(worker("worker-3"))
    assert drain_ms([slow, fast, idle]) == 5_000


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.text(min_size=1))
def test_what_a_worker_cannot_read_on_gets_nothing(held_up: set[int], free: set[int], response_id: str) -> None:
    state = worker(lane_partitions={"standard": sorted(free - held_up)}, held_up={"standard": sorted(held_up)})
    loads = [Load(state), Load(worker("worker-2", lane_partitions={}))]
    if overloaded(loads, Lane.STANDARD, QueueBound(10**6, 10**6)):
        assert held_up
        assert not free - held_up
        return
    route = choose(loads, Lane.STANDARD, response_id, lane_partitions=8, generated_partitions=8)
    assert route.lane_partition not in held_up
    assert not free - held_up or route.lane_partition in free


def test_a_lane_of_which_all_is_held_up_has_no_room_and_the_others_have() -> None:
    loads = [Load(worker(lane_partitions={"batch": [0]}, held_up={"standard": [0, 1]}))]
    bound = QueueBound(10**6, 10**6)
    assert [overloaded(loads, lane, bound) for lane in LANES] == [False, True, False]


def test_a_request_is_told_what_it_finds_before_it() -> None:
    view = WorkersView()
    queues = {
        "interactive": {"waiting": 2, "left": 10}, "standard": {"waiting": 3, "left": 20},
        "batch": {"waiting": 9, "left": 30},
    }  # fmt: skip
    view.update("worker-1", worker(queues=queues, counts_since_ms=7))
    assert view.queued("worker-1", Lane.INTERACTIVE) == QueueAhead(
        worker_id="worker-1", before=2, wait_ms=None, left=10, counts_since_ms=7
    )
    view.routed("worker-1", "r1", Weight(1, lane=Lane.STANDARD), NOW)
    view.routed("worker-1", "r2", Weight(1, lane=Lane.BATCH), NOW)
    seen = [view.queued("worker-1", lane) for lane in LANES]
    assert [(each.before, each.left) for each in seen if each is not None] == [(2, 10), (6, 30), (16, 60)]
    assert view.queued(None, Lane.BATCH) is view.queued("worker-2", Lane.BATCH) is None


def test_what_fills_free_slots_is_before_nobody() -> None:
    view = WorkersView()
    view.update("worker-1", worker(queues={lane: {} for lane in LANES}, max_running=4, running=2))
    found = []
    for number in range(5):
        queued = view.queued("worker-1", Lane.STANDARD)
        found.append((queued.before, queued.left) if queued is not None else None)
        view.routed("worker-1", f"r{number}", Weight(1), NOW)
    assert found == [None, None, None, (1, 2), (2, 2)]
    view.not_routed("worker-1", "r0")
    queued = view.queued("worker-1", Lane.STANDARD)
    assert queued is not None
    assert queued.before == 2
    view.update("worker-1", worker(beat_at_ms=NOW + 1_000, max_running=4))
    assert view.queued("worker-1", Lane.STANDARD) is None, "a worker of the release before does not say"


def test_the_wait_is_by_what_left_its_lane_and_those_above_it() -> None:
    view = WorkersView()
    for second in range(5):
        queues = {"interactive": {"waiting": 4, "left": 2 * second}, "batch": {"waiting": 4, "left": second}}
        view.update("worker-1", worker(beat_at_ms=NOW + second * 1_000, queues=queues))
    waits = [queued and queued.wait_ms for queued in (view.queued("worker-1", lane) for lane in LANES)]
    assert waits == [2_500, 2_500, 3_000]


@pytest.mark.parametrize("cache_id", ["", "conversation"])
def test_a_slow_worker_is_sent_no_more_for_giving_away_what_waits_there(cache_id: str) -> None:
    view = WorkersView()
    for second in range(5):
        slow = {"waiting": 10, "left": 30 * second, "spilled": 29 * second}
        slow |= {"left_tokens": 3_000 * second, "spilled_tokens": 2_900 * second}
        sound = {"waiting": 30, "left": 10 * second, "left_tokens": 1_000 * second}
        for worker_id, queue, queued in (("slow", slow, 1_000), ("sound-1", sound, 3_000), ("sound-2", sound, 3_000)):
            view.update(worker_id, worker(
                worker_id, beat_at_ms=NOW + second * 1_000, queues={"standard": queue}, waiting=queue["waiting"],
                queued_tokens=queued, max_running=8, running=8,
            ))  # fmt: skip
    loads = view.live("default", NOW + 4_000)
    routes = [
        choose(
            loads, Lane.STANDARD, f"r{number}", lane_partitions=8, generated_partitions=8,
            cache_id=cache_id and f"{cache_id}-{number}", excess=0.25,
        ).worker_id for number in range(50)
    ]  # fmt: skip
    assert set(routes) == {"sound-1", "sound-2"}


def test_what_a_worker_may_have_beyond_others_goes_by_its_size() -> None:
    slack = [Load(worker(max_running=slots)).standing(Lane.STANDARD).slack_tokens for slots in (0, 1, 8, 64, 256)]
    assert slack == [256 * answers for answers in (0, 1, 2, 4, 16)]
