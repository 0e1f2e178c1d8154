"""What a client from outside sees: steady arrivals and bursts, every chunk timed.

The engine takes 20 ms to a first token and 20 ms for each step of all running requests, with room for all. The same
load is put on a thin server before the same engine, in turn, within one run.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from benchmarks.clients import Answer, ask_over_sse, chat_body
from benchmarks.figures import Report, percentile
from benchmarks.stacks import MODEL, MODEL_PATH, baseline_server, free_port, running_stack
from deploy.local.runner import simulated

STEP_MS = 20.0
ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": STEP_MS, "step_ms": STEP_MS}
MAX_TOKENS = 32
RATE = 20.0
BURSTS = (8, 32, 200, 500)
FIRST_REQUEST_GOAL_MS = 60.0
FIRST_TOKEN_GOALS_MS = {32: 60.0, 200: 250.0}
LARGEST_AT_PACE = 200
REST_S = 2.0
"""Between bursts: everything that the last one began has ended."""
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    headers: dict[str, str]


class Load:
    """Asks one server. Prompts differ, so that no prefix is cached, and are the same for both servers."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._rng = random.Random(seed)

    async def _ask(self, session: aiohttp.ClientSession, delay_s: float) -> Answer:
        await asyncio.sleep(delay_s)
        prompt = f"Question {self._rng.randrange(10**9)}: what is the capital of France?"
        body = chat_body(MODEL, prompt, MAX_TOKENS, ignore_eos=True)
        return await ask_over_sse(session, self._target.url, self._target.headers, body, TIMEOUT_S)

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


def _add_percentiles(report: Report, what: str, values_ms: list[float], p50_goal_ms: float | None = None) -> None:
    report.add(f"{what} p50", percentile(values_ms, 0.5), "ms", p50_goal_ms)
    report.add(f"{what} p99", percentile(values_ms, 0.99), "ms")


def run(*, short: bool, seed: int) -> Report:
    seconds, rounds, sizes = (5.0, 1, BURSTS[:2]) if short else (30.0, 5, BURSTS)
    report = Report("bursts", {"rate/s": RATE, "seconds": seconds, "rounds": rounds, "seed": seed, **ENGINE})
    port = free_port()
    thin = [sys.executable, "-m", "benchmarks.thin_server", str(port), str(MODEL_PATH), json.dumps(ENGINE)]
    bad = 0
    with (
        running_stack(simulated(ENGINE, max_running=1_024)) as stack,
        baseline_server(thin, f"http://127.0.0.1:{port}", os.environ, "/docs"),
    ):
        ours = Target(stack.gateway_url, {"Authorization": f"Bearer {stack.api_key()}"})
        loads = {"thin server": Load(Target(f"http://127.0.0.1:{port}", {}), seed), "pipeline": Load(ours, seed)}

        def both(of: Callable[[Load], list[Answer]], times: int = 1) -> dict[str, list[Answer]]:
            nonlocal bad
            answers: dict[str, list[Answer]] = {name: [] for name in loads}
            for _ in range(times):
                for name, load in loads.items():
                    answers[name] += of(load)
                    time.sleep(REST_S)
            bad += sum(not answer.is_good for several in answers.values() for answer in several)
            return answers

        first = both(lambda load: load.one_by_one(8))
        for name, answers in first.items():
            goal_ms = FIRST_REQUEST_GOAL_MS if name == "pipeline" else None
            report.add(f"{name}: very first request", first_tokens_ms(answers)[0], "ms", goal_ms)
            report.add(f"{name}: slowest of the first 8", max(first_tokens_ms(answers)), "ms", goal_ms)
        for name, answers in both(lambda load: load.steady(seconds)).items():
            _add_percentiles(report, f"{name}: {RATE:g}/s, first token", first_tokens_ms(answers))
        for size in sizes:
            for name, answers in both(lambda load: load.burst(size), rounds).items():  # noqa: B023 - called at once
                is_ours = name == "pipeline"
                first_goal_ms = FIRST_TOKEN_GOALS_MS.get(size) if is_ours else None
                step_goal_ms = STEP_MS * 1.1 if is_ours and size <= LARGEST_AT_PACE else None
                _add_percentiles(
                    report, f"{name}: {size} at once, first token", first_tokens_ms(answers), first_goal_ms
                )
                _add_percentiles(report, f"{name}: {size} at once, between chunks", between_ms(answers), step_goal_ms)
    report.add("answers lost or wrong", bad, "answers", 0)
    return report
