"""How a worker's slots are shared: tenants in a lane, and lanes; first come, first served in strict lanes beside it.

In virtual time, with the worker's own scheduler and the simulated engine (`one_worker.py`): 64 answers in its batch, 20
ms to a first token and 50 µs for each token of the prompt, 18 ms a token, 120 to 480 tokens an answer. The door is the
router's (`agents.admission.routing.overloaded`). Only the cost of a decision is CPU time.
"""

import random
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any, TypeAlias

from agents.admission.routing import Load, QueueBound, overloaded
from benchmarks.figures import Report, percentile
from benchmarks.one_worker import (
    WINDOW_S,
    Arrival,
    FirstComeFirstServed,
    OneWorker,
    Policy,
    Seen,
    StaticBatches,
    Waiting,
    at_once,
    jain,
    steady,
)
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import Scheduler, Sizes
from schemas.request import Lane
from schemas.worker import WorkerState
from streams.engine_args import SimulatedEngineSettings
from streams.settings import AdmissionSettings, WorkerSettings

Asks: TypeAlias = dict[str, Any]
"""More of `steady` and `at_once`."""

BATCH = 64
BUFFER = WorkerSettings().healthy_buffer
SIZES = Sizes(BATCH, int(WorkerSettings().headroom * BATCH), BUFFER)
ENGINE = SimulatedEngineSettings(max_running=BATCH)
POLICIES: dict[str, Callable[[], Policy]] = {
    "first come": lambda: FirstComeFirstServed(BATCH + BUFFER),
    "fair": lambda: Scheduler(SIZES),
}
OTHERS, RATE, FLOOD_TIMES, ALREADY_QUEUED = 9, 0.2, 100, 3_500
FLOODS = {
    "door": f"the tenth asks {FLOOD_TIMES} times as often",
    "queued": f"the tenth has {ALREADY_QUEUED:,} queued",
}
BACKLOGGED = 12
SHAPES = (((20, 100), 64), ((100, 400), 512), ((500, 1_500), 300))
"""Prompts from and to so many tokens, and the bound of each answer."""
INTERACTIVE_RATES = (1.0, 2.0, 6.0)
MAX_PAUSES = WorkerSettings().max_pauses
BESIDE_BATCH = {"first come": 0, "fair, nobody paused": 0, "fair": MAX_PAUSES}
FLOOR = int(0.1 * BATCH) / BATCH
MOST_OF_LONG = 2_500
LONG_ENGINE = SimulatedEngineSettings(max_running=BATCH, min_output_tokens=1_500, max_output_tokens=MOST_OF_LONG)
LONG_BESIDE: tuple[float, Asks] = (2.0, {"max_tokens": 300})
WARM_UP_S = 30.0
WAITING, DECISIONS = 10_000, 2_000


def _door(bound: QueueBound) -> Callable[[Arrival, Waiting], bool]:
    def lets_in(arrival: Arrival, waiting: Waiting) -> bool:
        state = WorkerState(
            worker_id="w", pool="p", model="m", engine="simulated", state="ready", beat_at_ms=0, lease_ms=1,
            lane_partitions={arrival.lane: [0]}, home_partitions=[0],
            waiting=waiting.answers[""], queued_tokens=waiting.tokens[""],
        )  # fmt: skip
        own_tokens, own_answers = waiting.tokens[arrival.tenant_id], waiting.answers[arrival.tenant_id]
        load = Load(state, own_tokens=own_tokens, own_answers=own_answers)
        return not overloaded([load], arrival.lane, bound)

    return lets_in


def _served(policy: str, arrivals: Sequence[Arrival], until_s: float, seed: int, *, from_s: float = WARM_UP_S) -> Seen:
    """Whoever wrote so much into a lane has passed the door: there is none."""
    return OneWorker(POLICIES[policy](), ENGINE, seed).run(arrivals, until_s, from_s=from_s)


def _at_the_door(policy: str, arrivals: Sequence[Arrival], until_s: float, seed: int) -> Seen:
    settings = AdmissionSettings()
    door = _door(QueueBound(settings.max_queued_tokens, settings.max_queued_requests))
    return OneWorker(POLICIES[policy](), ENGINE, seed, door).run(arrivals, until_s, from_s=WARM_UP_S)


def _waits_ms(seen: Seen, lane: Lane, *, without: str = "") -> list[float]:
    found = (waits for (tenant_id, own), waits in seen.waits_ms.items() if own is lane and tenant_id != without)
    return [wait_ms for waits in found for wait_ms in waits]


def _used(seen: Seen, for_s: float) -> float:
    return seen.busy_s / for_s / BATCH


