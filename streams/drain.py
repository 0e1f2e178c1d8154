"""How fast a worker's queue empties, by what its heartbeats say has left it. Pure: the time stands in them.

What was given to other workers has left it and was not served: it is no part of how fast that goes.

Counted is the time between two heartbeats in both of which something waits. What a worker with free slots takes at once
says nothing of how long a queue takes, nor does a worker that has nothing to take.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from schemas.request import LANES, Lane
from schemas.worker import LaneQueue, WorkerState

WINDOW_MS: Final = 30_000
LEAST_MS: Final = 2_000
"""Of such time: with less, nothing is measured."""
MAX_BEATS: Final = 64

AHEAD: Final[Mapping[Lane, tuple[Lane, ...]]] = {lane: LANES[: index + 1] for index, lane in enumerate(LANES)}
"""The lanes whose requests go before what comes into a lane: itself, and those above it."""


class Drain(NamedTuple):
    """What left a queue, a second of waiting. It may be nothing: then a few long answers hold up all others."""

    requests_per_s: float
    tokens_per_s: float


class Passed(NamedTuple):
    """What has left, in all."""

    requests: int
    tokens: int


def waiting(queues: Mapping[Lane, LaneQueue], lanes: Iterable[Lane]) -> int:
    """Requests."""
    return sum(queues[lane].waiting for lane in lanes if lane in queues)


def passed(queues: Mapping[Lane, LaneQueue], lanes: Iterable[Lane]) -> Passed:
    of = [queues[lane] for lane in lanes if lane in queues]
    return Passed(sum(each.left for each in of), sum(each.left_tokens for each in of))


def _served(queues: Mapping[Lane, LaneQueue], lanes: Iterable[Lane]) -> Passed:
    """As `passed`, without what was given to other workers: there it leaves once more."""
    of = [queues[lane] for lane in lanes if lane in queues]
    return Passed(
        sum(each.left - each.spilled for each in of), sum(each.left_tokens - each.spilled_tokens for each in of)
    )


class FirstTokens(NamedTuple):
    """How many came in the window, and how many of them late."""

    came: int = 0
    late: int = 0


class _Beat(NamedTuple):
    """What is kept of a heartbeat: whose the work is, which may be most of it, says nothing here."""

    at_ms: int
    counts_since_ms: int
    queues: Mapping[Lane, LaneQueue]


class DrainWindow:
    """The heartbeats of one worker of the last half minute, by its own clock; of each what waits and what has left."""

    def __init__(self) -> None:
        self._beats: deque[_Beat] = deque(maxlen=MAX_BEATS)
        self._known: dict[tuple[Lane, ...], tuple[int, Drain | None]] = {}

    def add(self, state: WorkerState) -> None:
        """What another worker of its name has counted says nothing of this one."""
        if self._beats and state.beat_at_ms <= self._beats[-1].at_ms:
            return
        if self._beats and state.counts_since_ms != self._beats[-1].counts_since_ms:
            self._beats.clear()
        self._known.clear()
        self._beats.append(_Beat(state.beat_at_ms, state.counts_since_ms, state.queues))
        while self._beats[0].at_ms < state.beat_at_ms - WINDOW_MS:
            self._beats.popleft()

    def drain(self, lanes: tuple[Lane, ...] = LANES) -> Drain | None:
        """Of these lanes together; None: too little of it waited lately to say."""
        return self._looked(lanes)[1]

    def waited_ms(self, lanes: tuple[Lane, ...] = LANES) -> int:
        """For how long of the window what `drain` tells was looked at."""
        return self._looked(lanes)[0]

    def first_tokens(self, lane: Lane) -> FirstTokens:
        """Between the first and the last heartbeat of the window."""
        if not self._beats:
            return FirstTokens()
        nothing = LaneQueue()
        first, last = (self._beats[at].queues.get(lane, nothing) for at in (0, -1))
        return FirstTokens(
            max(last.first_tokens - first.first_tokens, 0), max(last.late_first_tokens - first.late_first_tokens, 0)
        )

    def _looked(self, lanes: tuple[Lane, ...]) -> tuple[int, Drain | None]:
        if lanes not in self._known:
            self._known[lanes] = self._measured(lanes)
        return self._known[lanes]

    def _measured(self, lanes: tuple[Lane, ...]) -> tuple[int, Drain | None]:
        waited_ms = requests = tokens = 0
        beats = [(beat.at_ms, waiting(beat.queues, lanes), _served(beat.queues, lanes)) for beat in self._beats]
        for (then_ms, waited, before), (at_ms, waits, after) in pairwise(beats):
            if waited and waits:
                waited_ms += at_ms - then_ms
                requests += after.requests - before.requests
                tokens += after.tokens - before.tokens
        if waited_ms < LEAST_MS:
            return waited_ms, None
        return waited_ms, Drain(requests * 1_000 / waited_ms, tokens * 1_000 / waited_ms)


def learned(
    windows: Mapping[str, DrainWindow], said: Iterable[WorkerState], still_there: Container[str]
) -> dict[str, DrainWindow]:
    """The windows of workers, with what was said since; of those that are not there any more nothing is kept."""
    known = dict(windows)
    for state in said:
        known.setdefault(state.worker_id, DrainWindow()).add(state)
    return {worker_id: window for worker_id, window in known.items() if worker_id in still_there}
