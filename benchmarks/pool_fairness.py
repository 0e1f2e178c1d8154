"""How the tenants of a pool share it whose work waits at some of its workers: as one pool, and each worker by itself.

In virtual time, with the workers' own schedulers and the simulated engine (`one_worker.py`, `fairness.py`): four
workers of 64 answers, which hear each other's heartbeats every second, or do not.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from benchmarks.fairness import BATCH, ENGINE, SIZES
from benchmarks.figures import Report
from benchmarks.one_worker import WINDOW_S, Arrival, OneWorker, at_once, jain
from gpu_consumers.core.pool_shares import PoolShares
from gpu_consumers.core.scheduler import Scheduler
from schemas.request import Lane
from schemas.worker import WorkerState

WORKERS = 4
BEAT_S = 1.0
WARM_UP_S = 30.0
"""The first answers of a full batch end by then: what they came to is told at their end."""
ANSWERS_PER_S = 15
"""More than a worker gives."""
PLACES: dict[str, Mapping[str, Sequence[int]]] = {
    "one at four workers, one at two": {"four": range(WORKERS), "two": range(2)},
    "four everywhere, four at two workers each": {
        **{f"all{n}": range(WORKERS) for n in range(4)}, **{f"two{n}": (n, (n + 1) % WORKERS) for n in range(4)},
    },
}  # fmt: skip
"""At which workers each tenant's backlog waits."""


class _Member:
    """One worker of the pool. `hears`: of the others."""

    def __init__(self, name: str, seed: int, *, hears: bool) -> None:
        self.scheduler = Scheduler(SIZES)
        self.worker = OneWorker(self.scheduler, ENGINE, seed)
        self._name = name
        self._shares = PoolShares(name, "pool")
        self._hears = hears

    def beat(self) -> WorkerState:
        return WorkerState(
            worker_id=self._name, pool="pool", model="m", engine="simulated", state="ready", beat_at_ms=0, lease_ms=1,
            counts_since_ms=1, given_of=self.scheduler.given_of(), ahead_of=self.scheduler.ahead_of(),
        )  # fmt: skip

    def hear(self, beats: Sequence[WorkerState]) -> None:
        if not self._hears:
            return
        for beat in beats:
            self._shares.heard(beat, own_counts_since_ms=1)
        self.scheduler.given_elsewhere(self._shares.take_given())


def _shares(places: Mapping[str, Sequence[int]], until_s: float, seed: int, *, hears: bool) -> list[Counter[str]]:
    """Service of each tenant, by window, in all the pool."""
    rng = random.Random(seed)
    members = [_Member(f"w{number}", seed + number, hears=hears) for number in range(WORKERS)]
    backlogs: defaultdict[int, list[Arrival]] = defaultdict(list)
    for tenant_id, numbers in places.items():
        for number in numbers:
            backlogs[number] += at_once(rng, tenant_id, Lane.STANDARD, int(until_s * ANSWERS_PER_S))
    now_s = 0.0
    while now_s < until_s:
        now_s += BEAT_S
        for number, member in enumerate(members):
            member.worker.run(backlogs.pop(number, ()), now_s)
        beats = [member.beat() for member in members]
        for member in members:
            member.hear(beats)
    first, last = int(WARM_UP_S // WINDOW_S), int(until_s // WINDOW_S)
    windows = [Counter[str]() for _ in range(first, last)]
    for member in members:
        for window, counted in enumerate(windows, first):
            counted.update({tenant_id: int(tokens) for tenant_id, tokens in member.worker.seen.service[window].items()})
    return windows


def run(*, short: bool, seed: int) -> Report:
    seconds = 30.0 if short else 120.0
    report = Report("pool_fairness", {"workers": WORKERS, "max_running": BATCH, "seconds": seconds, "seed": seed})
    for title, places in PLACES.items():
        for name, hears in (("each worker by itself", False), ("as one pool", True)):
            windows = _shares(places, WARM_UP_S + seconds, seed, hears=hears)
            whole = sum(windows, Counter[str]())
            what = f"{name}: Jain index of {title}"
            is_ours = hears and len(places) == 2
            goal, spread = (0.97, 0.02) if is_ours else (None, None)
            report.add(
                what, jain([whole[tenant_id] for tenant_id in places]), "index", goal, at_most=False, spread=spread
            )
            worst = min(jain([window[tenant_id] for tenant_id in places]) for window in windows)
            report.add(f"{what}, worst window of 10 s", worst, "index")
            report.add(f"{what}: tokens", whole.total() / seconds, "tokens/s")
    return report
