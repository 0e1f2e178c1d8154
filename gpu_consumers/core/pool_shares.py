"""What a pool's workers tell each other, so that tenants share all of them as one, and a restart forgets nothing.

Each says in its heartbeats what has left its engine of whose requests, by lane, counted since it began; the others take
the differences, so that a beat that is lost or comes twice changes nothing. Pure: no I/O, no clock.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from schemas.request import Lane
from schemas.worker import OfTenantsByLane, WorkerState
from streams.service_shares import given_between

Service = Mapping[str, int]
"""Tokens by tenant, as `FairQueue` counts them."""


class PoolShares:
    def __init__(self, worker_id: str, pool: str) -> None:
        self._worker_id = worker_id
        self._pool = pool
        self._former: WorkerState | None = None
        self._has_begun = False
        self._told: dict[str, WorkerState] = {}
        self._elsewhere: defaultdict[Lane, Counter[str]] = defaultdict(Counter)

    def heard(self, state: WorkerState, own_counts_since_ms: int) -> OfTenantsByLane | None:
        """A heartbeat of any worker, in order per worker. Returns how far tenants were ahead at this worker's
        predecessor, once: when its own first beat is heard, before which the other's stand.
        """
        if state.pool != self._pool:
            return None
        if state.worker_id == self._worker_id:
            return self._own(state, own_counts_since_ms)
        before = self._told.get(state.worker_id)
        self._told[state.worker_id] = state
        if before is not None:
            for lane, tenant_id, tokens in given_between(before, state):
                self._elsewhere[lane][tenant_id] += tokens
        return None

    def _own(self, state: WorkerState, counts_since_ms: int) -> OfTenantsByLane | None:
        if self._has_begun:
            return None
        if state.counts_since_ms != counts_since_ms:
            self._former = state
            return None
        self._has_begun, former = True, self._former
        self._former = None
        return None if former is None else former.ahead_of

    def buried(self, worker_id: str) -> bool:
        """It is told no more. Returns whether it was: another worker of this pool, that was not buried yet."""
        return self._told.pop(worker_id, None) is not None

    def take_given(self) -> Mapping[Lane, Service]:
        """What others have given since this was taken last."""
        given = dict(self._elsewhere)
        self._elsewhere.clear()
        return given
