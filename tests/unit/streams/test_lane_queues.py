"""What waits in a lane is told of all workers that say it: how many, since when, how long by how fast others went."""

from collections.abc import Sequence

from schemas.request import LANES
from schemas.worker import WorkerState
from streams.drain import DrainWindow
from streams.lane_queues import LaneQueues, lane_queues

NOW = 1_790_000_000_000


def said(worker_id: str, second: int, waiting: Sequence[int], left: Sequence[int], **fields: object) -> WorkerState:
    """Of each lane."""
    queues = {
        lane: {"waiting": waiting[at], "left": left[at], "oldest_ms": waiting[at] * 100}
        for at, lane in enumerate(LANES)
    }
    values: dict[str, object] = {
        "worker_id": worker_id, "pool": "default", "model": "m", "engine": "simulated", "state": "ready",
        "beat_at_ms": NOW + second * 1_000, "lease_ms": 4_000, "queues": queues,
    }  # fmt: skip
    return WorkerState.model_validate(values | fields)


def told(*beats: WorkerState, at_ms: int = NOW + 5_000, pool: str = "default") -> list[LaneQueues]:
    workers: dict[str, WorkerState] = {}
    drains: dict[str, DrainWindow] = {}
    for state in beats:
        workers[state.worker_id] = state
        drains.setdefault(state.worker_id, DrainWindow()).add(state)
    return [lane_queues(pool, lane, workers, drains, at_ms) for lane in LANES]


def test_it_is_of_all_workers_of_the_pool_together() -> None:
    one = [said("worker-1", second, (0, 4, 6), (0, second, 0)) for second in range(5)]
    other = [said("worker-2", second, (0, 5, 0), (0, 2 * second, 0)) for second in range(5)]
    gone = [said("worker-3", second, (9, 9, 9), (0, 0, 0), lease_ms=1) for second in range(5)]
    strange = [said("worker-4", second, (9, 9, 9), (0, 0, 0), pool="other") for second in range(5)]
    interactive, standard, batch = told(*one, *other, *gone, *strange)
    assert interactive == LaneQueues(0, 0, 0, None, 0), "who comes now waits for nobody"
    assert standard == LaneQueues(9, 500, 9, 3.0, 3_333)
    assert batch == LaneQueues(6, 600, 15, 0.0, 5_333), "behind those of the lanes above"


def test_where_no_worker_says_it_nothing_is_told() -> None:
    before = said("worker-1", 0, (0, 0, 0), (0, 0, 0), queues={})
    assert told(before) == told() == [LaneQueues()] * 3
    [_, standard, _] = told(said("worker-1", 4, (0, 2, 0), (0, 0, 0)))
    assert standard == LaneQueues(2, 200, 2, None, None), "not measured yet"