def _floods(report: Report, seconds: float, seed: int) -> None:
    """Nine tenants ask now and then, and the tenth does as they do, floods the door, or has its backlog queued."""
    until_s = WARM_UP_S + seconds

    def arrivals(flood: str) -> list[Arrival]:
        rng = random.Random(seed)
        others = [each for n in range(OTHERS) for each in steady(rng, f"t{n}", Lane.STANDARD, RATE, until_s)]
        if flood == "queued":
            return others + at_once(rng, "flood", Lane.STANDARD, ALREADY_QUEUED)
        times = 1 if flood == "calm" else FLOOD_TIMES
        return others + steady(rng, "flood", Lane.STANDARD, RATE * times, until_s)

    for policy in POLICIES:
        calm_ms = percentile(_waits_ms(_at_the_door(policy, arrivals("calm"), until_s, seed), Lane.STANDARD), 0.99)
        report.add(f"{policy}: first token p99 of nine tenants, the tenth as they are", calm_ms, "ms")
        for flood, title in FLOODS.items():
            come = _at_the_door if flood == "door" else _served
            seen = come(policy, arrivals(flood), until_s, seed)
            name = f"{policy}: first token p99 of nine tenants, {title}"
            waits_ms = _waits_ms(seen, Lane.STANDARD, without="flood")
            if not waits_ms:
                report.notes.append(f"{policy}: none of nine tenants was ever served, {title}.")
                continue
            p99_ms = percentile(waits_ms, 0.99)
            report.add(name, p99_ms, "ms")
            goal = 1.2 if policy == "fair" else None
            report.add(f"{name}, over its calm", p99_ms / calm_ms, "ratio", goal, spread=0.1 if goal else None)
            if flood == "door":
                report.add(f"{policy}: slots used, {title}", _used(seen, seconds), "ratio")


def _backlogs(report: Report, windows: int, seed: int) -> None:
    """All tenants have a backlog from the begin on; the first has five times as much, in front of the others'."""
    until_s = windows * WINDOW_S

    def arrivals(weights: Sequence[int]) -> list[Arrival]:
        rng = random.Random(seed)
        asked: list[Arrival] = []
        for number, weight in enumerate(weights):
            prompt, bound = SHAPES[number % len(SHAPES)]
            count = 80 * windows * (5 if number == 0 else 1) * weight
            more = {"prompt_tokens": prompt, "max_tokens": bound, "weight": weight}
            asked += at_once(rng, f"t{number}", Lane.STANDARD, count, **more)  # type: ignore[arg-type]
        return asked

    for policy in POLICIES:
        seen = _served(policy, arrivals([1] * BACKLOGGED), until_s, seed, from_s=0.0)
        shares = [[seen.service[n][f"t{tenant}"] for tenant in range(BACKLOGGED)] for n in range(windows)]
        indices = [jain(each) for each in shares]
        is_ours = policy == "fair"
        goal, spread = (0.97, 0.02) if is_ours else (None, None)
        name = f"{policy}: Jain index of twelve backlogged tenants, worst window of 10 s"
        report.add(name, min(indices), "index", goal, at_most=False, spread=spread)
        used_goal = 0.95 if is_ours else None
        report.add(f"{policy}: slots used by them", _used(seen, until_s), "ratio", used_goal, at_most=False)
    weights = [4, *[1] * 6]
    seen = _served("fair", arrivals(weights), until_s, seed, from_s=0.0)
    whole = {f"t{n}": sum(seen.service[window][f"t{n}"] for window in range(windows)) for n in range(len(weights))}
    others = sum(tokens for tenant_id, tokens in whole.items() if tenant_id != "t0") / (len(weights) - 1)
    report.add("fair: tokens of a tenant of weight 4, over those of weight 1", whole["t0"] / others, "ratio")


def _lanes(report: Report, seconds: float, seed: int) -> None:
    """Who asks interactively, beside a batch lane that never runs empty."""
    for rate in INTERACTIVE_RATES:
        _interactive(report, f"at {rate:g}/s", ENGINE, rate, {}, seconds, seed)
    rate, asks = LONG_BESIDE
    _interactive(report, f"at {rate:g}/s, batch answers of 36 s", LONG_ENGINE, rate, asks, seconds, seed)
    until_s = WARM_UP_S + seconds
    for policy in POLICIES:
        rng = random.Random(seed)
        flood = at_once(rng, "i", Lane.INTERACTIVE, int(until_s * 12)) + at_once(rng, "b", Lane.BATCH, int(until_s * 4))
        seen = _served(policy, flood, until_s, seed)
        goal = int(0.1 * BATCH) / BATCH * 0.98 if policy == "fair" else None
        report.add(
            f"{policy}: slots of the batch lane, interactive saturated", _of_batch(seen, seconds), "ratio", goal,
            at_most=False, spread=0.05 if goal else None,
        )  # fmt: skip


