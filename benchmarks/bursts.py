"""What a client from outside sees: steady arrivals and bursts, every chunk timed.

The engine takes 20 ms to a first token and 20 ms for each step of all running requests, with room for all. The same
load is put on a thin server before the same engine, in turn, within one run.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.clients import Answer, ask_over_sse
from benchmarks.figures import Report, percentile, sample_processes
from benchmarks.spoken import CHAT, Spoken
from benchmarks.stacks import MODEL, running_stack, stack_pids, thin_server
from deploy.local.runner import simulated

STEP_MS = 20.0
ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": STEP_MS, "step_ms": STEP_MS}
MAX_TOKENS = 32
RATE = 20.0
BURSTS = (8, 32, 200, 500)
FIRST_REQUEST_GOAL_MS = 60.0
FIRST_TOKEN_GOALS_MS = {32: 60.0, 200: 250.0}
LARGEST_AT_PACE = 200
SPREADS = {"first token p50": 0.3, "first token p99": 0.4, "between chunks p50": 0.2, "between chunks p99": 0.4}
"""Of the pipeline beside the thin server. Runs seen: 3.2 to 4.5 for the first token of 32 at once (p50)."""
STEADY_SPREADS = {"first token p50": 0.15, "first token p99": 0.4}
CPU_SPREAD = 0.25
COSTED_SIZE = 200
"""The burst whose CPU is told by process."""
REST_S = 2.0
"""Between bursts: everything that the last one began has ended."""
TIMEOUT_S = 60.0
TO_THE_BOUND: Mapping[str, Any] = {"ignore_eos": True}


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    headers: dict[str, str]


class Load:
    """Asks one server. Prompts differ, so that no prefix is cached, and are the same for every server."""

    def __init__(
        self,
        target: Target,
        seed: int,
        max_tokens: int = MAX_TOKENS,
        timeout_s: float = TIMEOUT_S,
        *,
        spoken: Spoken = CHAT,
        fields: Mapping[str, Any] = TO_THE_BOUND,
    ) -> None:
        """`fields` stand in every body beside what its dialect asks with."""
        self._target = target
        self._timeout_s = timeout_s
        self._max_tokens = max_tokens
        self._spoken = spoken
        self._fields = fields
        self._rng = random.Random(seed)

    async def _ask(self, session: aiohttp.ClientSession, delay_s: float) -> Answer:
        await asyncio.sleep(delay_s)
        prompt = f"Question {self._rng.randrange(10**9)}: what is the capital of France?"
        body = {**self._spoken.body(MODEL, prompt, self._max_tokens), **self._fields}
        return await ask_over_sse(session, self._target.url, self._target.headers, body, self._timeout_s, self._spoken)

    async def _all(self, delays_s: Sequence[float]) -> list[Answer]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            return await asyncio.gather(*(self._ask(session, delay_s) for delay_s in delays_s))

    def one_by_one(self, count: int) -> list[Answer]:
        return [asyncio.run(self._all([0.0]))[0] for _ in range(count)]

    def steady(self, seconds: float) -> list[Answer]:
        return asyncio.run(self._all([(n + self._rng.random()) / RATE for n in range(int(RATE * seconds))]))

    def burst(self, size: int) -> list[Answer]:
        return asyncio.run(self._all([0.0] * size))


def first_tokens_ms(answers: Sequence[Answer]) -> list[float]:
    return [wait_ms for answer in answers if (wait_ms := answer.first_token_ms) is not None]


def between_ms(answers: Sequence[Answer]) -> list[float]:
    return [gap_s * 1000 for answer in answers for gap_s in answer.gaps_s]


@dataclass(slots=True)
class Seen:
    """What the clients of one server saw of a load, and the CPU time that it took by process, theirs as `clients`."""

    answers: list[Answer] = field(default_factory=list)
    cpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add_costs(self, report: Report, what: str) -> None:
        """`everything` is all but the clients."""
        costs_ms = {name: cpu_s * 1000 / len(self.answers) for name, cpu_s in self.cpu_s.items()}
        costs_ms["everything"] = sum(costs_ms.values()) - costs_ms["clients"]
        for name, cost_ms in costs_ms.items():
            report.add(f"{what}, CPU per request: {name}", cost_ms, "ms")


class SideBySide:
    """Puts the same load on several servers in turn."""

    def __init__(self, loads: Mapping[str, Load], pids: Mapping[str, Mapping[str, int]]) -> None:
        """Both by server; `pids` by process, whose children count with it."""
        self._loads = loads
        self._pids = pids
        self.bad: Counter[str] = Counter()
        """Answers that were lost or wrong, by server."""

    def ask(self, of: Callable[[Load], list[Answer]], times: int = 1) -> dict[str, Seen]:
        seen = {name: Seen() for name in self._loads}
        for _ in range(times):
            for name, load in self._loads.items():
                before, clients_before_s = sample_processes(self._pids[name]), time.process_time()
                seen[name].answers += of(load)
                seen[name].cpu_s["clients"] += time.process_time() - clients_before_s
                for process, sample in sample_processes(self._pids[name]).items():
                    seen[name].cpu_s[process] += sample.cpu_s - before[process].cpu_s
                time.sleep(REST_S)
        for name, each in seen.items():
            self.bad[name] += sum(not answer.is_good for answer in each.answers)
        return seen


def _add_percentiles(report: Report, what: str, values_ms: list[float], p50_goal_ms: float | None = None) -> None:
    report.add(f"{what} p50", percentile(values_ms, 0.5), "ms", p50_goal_ms)
    report.add(f"{what} p99", percentile(values_ms, 0.99), "ms")


def add_ratios(report: Report, sizes: Sequence[int]) -> None:
    figures = {f"{RATE:g}/s, {name}": spread for name, spread in STEADY_SPREADS.items()}
    figures |= {f"{size} at once, {name}": spread for size in sizes for name, spread in SPREADS.items()}
    if COSTED_SIZE in sizes:
        figures[f"{COSTED_SIZE} at once, CPU per request: everything"] = CPU_SPREAD
    for figure, spread in figures.items():
        report.add_ratio(f"{figure}, pipeline / thin server", f"pipeline: {figure}", f"thin server: {figure}", spread)


def _measure(report: Report, servers: SideBySide, seconds: float, rounds: int, sizes: Sequence[int]) -> None:
    for name, seen in servers.ask(lambda load: load.one_by_one(8)).items():
        goal_ms = FIRST_REQUEST_GOAL_MS if name == "pipeline" else None
        report.add(f"{name}: very first request", first_tokens_ms(seen.answers)[0], "ms", goal_ms)
        report.add(f"{name}: slowest of the first 8", max(first_tokens_ms(seen.answers)), "ms", goal_ms)
    for name, seen in servers.ask(lambda load: load.steady(seconds)).items():
        _add_percentiles(report, f"{name}: {RATE:g}/s, first token", first_tokens_ms(seen.answers))
    for size in sizes:
        for name, seen in servers.ask(lambda load: load.burst(size), rounds).items():  # noqa: B023 - called at once
            is_ours = name == "pipeline"
            waits_ms = first_tokens_ms(seen.answers)
            first_goal_ms = FIRST_TOKEN_GOALS_MS.get(size) if is_ours else None
            step_goal_ms = STEP_MS * 1.1 if is_ours and size <= LARGEST_AT_PACE else None
            _add_percentiles(report, f"{name}: {size} at once, first token", waits_ms, first_goal_ms)
            _add_percentiles(report, f"{name}: {size} at once, between chunks", between_ms(seen.answers), step_goal_ms)
            if size == COSTED_SIZE:
                seen.add_costs(report, f"{name}: {size} at once")


def run(*, short: bool, seed: int) -> Report:
    seconds, rounds, sizes = (5.0, 1, BURSTS[:2]) if short else (30.0, 5, BURSTS)
    report = Report("bursts", {"rate/s": RATE, "seconds": seconds, "rounds": rounds, "seed": seed, **ENGINE})
    with running_stack(simulated(ENGINE, max_running=1_024)) as stack, thin_server(ENGINE) as (url, thin_pid):
        ours = Target(stack.gateway_url, {"Authorization": f"Bearer {stack.api_key()}"})
        servers = SideBySide(
            {"thin server": Load(Target(url, {}), seed), "pipeline": Load(ours, seed)},
            {"thin server": {"thin server": thin_pid}, "pipeline": stack_pids(stack)},
        )
        _measure(report, servers, seconds, rounds, sizes)
    add_ratios(report, sizes)
    report.add_lost("answers lost or wrong", servers.bad.total())
    return report
