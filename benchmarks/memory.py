"""What a worker lets into an engine whose memory is full: by count, as if it had none, and by its KV blocks.

In virtual time, with the worker's own scheduler and the simulated engine (`one_worker.py`), which preempts as vLLM:
who came last loses its blocks, and is computed again. Prompts are computed one after another there, 20 µs a token, and
answers of 120 to 480 tokens get one every 18 ms. Only the cost of a decision is CPU time.
"""

import random
from collections.abc import Callable, Sequence
from time import thread_time

from benchmarks.figures import Report, percentile
from benchmarks.one_worker import Answered, Arrival, OneWorker, Seen, at_once, steady
from gpu_consumers.core.capacity import Capacity, MemoryPolicy
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import Scheduler, Sizes
from gpu_consumers.engines.port import EngineStats
from schemas.request import Lane
from streams.engine_args import SimulatedEngineSettings

BLOCKS, BLOCK_TOKENS = 16_384, 16
BATCH, LARGE_BATCH = 64, 512
MOST_OUTPUT = 512
POLICIES: dict[str, Callable[[int], Scheduler]] = {
    "by count": lambda batch: Scheduler(Sizes(batch), memory=Capacity(MemoryPolicy(foresight=0))),
    "by memory": lambda batch: Scheduler(Sizes(batch), memory=Capacity()),
}
SHORT, LONG, LONGEST = (700, 1_300), (30_000, 33_000), (130_000, 131_000)
"""Tokens of prompts."""
LONG_SHARE = 0.2
RATES = {5.0: None, 7.0: 1.5}
"""Requests a second, of which the memory has room for about six; and how much better than by count it is to be."""
PATIENCE_S = {"1k": 2.0, "32k": 20.0}
"""For a first token: an answer that comes later is of no use to who asked."""
LONGEST_AT_ONCE, BESIDE_THEM_RATE = 50, 1.0
LONGEST_BLOCKS = 32_768
WARM_UP_S = 30.0
WAITING, DECISIONS = 10_000, 1_000


def _engine(batch: int, blocks: int = BLOCKS) -> SimulatedEngineSettings:
    return SimulatedEngineSettings(
        max_running=batch, kv_blocks=blocks, block_tokens=BLOCK_TOKENS, prompt_token_us=20, prompts_in_turn=True
    )


def _run(
    policy: str, batch: int, arrivals: Sequence[Arrival], until_s: float, seed: int, *, blocks: int = BLOCKS,
    from_s: float = WARM_UP_S,
) -> tuple[Seen, OneWorker]:  # fmt: skip
    worker = OneWorker(POLICIES[policy](batch), _engine(batch, blocks), seed)
    return worker.run(arrivals, until_s, from_s=from_s), worker


def _again(worker: OneWorker) -> float:
    return worker.engine.recomputed_tokens / max(worker.engine.produced_tokens, 1)


def _pressure(report: Report, seconds: float, seed: int) -> None:
    """More 1k prompts than the memory holds, all the time, in a batch that would take them all."""
    until_s = WARM_UP_S + seconds
    rng = random.Random(seed)
    arrivals = [
        each
        for n in range(6)
        for each in at_once(rng, f"t{n}", Lane.STANDARD, int(until_s * 9), prompt_tokens=SHORT, max_tokens=MOST_OUTPUT)
    ]
    for policy in POLICIES:
        seen, worker = _run(policy, LARGE_BATCH, arrivals, until_s, seed)
        name = f"{policy}: 1k prompts without end"
        is_ours = policy == "by memory"
        report.add(
            f"{name}, blocks held", seen.block_s / seconds / BLOCKS, "ratio", 0.95 if is_ours else None, at_most=False
        )
        report.add(f"{name}, answers that the engine failed", seen.failed, "answers", 0 if is_ours else None)
        goal = 0.01 if is_ours else None
        report.add(f"{name}, tokens computed again, of those generated", _again(worker), "ratio", goal)
        report.add(f"{name}, tokens", seen.tokens / seconds, "tokens/s")


def _kind(answered: Answered) -> str:
    return "1k" if answered.arrival.prompt_tokens <= SHORT[1] else "32k"


