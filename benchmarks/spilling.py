"""What becomes of requests that wait at a worker which falls behind, or came before a worker that was added.

In virtual time, with the router's own view and choice, the workers' own schedulers and their own rule of what they give
to others (`gpu_consumers.core.spilling`); beside it, nothing is given away, as before. Four workers of 32 answers at
once, of 120 to 480 tokens, one every 18 ms; heartbeats every second. A lane has eight partitions. A copy that is given
away is read 20 ms later. When a worker is added, partitions with what waits in them go to it, after a second.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from agents.admission.routing import Weight, WorkersView, choose
from benchmarks.agenda import Agenda
from benchmarks.figures import Report, percentile
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.membership import beat_every_ms
from gpu_consumers.core.scheduler import Scheduler, Sizes
from gpu_consumers.core.spilling import MAX_SPILLS, Candidate, Spilling
from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.request import LANES, Lane, Sampling
from schemas.worker import WorkerState
from streams.engine_args import SimulatedEngineSettings
from streams.ids import stable_partition
from streams.settings import WorkerSettings

BATCH, PARTITIONS, PROMPT_TOKENS, MOST_OUTPUT = 32, 8, (50, 400), 512
LEASE_MS = WorkerSettings().lease_ms
BEAT_S = beat_every_ms(LEASE_MS) / 1_000
READ_S, REBALANCE_S = 0.02, 1.0
RATE_OF_ONE = 5.6
"""Answers a second that a worker comes to."""
SLOWER = 8
SLOW_FROM_S, NOTICED_S = 10.0, 5.0
TENANTS = 6
POLICIES: Mapping[str, int] = {"stays": 0, "spills": WorkerSettings().spills_per_s}


@dataclass(frozen=True, slots=True)
class Scene:
    """`load`: of what four workers do. `backlog`: seconds of what three do, there at once; then a fourth is added, to
    which come partitions with their part of it, or such as nothing waits in.
    """

    title: str
    load: float = 0.0
    backlog_s: float = 0.0
    is_even: bool = True


SCENES = (
    Scene("one of four is eight times slower", load=0.7),
    Scene("one of four is eight times slower, and all are busy", load=0.95),
    Scene("a fourth is added", backlog_s=30.0),
    Scene("a fourth is added, whose partitions are empty", backlog_s=30.0, is_even=False),
)


@dataclass(slots=True, eq=False)
class Asked:
    name: str
    tenant_id: str
    at_s: float
    prompt: list[int]
    partition: int = 0
    spills: int = 0
    first_s: float | None = None


@dataclass(slots=True, eq=False)
class Worker:
    worker_id: str
    engine: SimulatedCore
    spilling: Spilling
    partitions: set[int]
    slower: float = 1.0
    queue: Scheduler = field(default_factory=lambda: Scheduler(Sizes(BATCH, 0, 0)))
    held: Held = field(default_factory=Held)
    waiting: dict[str, Asked] = field(default_factory=dict)
    running: dict[str, Asked] = field(default_factory=dict)
    began: tuple[float, float] = 0.0, 0.0
    """Since when it is as fast as it is: in time, and in that of its engine."""

    def becomes(self, slower: float, now_s: float) -> None:
        self.began = now_s, self.engine_s(now_s)
        self.slower = slower

    def engine_s(self, now_s: float) -> float:
        return self.began[1] + (now_s - self.began[0]) / self.slower

    @property
    def due_s(self) -> float | None:
        due_s = self.engine.next_due_s
        return None if due_s is None else self.began[0] + (due_s - self.began[1]) * self.slower

    def reads(self, asked: Asked, now_s: float) -> None:
        tokens = len(asked.prompt)
        self.waiting[asked.name] = asked
        self.queue.add(
            Queued(
                asked.name, Lane.STANDARD, tokens + MOST_OUTPUT, int(now_s * 1_000), 1, asked.tenant_id, tokens,
                MOST_OUTPUT,
            )
        )  # fmt: skip
        self.starts(now_s)

    def starts(self, now_s: float) -> None:
        while (given := self.queue.take(self.held, int(now_s * 1_000))) is not None:
            asked = self.running[given.item.response_id] = self.waiting.pop(given.item.response_id)
            self.held.add(Lane.STANDARD, asked.tenant_id, 1, on_floor=given.on_floor)
            self.engine.submit(
                EngineRequest(asked.name, asked.prompt, Sampling(), MOST_OUTPUT, cache_salt=asked.tenant_id),
                self.engine_s(now_s),
            )

    def steps(self, now_s: float) -> None:
        for delta in self.engine.step(self.engine_s(now_s)):
            assert delta.error is None, delta.error
            asked = self.running[delta.request_id]
            asked.first_s = now_s if asked.first_s is None else asked.first_s
            if delta.finish:
                del self.running[delta.request_id]
                self.held.add(Lane.STANDARD, asked.tenant_id, -1, on_floor=False)
                self.queue.left(Lane.STANDARD, asked.name, MOST_OUTPUT // 2)
        self.starts(now_s)

    def leaves(self, name: str, *, given: bool) -> Asked:
        if given:
            self.queue.give_away(name)
        else:
            self.queue.remove(name, is_moved=True)
        return self.waiting.pop(name)

    def beat(self, now_s: float) -> WorkerState:
        stats, now_ms = self.engine.stats(), int(now_s * 1_000)
        ages = self.queue.oldest_waiting_ms(now_ms)
        return WorkerState(
            worker_id=self.worker_id, pool="p", model="m", engine="simulated", state="ready", beat_at_ms=now_ms,
            lease_ms=LEASE_MS, lane_partitions={lane: sorted(self.partitions) for lane in LANES},
            home_partitions=[0], running=stats.running, waiting=len(self.waiting),
            queued_tokens=self.queue.queued_tokens, queues=self.queue.queues(), counts_since_ms=1, max_running=BATCH,
            kv_blocks_used=stats.kv_blocks_used, kv_blocks_total=stats.kv_blocks_total,
            oldest_waiting_ms=max(ages.values()),
        )  # fmt: skip


class Pool:
    """Workers side by side behind one router."""

    def __init__(self, policy: str, scene: Scene, seed: int) -> None:
        self._scene, self._seed, self._per_s = scene, seed, POLICIES[policy]
        self._agenda = Agenda()
        self._view = WorkersView()
        self._draws = random.Random(f"{seed}/asked")
        self.workers: list[Worker] = []
        self.asked: list[Asked] = []
        self.sent: Counter[str] = Counter()
        """By worker, behind the first seconds in which one is slow."""
        self.added_s: float | None = None
        self.has_share_s: float | None = None
        shares = [{0, 1}, {2, 3}, {4, 5}, {6, 7}] if not scene.backlog_s else [{0, 1, 6}, {2, 3, 7}, {4, 5}]
        for partitions in shares:
            self._add(partitions)

    def _add(self, partitions: set[int]) -> Worker:
        number = len(self.workers)
        settings = SimulatedEngineSettings(max_running=BATCH, seed=self._seed)
        worker_id = f"worker-{number}"
        spilling = Spilling(worker_id, "p", self._per_s)
        worker = Worker(worker_id, SimulatedCore(settings), spilling, partitions)
        self.workers.append(worker)
        self._agenda.at(number * BEAT_S / 4, partial(self._beat, worker))
        return worker

    def run(self, until_s: float) -> None:
        scene = self._scene
        if scene.backlog_s:
            for _ in range(int(scene.backlog_s * 3 * RATE_OF_ONE)):
                self._ask(0.0)
            self._agenda.at(5.0, self._fourth)
        else:
            for at_s in self._arrivals(scene.load * 4 * RATE_OF_ONE, until_s):
                self._agenda.at(at_s, self._ask)
            self._agenda.at(SLOW_FROM_S, partial(self.workers[0].becomes, SLOWER))
        self._agenda.run(until_s, self.workers, lambda worker: worker.due_s, Worker.steps)

    def _arrivals(self, rate: float, until_s: float) -> Iterator[float]:
        source, at_s = random.Random(f"{self._seed}/arrivals"), 0.0
        while (at_s := at_s + source.expovariate(rate)) < until_s:
            yield at_s

    def _ask(self, now_s: float) -> None:
        number, draws = len(self.asked), self._draws
        tokens = draws.choices(range(10_000), k=draws.randint(*PROMPT_TOKENS))
        asked = Asked(f"r{number}", f"t{draws.randrange(TENANTS)}", now_s, tokens)
        self.asked.append(asked)
        loads = self._view.live("p", int(now_s * 1_000))
        worker = self.workers[number % len(self.workers)]
        if loads:
            route = choose(loads, Lane.STANDARD, asked.name, lane_partitions=PARTITIONS, generated_partitions=1)
            worker = next(each for each in self.workers if each.worker_id == route.worker_id)
            weight = Weight(len(tokens) + MOST_OUTPUT, 1, asked.tenant_id)
            self._view.routed(worker.worker_id, asked.name, weight, int(now_s * 1_000))
            self.sent[worker.worker_id] += now_s >= SLOW_FROM_S + NOTICED_S
        self._reads(worker, asked, now_s)

    def _reads(self, worker: Worker, asked: Asked, now_s: float) -> None:
        partitions = sorted(worker.partitions)
        if not self._scene.is_even and self.added_s is None:
            partitions = [number for number in partitions if number < 6]
        asked.partition = partitions[stable_partition(asked.name, len(partitions))]
        worker.reads(asked, now_s)

    def _fourth(self, now_s: float) -> None:
        """It joins: the others have lost partitions at once, and it begins to read them when all know."""
        moved = {6, 7}
        came = []
        for worker in self.workers:
            worker.partitions -= moved
            came += [
                worker.leaves(name, given=False) for name, asked in [*worker.waiting.items()]
                if asked.partition in moved
            ]  # fmt: skip
        self.added_s = now_s
        self._agenda.at(now_s + REBALANCE_S, partial(self._begins, moved, came))

    def _begins(self, partitions: set[int], came: list[Asked], now_s: float) -> None:
        worker = self._add(partitions)
        for asked in came:
            worker.reads(asked, now_s)

    def _beat(self, worker: Worker, now_s: float) -> None:
        state = worker.beat(now_s)
        self._view.update(worker.worker_id, state)
        for each in self.workers:
            each.spilling.heard(state)
        self._give(worker, now_s)
        self._agenda.at(now_s + BEAT_S, partial(self._beat, worker))
        if self.added_s is not None and self.has_share_s is None and self._has_share():
            self.has_share_s = now_s - self.added_s

    def _has_share(self) -> bool:
        """Whether the fourth has a full batch, and at least half as much in its queue as the others on average."""
        *others, fourth = self.workers
        waiting = sum(len(each.waiting) for each in others)
        return len(others) == 3 and len(fourth.running) == BATCH and 2 * len(fourth.waiting) >= waiting / 3

    def _give(self, worker: Worker, now_s: float) -> None:
        now_ms = int(now_s * 1_000)
        if not worker.spilling.due(now_ms):
            return
        candidates = [
            Candidate(name, asked.tenant_id, len(asked.prompt), now_ms + 3_600_000)
            for name, asked in worker.waiting.items()
            if asked.spills < MAX_SPILLS
        ]
        own = {lane: queue.waiting for lane, queue in worker.queue.queues().items()}
        owned = dict.fromkeys(LANES, worker.partitions)
        for spill in worker.spilling.plan(own, lambda lane: candidates if lane is Lane.STANDARD else [], owned, now_ms):
            asked = worker.leaves(spill.response_id, given=True)
            asked.spills, asked.partition = asked.spills + 1, spill.partition
            to = next(each for each in self.workers if spill.partition in each.partitions)
            self._agenda.at(now_s + READ_S, partial(to.reads, asked))


def _measured(report: Report, scene: Scene, seconds: float, seed: int) -> None:
    for policy in POLICIES:
        pool = Pool(policy, scene, seed)
        pool.run(seconds)
        end_s = seconds
        waits_ms = [((end_s if each.first_s is None else each.first_s) - each.at_s) * 1_000 for each in pool.asked]
        name = f"{policy}: {scene.title}"
        report.add(f"{name}, first token p50", percentile(waits_ms, 0.5), "ms")
        report.add(f"{name}, first token p99", percentile(waits_ms, 0.99), "ms")
        report.add(f"{name}, waiting at the end", sum(each.first_s is None for each in pool.asked), "answers")
        if scene.backlog_s:
            share_s = seconds if pool.has_share_s is None else pool.has_share_s
            report.add(f"{name}, until it has its share", share_s, "s")
        if not scene.backlog_s:
            sent = pool.sent[pool.workers[0].worker_id] / max(pool.sent.total(), 1)
            report.add(f"{name}, sent to the slow one, of all", sent, "ratio")
        if policy == "spills":
            given = sum(each.spills for each in pool.asked)
            report.add(f"{name}, given away, of all", given / len(pool.asked), "ratio")
    report.add_ratio(
        f"{scene.title}, first token p99, spills / stays", f"spills: {scene.title}, first token p99",
        f"stays: {scene.title}, first token p99", 0.15, goal=1.0,
    )  # fmt: skip


def run(*, short: bool, seed: int) -> Report:
    seconds = 30.0 if short else 90.0
    setting = {
        "workers": 4, "max_running": BATCH, "slower": SLOWER, "spills_per_s": POLICIES["spills"], "seconds": seconds,
        "seed": seed,
    }  # fmt: skip
    report = Report("spilling", setting)
    for scene in SCENES:
        _measured(report, scene, seconds, seed)
    report.notes.append("A worker that never has its share is shown with the length of the run.")
    return report
