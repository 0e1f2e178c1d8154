"""What clients notice when a worker of two goes: killed, drained with too little time, drained with enough.

Streams run over both. Those of the one that goes are continued by the other, or by itself once it is back. The gap is
what a client sees between two messages with text. The log tells what it is made of: from the last token to the fence of
who takes over (of a kill most of that is the lease, which nobody may cut short), and from there to the next token.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks.clients import Answer
from benchmarks.figures import Report, percentile
from benchmarks.recovery import streams_over, wrong
from benchmarks.stacks import records_of, running_stack
from deploy.local.runner import Stack, simulated
from schemas.codec import decode
from schemas.generated import GENERATED, Fence, Frame
from streams.log.port import LogRecord

ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": 20.0}
STREAMS = 40
TOKENS = 400
"""Eight seconds: whoever goes does so in the middle."""
WORKERS = ("worker-1", "worker-2")
TOO_SHORT_S = 0.2
"""To drain in, for answers of seconds."""
BALANCED_S = 3.0
"""After all are ready: until both have partitions of every lane."""
READ_WITHIN_S = 60.0
KILLED_GAP_S, HANDED_OVER_GAP_S = 5.0, 0.3


@dataclass(slots=True)
class Takeover:
    """Of a response that had said something; when each was written."""

    attempt_id: str
    last_token_ms: int
    fence_ms: int
    next_token_ms: int = 0


@dataclass(slots=True)
class Seen:
    """Of one way to go, all rounds of it. All but `others_s` is of the answers that were continued."""

    gaps_s: list[float] = field(default_factory=list)
    until_fence_s: list[float] = field(default_factory=list)
    until_token_s: list[float] = field(default_factory=list)
    others_s: list[float] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)

    def add(self, answers: Iterable[Answer], takeovers: Mapping[str, Takeover]) -> None:
        for answer in answers:
            self.bad += wrong([answer], TOKENS)
            taken = takeovers.get(answer.response_id)
            if taken is None or not taken.next_token_ms:
                self.others_s.append(answer.largest_gap_s)
                continue
            self.gaps_s.append(answer.largest_gap_s)
            self.until_fence_s.append((taken.fence_ms - taken.last_token_ms) / 1_000)
            self.until_token_s.append((taken.next_token_ms - taken.fence_ms) / 1_000)


def takeovers_in(records: Iterable[LogRecord]) -> dict[str, Takeover]:
    """The last one of each response, of those that had said something; by its id."""
    said_ms: dict[str, int] = {}
    takeovers: dict[str, Takeover] = {}
    for record in records:
        told = decode(GENERATED, record.value)
        if isinstance(told, Fence) and told.kind == "takeover" and told.response_id in said_ms:
            takeovers[told.response_id] = Takeover(told.attempt_id, said_ms[told.response_id], record.timestamp_ms)
        elif isinstance(told, Frame):
            for response_id, attempt_id in zip(told.response_id, told.attempt_id, strict=True):
                taken = takeovers.get(response_id)
                if taken is not None and attempt_id != taken.attempt_id:
                    continue  # it was overtaken
                if taken is not None and not taken.next_token_ms:
                    taken.next_token_ms = record.timestamp_ms
                said_ms[response_id] = record.timestamp_ms
    return takeovers


def _rounds(stack: Stack, number: int, rounds: int, rng: random.Random) -> Seen:
    """Workers are struck with this signal, one after the other, each under streams of its own."""
    answers: list[Answer] = []
    for _ in range(rounds):
        time.sleep(BALANCED_S)
        blow = partial(stack.kill, rng.choice(WORKERS), number)
        answers += asyncio.run(streams_over(stack, blow, TOKENS, streams=STREAMS, after_s=2.0 + rng.random()))
        stack.wait_ready()
    seen = Seen()
    seen.add(answers, takeovers_in(records_of(stack, stack.plan.settings.topics.generated.name, READ_WITHIN_S)))
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
        report.add(f"{name}: of that until the fence p50", percentile(seen.until_fence_s, 0.5), "s")
        report.add(f"{name}: of that from the fence to the next token p50", percentile(seen.until_token_s, 0.5), "s")
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
