"""What has piled up in ten minutes without admission, and in which order it begins: 500,000 requests, in virtual time.

Four admission workers, counted as one that is four times as fast, read the log: with what decides in
`agents.admission.catching_up`, or as it was before, in the order of the log and as fast as they can. Looking at a
record, refusing one and admitting one take of their time what they take on real topics, about. Behind them is one
pool, whose queue is bounded as ever, and which takes premium requests before others. Half of the requests may wait for
five minutes, the others for half an hour. Meanwhile others go on to ask.
"""

import random
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agents.admission.catching_up import LOOK_AHEAD, TIERS, Asked, Backlog, has_room, is_late
from agents.admission.routing import Load, QueueBound, overloaded
from agents.admission.turns import Pace
from benchmarks.figures import Report, percentile
from schemas.request import LANES, Lane
from schemas.worker import WorkerState
from streams.directory import LANE_OF_TIER, Tier
from streams.drain import Drain

OUTAGE_S = 600
LIVE_PER_S = 100.0
PATIENT_MS = 180_000
"""Who has so long left when admission is back can be answered: the log has been read by then."""
SHARES: dict[Tier, float] = {"premium": 0.03, "paid": 0.12, "free": 0.85}
TENANTS = 200
LIVES_MS = (300_000, 1_800_000)
TICK_MS = 20
BEAT_MS = 1_000
LOOK_MS, REFUSE_MS, ADMIT_MS = 0.5, 1.2, 1.8
"""Of one admission worker's time: to look at a record and hold it, or put it aside; to end one; to admit one."""
WORKERS = 4
PER_SECOND = WORKERS * 500
LATER_AT_ONCE = WORKERS * 256
SLOTS, ANSWER_MS, TOKENS = 3_072, 8_000, 500
POOL_PER_S = SLOTS * 1_000 / ANSWER_MS
BOUND = QueueBound(10_000_000, 10_000)
Policy = Literal["log order", "paid first"]
POLICIES: tuple[Policy, ...] = ("log order", "paid first")


class Want(NamedTuple):
    """One request of the log. `number` below 0: it came after the outage."""

    number: int
    at_ms: int
    tier: Tier
    tenant_id: str
    deadline_ms: int


