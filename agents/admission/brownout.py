"""What admission does of a pool's level: goes by it, and, as the one worker that owns a certain partition, says it.

The levels stand on a compacted topic. Every admission worker reads it, the one that decides too, so that all go by the
same; and whoever comes to own that partition goes on from what stands there. An owner that does not know yet that it is
none any more decides by the same heartbeats. A worker that dies between deciding and writing has decided nothing.
"""

from collections.abc import Iterable, Mapping

from agents.admission import metrics
from schemas.brownout import PoolLevel
from schemas.request import Lane
from streams.brownout import DEFAULT_POLICY, BrownoutPolicy, Degraded, LaneSample, Reading, Steps, degraded, read


class Brownouts:
    """The levels as they stand. A reader thread tells it, the event loop asks."""

    def __init__(self, policy: BrownoutPolicy = DEFAULT_POLICY, pools: Iterable[str] = ()) -> None:
        self._policy = policy
        self._levels: dict[str, int] = {}
        for pool in pools:
            metrics.BROWNOUT_LEVEL.labels(pool).set(0)

    def take(self, said: PoolLevel) -> None:
        self._levels[said.pool] = said.level
        metrics.BROWNOUT_LEVEL.labels(said.pool).set(said.level)

    def level(self, pool: str) -> int:
        return self._levels.get(pool, 0)

    def of(self, pool: str, tier: str) -> Degraded:
        """What tenants of this tier get there now."""
        return degraded(self.level(pool), tier, self._policy)


class Decider:
    """Says what levels change to. Asked every second by who owns it; `rest` by who does not."""

    def __init__(self, policy: BrownoutPolicy, pools: Iterable[str], levels: Brownouts) -> None:
        self._policy = policy
        self._pools = tuple(pools)
        self._levels = levels
        self._steps: dict[str, Steps] = {}
        self._ready_since_ms: dict[str, int] = {}
        """Since when a worker was ready at every look."""

    def rest(self) -> None:
        """What was measured so far is nothing to go on from."""
        self._steps.clear()
        self._ready_since_ms.clear()

    def changes(self, samples: Mapping[str, Mapping[Lane, LaneSample] | None], now_ms: int) -> list[PoolLevel]:
        """What is to be written. A pool of which nobody says anything stays where it is: so does one of which no worker
        is ready.
        """
        changes = []
        for pool in self._pools:
            reading, level = self._read(pool, samples.get(pool), now_ms), self._levels.level(pool)
            pinned = self._policy.pinned.get(pool)
            steps = self._steps.setdefault(pool, Steps(self._policy))
            wanted = steps.next(level, reading.pressure, now_ms) if pinned is None else pinned
            if wanted != level:
                why = "set by the operator" if pinned is not None else reading.why or "targets are met"
                changes.append(PoolLevel(pool=pool, level=wanted, since_ms=now_ms, why=why))
        return changes

    def _read(self, pool: str, samples: Mapping[Lane, LaneSample] | None, now_ms: int) -> Reading:
        if samples is None:
            self._ready_since_ms.pop(pool, None)
            return Reading("between")
        return read(samples, self._policy, now_ms - self._ready_since_ms.setdefault(pool, now_ms))
