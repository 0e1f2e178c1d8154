"""What a worker knows of the others: when it is to read their lanes, as a member of the group, when they read its own,
and who was lost.

Pure: time is a parameter.
"""

from collections.abc import Collection, Mapping

from schemas.request import Lane
from schemas.worker import WorkerState

BEAT_MS = 1_000
LISTEN_MS = 2_000
"""Who has listened for so long and heard of no ready worker, which beats every second at least, may believe that there
is none."""
PATIENCE_MS = 5_000
"""How long a member may be without an engine beside a ready worker, before it leaves: most engines are back by then."""

LOST_MS = 900_000
"""After so long without a beat nobody needs to know any more what a worker said. One that comes back says it anew."""


def beat_every_ms(lease_ms: int) -> int:
    """How often a worker says that it lives: some times in its lease, or it would count as lost before each beat."""
    return min(BEAT_MS, lease_ms // 4)


class Membership:
    """A worker without an engine leaves the lanes to the ready workers of its pool: nothing is to wait for its engine.

    Where none is ready it reads them all the same: what a dead worker began is ended without an engine.
    """

    def __init__(self, worker_id: str, pool: str) -> None:
        self._worker_id = worker_id
        self._pool = pool
        self._listening_since_ms: int | None = None
        self._ready: dict[str, WorkerState] = {}
        self._last_beats_ms: dict[str, int] = {}
        self._is_member = False
        self._spare_since_ms: int | None = None

    def listening(self, now_ms: int) -> None:
        """From now on every heartbeat is told with `heard`."""
        self._listening_since_ms = now_ms

    def heard(self, state: WorkerState) -> None:
        """A heartbeat of any worker; in order per worker."""
        if state.worker_id == self._worker_id:
            return
        self._last_beats_ms[state.worker_id] = state.beat_at_ms
        if state.pool != self._pool:
            return
        if state.state == "ready":
            self._ready[state.worker_id] = state
        else:
            self._ready.pop(state.worker_id, None)

    def buried(self, worker_id: str) -> None:
        """It has left, or another one has noticed that it was lost."""
        self._last_beats_ms.pop(worker_id, None)
        self._ready.pop(worker_id, None)

    def take_lost(self, now_ms: int) -> list[str]:
        """Workers of any pool that were heard, and have been silent for `LOST_MS`; each is given once.

        Every worker that heard them says so: to say it twice changes nothing.
        """
        lost = [worker for worker, beat_at_ms in self._last_beats_ms.items() if now_ms - beat_at_ms >= LOST_MS]
        for worker_id in lost:
            self.buried(worker_id)
        return lost

    def reads_lanes(self, ready: bool, now_ms: int) -> bool:
        """Whether this worker, whose engine is `ready` or not, is to be a member now. Ask several times a second."""
        if ready:
            self._is_member, self._spare_since_ms = True, None
        elif self._listening_since_ms is None or now_ms - self._listening_since_ms < LISTEN_MS:
            pass  # not before it knows of the others
        elif not self._is_another_ready(now_ms):
            self._is_member, self._spare_since_ms = True, None
        elif self._is_member:
            if self._spare_since_ms is None:
                self._spare_since_ms = now_ms
            self._is_member = now_ms - self._spare_since_ms < PATIENCE_MS
        return self._is_member

    def are_to_be_read(self, lanes: Mapping[Lane, Collection[int]], now_ms: int) -> bool:
        """Whether ready workers have still to take over some of these partitions, which this one has left."""
        if not self._is_another_ready(now_ms):
            return False
        return any(set(numbers) - self._read_by_others(lane) for lane, numbers in lanes.items())

    def _read_by_others(self, lane: Lane) -> set[int]:
        return {
            number
            for state in self._ready.values()
            for number in (*state.lane_partitions.get(lane, ()), *state.held_up.get(lane, ()))
        }

    def _is_another_ready(self, now_ms: int) -> bool:
        self._ready = {peer: state for peer, state in self._ready.items() if state.is_live(now_ms)}
        return bool(self._ready)