def wants(count: int, seed: int) -> list[Want]:
    """Those of the outage, which ends at 0."""
    rng = random.Random(seed)
    return [_want(rng, number, -OUTAGE_S * 1_000 + number * OUTAGE_S * 1_000 // count) for number in range(count)]


def _want(rng: random.Random, number: int, at_ms: int) -> Want:
    tier = rng.choices(TIERS, [SHARES[tier] for tier in TIERS])[0]
    return Want(number, at_ms, tier, f"{tier}{rng.randrange(TENANTS)}", at_ms + rng.choice(LIVES_MS))


@dataclass(slots=True)
class Pool:
    """Takes so many a second, premium ones first; tells by heartbeats how many wait, as workers do."""

    begun_ms: dict[int, int] = field(default_factory=dict)
    expired_in_queue: int = 0
    _lanes: dict[Lane, deque[Want]] = field(default_factory=lambda: {lane: deque() for lane in LANES})
    _ends_ms: deque[int] = field(default_factory=deque)
    _told: int = 0
    _running: int = 0
    _routed: int = 0

    @property
    def waiting(self) -> int:
        return sum(map(len, self._lanes.values()))

    def load(self) -> Load:
        drain = Drain(POOL_PER_S, POOL_PER_S * TOKENS) if self._told else None
        state = WorkerState(
            worker_id="pool", pool="default", model="tiny", engine="simulated", state="ready", beat_at_ms=0,
            lease_ms=4_000, waiting=self._told, queued_tokens=self._told * TOKENS, max_running=SLOTS,
            running=self._running,
            lane_partitions={lane: [0] for lane in LANES}, home_partitions=[0],
        )  # fmt: skip
        return Load(state, self._routed * TOKENS, self._routed, drain=drain)

    def put(self, want: Want) -> None:
        self._lanes[LANE_OF_TIER[want.tier]].append(want)
        self._routed += 1

    def tick(self, now_ms: int) -> None:
        while self._ends_ms and self._ends_ms[0] <= now_ms:
            self._ends_ms.popleft()
        for lane in LANES:
            while len(self._ends_ms) < SLOTS and self._lanes[lane]:
                want = self._lanes[lane].popleft()
                if want.deadline_ms <= now_ms:
                    self.expired_in_queue += 1
                    continue
                self._ends_ms.append(now_ms + ANSWER_MS)
                self.begun_ms[want.number] = now_ms
        if now_ms % BEAT_MS == 0:
            self._told, self._running, self._routed = self.waiting, len(self._ends_ms), 0


@dataclass(slots=True)
class Run:
    """What became of every request under one policy."""

    pool: Pool = field(default_factory=Pool)
    ended: Counter[tuple[Tier, str]] = field(default_factory=Counter)
    admitted_in: Counter[int] = field(default_factory=Counter)
    decided: set[int] = field(default_factory=set)
    twice: int = 0
    most_held: int = 0
    most_kept: int = 0
    put_aside: int = 0
    until_ms: int = 0

    def end(self, want: Want, how: str) -> None:
        self._decide(want)
        self.ended[want.tier, how] += 1

    def admit(self, want: Want, now_ms: int, *, is_late: bool) -> None:
        self._decide(want)
        self.admitted_in[now_ms // 1_000] += is_late
        self.pool.put(want)

    def _decide(self, want: Want) -> None:
        if want.number >= 0:
            self.twice += want.number in self.decided
            self.decided.add(want.number)


class Stood(NamedTuple):
    """What a worker has read. `again`: from where it had stepped aside."""

    want: Want
    again: bool


class Reader:
    """An admission worker's time, and where it stands in the log and in what stepped aside."""

    def __init__(self, log: list[Want], seed: int) -> None:
        self.run = Run()
        self._log = deque(log)
        self._later: deque[Want] = deque()
        self._backlog: Backlog[Stood] = Backlog(WORKERS * LOOK_AHEAD)
        self._held_again = 0
        self._pace = Pace(PER_SECOND)
        self._left_ms = 0.0
        self._rng = random.Random(seed)
        self._came = 0

    @property
    def is_done(self) -> bool:
        left = len(self._log) + len(self._later) + len(self._backlog) + self.run.pool.waiting
        return left < LIVE_PER_S

    def play(self, policy: Policy) -> Run:
        now_ms = 0
        while not self.is_done:
            now_ms += TICK_MS
            while self._came * 1_000 / LIVE_PER_S <= now_ms:
                self._came += 1
                self._log.append(_want(self._rng, -self._came, now_ms))
            # What a tick did too much is taken from the next.
            self._left_ms = min(self._left_ms, 0) + WORKERS * TICK_MS
            if policy == "log order":
                self._in_order(now_ms)
            else:
                self._paid_first(now_ms)
            self.run.pool.tick(now_ms)
        self.run.until_ms = now_ms
        return self.run

    def _in_order(self, now_ms: int) -> None:
        while self._left_ms > 0 and self._log:
            self._work(self._log.popleft(), now_ms)

    def _paid_first(self, now_ms: int) -> None:
        for stood in self._backlog.too_late(now_ms):
            self._held_again -= stood.again
            self._work(stood.want, now_ms)
        while self._left_ms > 0 and (self._gives_a_turn(now_ms) or self._reads(now_ms) or self._reads_later(now_ms)):
            pass
        self.run.most_held = max(self.run.most_held, len(self._backlog))
        self.run.most_kept = max(self.run.most_kept, self._backlog.kept)

    def _gives_a_turn(self, now_ms: int) -> bool:
        if self._pace.wait_s(now_ms / 1_000, 0) > TICK_MS / 1_000:
            return False
        load = self.run.pool.load()
        stood = self._backlog.take(now_ms, lambda _model, need: has_room([[load]], BOUND, need))
        if stood is None:
            return False
        self._pace.wait_s(now_ms / 1_000)
        self._held_again -= stood.again
        self._work(stood.want, now_ms)
        return True

    def _reads(self, now_ms: int) -> bool:
        if not self._log or len(self._backlog) - self._held_again >= WORKERS * LOOK_AHEAD:
            return False
        want = self._log.popleft()
        way = self._backlog.enter(_asked(want, again=False), now_ms, appended_ms=want.at_ms, is_busy=False)
        if way == "now":
            self._work(want, now_ms)
        else:
            self._left_ms -= LOOK_MS
        if way == "aside":
            self._later.append(want)
            self.run.put_aside += 1
        return True

    def _reads_later(self, now_ms: int) -> bool:
        if not self._later or self._held_again >= LATER_AT_ONCE:
            return False
        want = self._later.popleft()
        self._left_ms -= LOOK_MS
        if self._backlog.enter(_asked(want, again=True), now_ms, appended_ms=want.at_ms, is_busy=False) == "now":
            self._work(want, now_ms)
        else:
            self._held_again += 1
        return True

    def _work(self, want: Want, now_ms: int) -> None:
        """Admits it, or refuses it, which takes less."""
        if want.deadline_ms <= now_ms:
            self._left_ms -= REFUSE_MS
            self.run.end(want, "expired")
        elif overloaded([self.run.pool.load()], LANE_OF_TIER[want.tier], BOUND):
            self._left_ms -= REFUSE_MS
            self.run.end(want, "refused")
        else:
            self._left_ms -= ADMIT_MS
            self.run.admit(want, now_ms, is_late=is_late(now_ms, want.at_ms))


def _asked(want: Want, *, again: bool) -> Asked[Stood]:
    item = Stood(want, again)
    return Asked(
        item, str(want.number), want.tier, want.tenant_id, "tiny", want.deadline_ms, 1_000, may_step_aside=not again
    )


def _add(report: Report, policy: Policy, log: list[Want], run: Run) -> None:
    begun_ms = run.pool.begun_ms
    for tier in ("premium", "paid", "free"):
        lives = [want for want in log if want.tier == tier and want.deadline_ms > PATIENT_MS]
        waits_s = [begun_ms[want.number] / 1_000 for want in lives if want.number in begun_ms]
        what = f"{policy}: {tier} requests with three minutes left"
        goal = 0.99 if policy == "paid first" and tier != "free" else None
        report.add(
            f"{what}, begun", len(waits_s) / len(lives), "share", goal, at_most=False, spread=0.02 if goal else None
        )
        report.add(f"{what}, begun after p50", percentile(waits_s, 0.5), "s")
        report.add(f"{what}, begun after p99", percentile(waits_s, 0.99), "s")
    over = sum(want.deadline_ms <= 0 for want in log)
    expired = sum(count for (_, how), count in run.ended.items() if how == "expired")
    refused = sum(count for (_, how), count in run.ended.items() if how == "refused")
    report.add(f"{policy}: time over when admission came back", over, "requests")
    report.add(f"{policy}: ended as expired by admission", expired, "requests")
    report.add(f"{policy}: refused with advice", refused, "requests")
    report.add(f"{policy}: expired in the pool's queue", run.pool.expired_in_queue, "requests")
    report.add(f"{policy}: admitted of what was late, most in a second", max(run.admitted_in.values()), "1/s")
    lost = len(log) - len(run.decided) + run.twice
    report.add_lost(f"{policy}: lost or decided twice", lost)
    report.add(f"{policy}: until nothing is left", run.until_ms / 1_000, "s")


def run(*, short: bool, seed: int) -> Report:
    count = 20_000 if short else 500_000
    setting = {"requests": count, "outage s": OUTAGE_S, "pool/s": POOL_PER_S, "live/s": LIVE_PER_S, "seed": seed}
    report = Report("after_an_outage", setting)
    log = wants(count, seed)
    for policy in POLICIES:
        began_s = time.process_time()
        played = Reader(log, seed).play(policy)
        _add(report, policy, log, played)
        report.notes.append(f"{policy}: {time.process_time() - began_s:.0f} s of CPU time")
        if policy == "paid first":
            report.add(
                "paid first: held at once, most", played.most_held, "requests", WORKERS * LOOK_AHEAD + LATER_AT_ONCE
            )
            report.add("paid first: held at once, with what has gone", played.most_kept, "requests")
            report.add("paid first: stepped aside", played.put_aside, "requests")
    begun = "paid requests with three minutes left, begun"
    report.add_ratio(f"{begun}, log order / paid first", f"log order: {begun}", f"paid first: {begun}", 0.1)
    return report
