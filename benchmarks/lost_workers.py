"""What clients notice when a worker of two goes: killed, drained with too little time, drained with enough.

Streams run over both. Those of the one that goes are continued by the other, or by itself once it is back. The gap is
what a client sees between two messages with text; of a kill most of it is the lease, which nobody may cut short.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import orjson

from benchmarks.clients import Answer
from benchmarks.figures import Report, percentile
from benchmarks.recovery import streams_over, wrong
from benchmarks.stacks import running_stack
from deploy.local.runner import Stack, simulated

ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": 20.0}
STREAMS = 40
TOKENS = 400
"""Eight seconds: whoever goes does so in the middle."""
WORKERS = ("worker-1", "worker-2")
TOO_SHORT_S = 0.2
"""To drain in, for answers of seconds."""
BALANCED_S = 3.0
"""After all are ready: until both have partitions of every lane."""
KILLED_GAP_S, HANDED_OVER_GAP_S = 5.0, 0.3


@dataclass(slots=True)
class Seen:
    """Of one way to go, all rounds of it. `gaps_s` are of the answers that were continued."""

    gaps_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Iterable[Answer], continued: set[str]) -> None:
        for answer in answers:
            (self.gaps_s if answer.response_id in continued else self.others_s).append(answer.largest_gap_s)
            self.bad += wrong([answer], TOKENS)


def continued(logs: Iterable[str]) -> set[str]:
    """The responses that went on behind what another attempt had said, by what workers write of themselves."""
    ids = set()
    for line in "\n".join(logs).splitlines():
        if '"taken_over"' in line and (told := orjson.loads(line))["accepted_tokens"]:
            ids.add(told["response_id"])
    return ids


def _rounds(stack: Stack, number: int, rounds: int, rng: random.Random) -> Seen:
    """Workers are struck with this signal, one after the other, each under streams of its own."""
    seen = Seen()
    for _ in range(rounds):
        time.sleep(BALANCED_S)
        blow = partial(stack.kill, rng.choice(WORKERS), number)
        answers = asyncio.run(streams_over(stack, blow, TOKENS, streams=STREAMS, after_s=2.0 + rng.random()))
        seen.add(answers, continued(map(stack.log, WORKERS)))
        stack.wait_ready()
    return seen


def _load() -> str:
    """Pauses are made of what waits for a core too: where others run, they are those of that."""
    return f"{os.getloadavg()[0]:.1f}"


def run(*, short: bool, seed: int) -> Report:
    rounds = 2 if short else 10
    rng = random.Random(seed)
    report = Report("lost_workers", {"streams": STREAMS, "tokens": TOKENS, "rounds": rounds, "seed": seed})
    began_s, load = time.monotonic(), _load()
    options = simulated(ENGINE, max_running=64, workers=len(WORKERS))
    with running_stack(options) as stack:
        killed = _rounds(stack, signal.SIGKILL, rounds, rng)
        finished = _rounds(stack, signal.SIGTERM, max(rounds // 3, 1), rng)
    hurried = replace(options, environment={"SLUICE_WORKER__DRAIN_TIMEOUT_S": str(TOO_SHORT_S)})
    with running_stack(hurried) as stack:
        handed_over = _rounds(stack, signal.SIGTERM, rounds, rng)
    for name, seen, goal_s in (("killed", killed, KILLED_GAP_S), ("handed over", handed_over, HANDED_OVER_GAP_S)):
        report.add(f"{name}: gap in a continued stream p50", percentile(seen.gaps_s, 0.5), "s")
        report.add(f"{name}: gap in a continued stream p99", percentile(seen.gaps_s, 0.99), "s", goal_s)
        report.add(f"{name}: gap in the others p99", percentile(seen.others_s, 0.99), "s")
        report.add(f"{name}: answers continued", len(seen.gaps_s), "answers")
        report.add_lost(f"{name}: answers lost, or with tokens lost or doubled", seen.bad.total())
    report.add("drained with time: gap in a stream p99", percentile(finished.others_s, 0.99), "s", HANDED_OVER_GAP_S)
    report.add("drained with time: answers continued", len(finished.gaps_s), "answers", 0)
    report.add_lost("drained with time: answers lost, or with tokens lost or doubled", finished.bad.total())
    bad = killed.bad + handed_over.bad + finished.bad
    report.notes += [f"{count} answers: {why[:200]}" for why, count in bad.most_common(3)]
    report.notes.append(f"took {time.monotonic() - began_s:.0f} s; load of the machine {load} before, {_load()} after")
    return report
