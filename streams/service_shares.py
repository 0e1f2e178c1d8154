"""What part of a pool's service each tenant was given of late, by its workers' heartbeats. Pure: time is a parameter.

Service is what workers share fairly: a prompt's tokens and twice those of its answer, by the tenant's weight. So of
tenants that all have work waiting each is given the same part, whatever their weights. It counts when it has left an
engine, and as of the heartbeat that says so.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

from schemas.request import Lane
from schemas.worker import MAX_TENANTS, WorkerState

WINDOW_MS: Final = 60_000
STEP_MS: Final = 5_000
"""The window moves on by such steps."""
MAX_NAMED: Final = 1_024
"""Tenants of a pool in one step. What is given to more of them counts as given, and to nobody."""

_NOBODY: Final = ""


class TenantShare(NamedTuple):
    tenant_id: str
    share: float
    """Of all that the pool gave, from 0 to 1."""
    given: int


def given_between(older: WorkerState, newer: WorkerState) -> Iterator[tuple[Lane, str, int]]:
    """What a worker of that name gave to whom, from one heartbeat to a later one. A later life counts anew."""
    is_same_life = older.counts_since_ms == newer.counts_since_ms
    for lane, given in newer.given_of.items():
        known = older.given_of.get(lane, {}) if is_same_life else {}
        for tenant_id, tokens in given.items():
            # Where not all are told of, one may have been left out before: nobody knows since when.
            then = known.get(tenant_id, tokens if len(known) == MAX_TENANTS else 0)
            yield lane, tenant_id, max(tokens - then, 0)


class ServiceShares:
    """Of the last minute, or since it is told. What a worker's first heartbeat says is of no known age."""

    def __init__(self) -> None:
        self._told: dict[str, WorkerState] = {}
        self._steps: defaultdict[str, dict[int, Counter[str]]] = defaultdict(dict)

    def hear(self, said: Iterable[WorkerState], still_there: Container[str], at_ms: int) -> None:
        """Heartbeats, in order per worker; of workers that are not there any more the last is forgotten. `at_ms`: now,
        which never goes back by much. A worker whose clock is ahead has given now what it says.
        """
        first = (at_ms - WINDOW_MS) // STEP_MS
        for state in said:
            before = self._told.get(state.worker_id)
            self._told[state.worker_id] = state
            step = min(state.beat_at_ms, at_ms) // STEP_MS
            if before is not None and step > first:
                self._count(self._steps[state.pool].setdefault(step, Counter()), before, state)
        self._told = {worker_id: state for worker_id, state in self._told.items() if worker_id in still_there}
        for pool in list(self._steps):
            kept = {step: given for step, given in self._steps[pool].items() if step > first}
            if kept:
                self._steps[pool] = kept
            else:
                del self._steps[pool]

    @staticmethod
    def _count(given: Counter[str], before: WorkerState, state: WorkerState) -> None:
        for _, tenant_id, tokens in given_between(before, state):
            if tokens:
                given[tenant_id if tenant_id in given or len(given) < MAX_NAMED else _NOBODY] += tokens

    def of(self, pool: str) -> list[TenantShare]:
        """Whom it gave most, the first first."""
        given: Counter[str] = Counter()
        for step in self._steps.get(pool, {}).values():
            given.update(step)
        everything = given.total()
        given.pop(_NOBODY, None)
        return [TenantShare(tenant_id, tokens / everything, tokens) for tenant_id, tokens in _most(given)]


def _most(given: Counter[str]) -> list[tuple[str, int]]:
    return sorted(given.items(), key=lambda each: (-each[1], each[0]))[:MAX_TENANTS]