def _mixed(report: Report, rate: float, seconds: float, seed: int, goal: float | None) -> None:
    until_s = WARM_UP_S + seconds
    rng = random.Random(seed)
    arrivals: list[Arrival] = []
    for number in range(8):
        for prompt, share in ((SHORT, 1 - LONG_SHARE), (LONG, LONG_SHARE)):
            more = {"prompt_tokens": prompt, "max_tokens": MOST_OUTPUT}
            arrivals += steady(rng, f"t{number}", Lane.STANDARD, rate * share / 8, until_s, **more)  # type: ignore[arg-type]
    what = f"1k and 32k prompts, {rate:g}/s"
    for policy in POLICIES:
        seen, worker = _run(policy, BATCH, arrivals, until_s, seed)
        name = f"{policy}: {what}"
        in_time = [each for each in seen.answered if each.waited_s <= PATIENCE_S[_kind(each)]]
        report.add(f"{name}, tokens", seen.tokens / seconds, "tokens/s")
        report.add(f"{name}, tokens of answers in time", sum(each.tokens for each in in_time) / seconds, "tokens/s")
        for kind in PATIENCE_S:
            waits_ms = [each.waited_s * 1_000 for each in seen.answered if _kind(each) == kind]
            report.add(f"{name}, first token p99 of {kind}", percentile(waits_ms, 0.99), "ms")
        report.add(f"{name}, blocks held", seen.block_s / seconds / BLOCKS, "ratio")
        report.add(f"{name}, tokens computed again, of those generated", _again(worker), "ratio")
        report.add(f"{name}, answers that the engine failed", seen.failed, "answers")
    of, over = (f"{policy}: {what}, tokens of answers in time" for policy in ("by memory", "by count"))
    spread = 0.2 if goal else 0.1
    report.add_ratio(
        f"{what}, tokens of answers in time, by memory / by count", of, over, spread, goal=goal, at_most=False
    )


def _longest(report: Report, count: int, seed: int) -> None:
    """So many prompts of 128K tokens at once, of which four fit, and somebody who asks now and then."""
    until_s = 12.0 * count
    rng = random.Random(seed)
    longest = at_once(rng, "long", Lane.STANDARD, count, at_s=1.0, prompt_tokens=LONGEST, max_tokens=MOST_OUTPUT)
    beside = steady(rng, "small", Lane.STANDARD, BESIDE_THEM_RATE, until_s - 60.0)
    for policy in POLICIES:
        seen, _ = _run(policy, BATCH, [*longest, *beside], until_s, seed, blocks=LONGEST_BLOCKS, from_s=0.0)
        own = {
            tenant_id: [each for each in seen.answered if each.arrival.tenant_id == tenant_id]
            for tenant_id in ("long", "small")
        }
        name = f"{policy}: {count} prompts of 128K at once"
        is_ours = policy == "by memory"
        unanswered = len(longest) + len(beside) - len(seen.answered)
        report.add(f"{name}, not answered", unanswered, "answers", 0 if is_ours else None)
        busy_until_s = max((each.arrival.at_s + each.took_s for each in own["long"]), default=until_s)
        report.add(f"{name}, the last one ends after", busy_until_s, "s")
        waits_ms = [each.waited_s * 1_000 for each in own["small"] if each.arrival.at_s < busy_until_s]
        report.add(f"{name}, first token p50 of who asks beside them", percentile(waits_ms, 0.5), "ms")
        report.add(f"{name}, first token p99 of who asks beside them", percentile(waits_ms, 0.99), "ms")


def _decisions(report: Report) -> None:
    """CPU time, where memory is full: one is refused room, another leaves, and the next enters."""
    capacity = Capacity(MemoryPolicy(for_short=0))
    scheduler, held = Scheduler(Sizes(LARGE_BATCH), memory=capacity), Held()
    scheduler.engine_tells(EngineStats(0, 0, 0, BLOCKS, BLOCK_TOKENS), 0)
    rng = random.Random(7)
    for number in range(WAITING + 2 * LARGE_BATCH):
        item = Queued(f"r{number}", Lane.STANDARD, 1_500, 0, 1, f"t{number % 100}", rng.randint(*SHORT), MOST_OUTPUT)
        scheduler.add(item)
    running: list[Queued] = []
    took_us: list[float] = []
    grew_us: list[float] = []
    while len(took_us) < DECISIONS:
        began_s = thread_time()
        given = scheduler.take(held, 0)
        took_us.append((thread_time() - began_s) * 1e6)
        if given is not None:
            running.append(given.item)
            began_s = thread_time()
            scheduler.grown(Lane.STANDARD, given.item.response_id, rng.randint(1, 300))
            grew_us.append((thread_time() - began_s) * 1e6)
            continue
        gone = running.pop(rng.randrange(len(running)))
        scheduler.left(Lane.STANDARD, gone.response_id, rng.randint(120, 480))
        scheduler.add(gone)
    name = f"a decision with {WAITING:,} waiting, memory full"
    report.add(f"{name}, p50", percentile(took_us, 0.5), "µs")
    report.add(f"{name}, p99", percentile(took_us, 0.99), "µs", 50)
    report.add("a new forecast of an answer that has grown, p50", percentile(grew_us, 0.5), "µs")


def run(*, short: bool, seed: int) -> Report:
    seconds, count = (15.0, 8) if short else (60.0, LONGEST_AT_ONCE)
    setting = {"kv_blocks": BLOCKS, "block_tokens": BLOCK_TOKENS, "seconds": seconds, "at_once": count, "seed": seed}
    report = Report("memory", setting)
    _decisions(report)
    _pressure(report, seconds, seed)
    for rate, goal in RATES.items():
        _mixed(report, rate, seconds, seed, goal)
    _longest(report, count, seed)
    return report
