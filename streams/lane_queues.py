"""What waits in each lane of a pool, by what its workers say. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from schemas.request import Lane
from schemas.worker import WorkerState
from streams.drain import AHEAD, Drain, DrainWindow, waiting
from streams.queue_place import wait_ms


class LaneQueues(NamedTuple):
    """Of all workers of a pool. None: nobody says, or too little waited lately to measure it."""

    waiting: int | None = None
    oldest_ms: int | None = None
    """How long what waits has waited at most."""
    before: int | None = None
    """Requests that go before one that comes now: of the lane, and of those above."""
    left_per_s: float | None = None
    wait_ms: int | None = None
    """That a request which comes now would wait for others."""


def lane_queues(
    pool: str, lane: Lane, workers: Mapping[str, WorkerState], drains: Mapping[str, DrainWindow], at_ms: int
) -> LaneQueues:
    live = [state for state in workers.values() if state.pool == pool and state.queues and state.is_live(at_ms)]
    if not live:
        return LaneQueues()
    windows = [drains[state.worker_id] for state in live if state.worker_id in drains]
    own, ahead = _drain(windows, (lane,)), _drain(windows, AHEAD[lane])
    before = sum(waiting(state.queues, AHEAD[lane]) for state in live)
    return LaneQueues(
        sum(waiting(state.queues, (lane,)) for state in live),
        max(state.queues[lane].oldest_ms if lane in state.queues else 0 for state in live),
        before,
        None if own is None else own.requests_per_s,
        wait_ms(before, ahead) if before else 0,
    )


def _drain(windows: list[DrainWindow], lanes: tuple[Lane, ...]) -> Drain | None:
    drains = [drain for window in windows if (drain := window.drain(lanes)) is not None]
    if not drains:
        return None
    return Drain(sum(each.requests_per_s for each in drains), sum(each.tokens_per_s for each in drains))