def _interactive(
    report: Report, what: str, engine: SimulatedEngineSettings, rate: float, asks: Asks, seconds: float, seed: int
) -> None:
    until_s = WARM_UP_S + seconds

    def arrivals(beside: Lane | None) -> list[Arrival]:
        rng = random.Random(seed)
        asked = [each for n in range(3) for each in steady(rng, f"i{n}", Lane.INTERACTIVE, rate / 3, until_s, **asks)]
        more = {"max_tokens": MOST_OF_LONG} if asks else asks
        return asked + ([] if beside is None else at_once(rng, "batch", beside, int(until_s * 12), **more))

    def served(policy: str, max_pauses: int, beside: Lane | None) -> Seen:
        worker = OneWorker(POLICIES[policy.partition(",")[0]](), engine, seed, max_pauses=max_pauses)
        return worker.run(arrivals(beside), until_s, from_s=WARM_UP_S)

    idle_ms = percentile(_waits_ms(served("fair", 0, None), Lane.INTERACTIVE), 0.99)
    for policy, max_pauses in BESIDE_BATCH.items():
        name = f"{policy}: interactive first token p99 {what}"
        seen = served(policy, max_pauses, Lane.BATCH)
        p99_ms = percentile(_waits_ms(seen, Lane.INTERACTIVE), 0.99)
        is_ours = policy == "fair"
        if policy in POLICIES:  # the plot shows these
            report.add(f"{name}, batch saturated", p99_ms, "ms")
        goal, spread = (1.3, 0.2) if is_ours else (None, None)
        report.add(f"{name}, batch saturated, over idle", p99_ms / idle_ms, "ratio", goal, spread=spread)
        if is_ours:
            of_batch = _of_batch(seen, seconds)
            report.add(f"slots used, interactive {what}", _used(seen, seconds), "ratio", 0.95, at_most=False)
            report.add(f"slots of the batch lane, interactive {what}", of_batch, "ratio", FLOOR, at_most=False)
            report.add(f"batch answers paused, interactive {what}", seen.pauses / until_s, "1/s")
            again = seen.tokens_again / until_s / (seen.tokens / seconds)
            report.add(f"tokens computed again, of those generated, interactive {what}", again, "ratio")


def _of_batch(seen: Seen, for_s: float) -> float:
    return seen.slot_s[Lane.BATCH] / for_s / BATCH


def _batches(report: Report, seconds: float, seed: int) -> None:
    """A batch lane alone, in one batch after another and as answers end."""
    until_s = WARM_UP_S + seconds
    arrivals = at_once(random.Random(seed), "batch", Lane.BATCH, int(until_s * 12))
    policies: dict[str, Policy] = {"static batches": StaticBatches(BATCH), "fair": POLICIES["fair"]()}
    for name, policy in policies.items():
        seen = OneWorker(policy, ENGINE, seed).run(arrivals, until_s, from_s=WARM_UP_S)
        goal = 0.95 if name == "fair" else None
        report.add(f"{name}: slots used, a batch lane alone", _used(seen, seconds), "ratio", goal, at_most=False)
        report.add(f"{name}: tokens, a batch lane alone", seen.tokens / seconds, "tokens/s")
    name = "a batch lane alone"
    report.add_ratio(
        f"tokens, {name}, over static batches", f"fair: tokens, {name}", f"static batches: tokens, {name}", 0.05
    )


def _decisions(report: Report) -> None:
    """CPU time: one is taken and another comes, with 10,000 waiting, of one tenant and of as many as there are."""
    for tenants in (1, 100, WAITING):
        scheduler = Scheduler(SIZES)
        held = Held()
        items = [
            Queued(f"r{n}", Lane.STANDARD, 800, 0, 1, f"t{n % tenants}", 300, 500) for n in range(WAITING + DECISIONS)
        ]
        for item in items[:WAITING]:
            scheduler.add(item)
        took_us = []
        for item in items[WAITING:]:
            began_s = thread_time()
            given = scheduler.take(held, 0)
            took_us.append((thread_time() - began_s) * 1e6)
            if given is not None:
                scheduler.left(Lane.STANDARD, given.item.response_id, 100)
            scheduler.add(item)
        name = f"a decision with {WAITING:,} waiting, of {tenants:,} tenant{'s' * (tenants > 1)}"
        report.add(f"{name}, p50", percentile(took_us, 0.5), "µs")
        report.add(f"{name}, p99", percentile(took_us, 0.99), "µs", 50)


def run(*, short: bool, seed: int) -> Report:
    seconds, windows = (30.0, 2) if short else (120.0, 6)
    setting = {"max_running": BATCH, "headroom": SIZES.headroom, "seconds": seconds, "windows": windows, "seed": seed}
    report = Report("fairness", setting)
    _decisions(report)
    _floods(report, seconds, seed)
    _backlogs(report, windows, seed)
    _batches(report, seconds, seed)
    _lanes(report, seconds, seed)
    report.notes.append(
        "Interactive requests have what is kept free, which comes back as answers end. A tenant that holds an eighth "
        "of the slots may not, and a burst finds it taken: then an answer of the batch lane is paused."
    )
    return report
