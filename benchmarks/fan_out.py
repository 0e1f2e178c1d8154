"""The pipeline alone at 50,000 tokens/s: 1,000 WebSockets, each streaming 50 tokens/s from the simulated engine.

Everything is switched on: quota, both safety stages, replay, usage, billing. Each client asks again as soon as its
answer ended. The clients run on the same cores; their CPU is reported apart.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from time import monotonic, process_time

import aiohttp

from benchmarks.clients import Answer, Meter, ask_over_websocket
from benchmarks.figures import ProcessSample, Report, percentile, sample_processes
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, metrics_of, running_stack, stack_pids
from deploy.local.runner import Stack, simulated

TOKENS_PER_S = 50
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0,
    "inter_token_ms": 1000 / TOKENS_PER_S,
    "step_ms": 1000 / TOKENS_PER_S,
    # Room for all streams at their longest: a preempted stream would count as one that the pipeline held up.
    "kv_blocks": 262_144,
}
STORES = frozenset({"kafka", "redis", "redis-history"})
"""Keep what they are asked to, as long as they are asked to: bounded by retention, and reported apart."""

CPU_SPREADS = {"worker-1": 0.2, "post-safety": 0.2, "gateway-1": 0.2, "kafka": 0.3, "admission-1": 0.3, "billing": 0.3}
"""Of CPU beside the clients': from run to run they moved by 9 to 26 %."""
MEMORY_GROWTH_SPREAD = 0.3
"""13.1 to 14.2 % in three runs; it is measured in whole pages of allocators."""


class _Load:
    """The clients, and what they saw."""

    def __init__(self, stack: Stack, streams: int, tokens: int, rng: random.Random) -> None:
        self._stack = stack
        self._streams = streams
        self._tokens = tokens
        self._rng = rng
        self.answers: list[Answer] = []
        self.meter = Meter()
        self.samples: list[Mapping[str, ProcessSample]] = []
        self.client_cpu_s = 0.0
        self.took_s = 0.0

    async def _client(self, session: aiohttp.ClientSession, number: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        # The first answer's length is drawn, so that the clients do not all end and begin together.
        tokens = self._rng.randint(self._tokens // 4, self._tokens)
        async with session.ws_connect(self._stack.websocket_url, compress=0, max_msg_size=0) as socket:
            for turn in range(1_000_000):
                body = chat_body(MODEL, f"Story {number} of {turn}, please.", tokens, ignore_eos=True)
                self.answers.append(await ask_over_websocket(socket, body, f"{number}-{turn}", self.meter))
                tokens = self._tokens

    async def run(self, ramp_s: float, settle_s: float, seconds: float) -> None:
        headers = {"Authorization": f"Bearer {self._stack.api_key()}"}
        pids = stack_pids(self._stack)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
            clients = [
                asyncio.create_task(self._client(session, number, ramp_s * number / self._streams))
                for number in range(self._streams)
            ]
            await asyncio.sleep(ramp_s + settle_s)
            began_s, began_cpu_s, self.meter.running = monotonic(), process_time(), True
            self.samples.append(sample_processes(pids))
            while (left_s := began_s + seconds - monotonic()) > 0:
                await asyncio.sleep(min(10.0, left_s))
                self.samples.append(sample_processes(pids))
            self.meter.running = False
            self.took_s, self.client_cpu_s = monotonic() - began_s, process_time() - began_cpu_s
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def _growth(earlier: Mapping[str, ProcessSample], later: Mapping[str, ProcessSample]) -> float:
    """By what share the pipeline's memory grew."""
    pipeline = earlier.keys() - STORES
    return sum(later[name].rss_bytes for name in pipeline) / sum(earlier[name].rss_bytes for name in pipeline) - 1


def add_ratios(report: Report) -> None:
    for name, spread in CPU_SPREADS.items():
        report.add_ratio(f"CPU per token, {name} / clients", f"CPU per token: {name}", "CPU per token: clients", spread)


def run(*, short: bool, seed: int) -> Report:
    streams, seconds, tokens, settle_s = (200, 15.0, 400, 3.0) if short else (1_000, 600.0, 3_000, 60.0)
    return measure(streams, seconds, tokens, settle_s, seed)


def measure(streams: int, seconds: float, tokens: int, settle_s: float, seed: int) -> Report:
    """`tokens`: of an answer, at most; `settle_s`: from when all streams run."""
    report = Report("fan_out", {"streams": streams, "tokens/s each": TOKENS_PER_S, "seconds": seconds, "seed": seed})
    with running_stack(simulated(ENGINE, max_running=streams + 64)) as stack:
        load = _Load(stack, streams, tokens, random.Random(seed))
        asyncio.run(load.run(10.0, settle_s, seconds))
        counters = metrics_of(stack)
    offered = streams * TOKENS_PER_S * load.took_s
    meter = load.meter
    report.add("delivered / offered", meter.tokens / offered, "ratio", 0.99, at_most=False, spread=0.01)
    report.add("tokens delivered", meter.tokens / load.took_s, "tokens/s")
    report.add("messages delivered", meter.messages / load.took_s, "messages/s")
    report.add("tokens per message", meter.tokens / max(1, meter.messages), "tokens")
    report.add("worker to client p50", percentile(meter.ages_ms, 0.5), "ms")
    report.add("worker to client p99", percentile(meter.ages_ms, 0.99), "ms", 60)
    report.add("largest gap in any stream", meter.largest_gap_s, "s", 1)
    errors = Counter(answer.error for answer in load.answers if answer.error)
    report.add_lost("answers with an error", errors.total())
    report.notes += [f"{count} answers: {error[:200]}" for error, count in errors.most_common(3)]
    first, halfway, last = load.samples[0], load.samples[len(load.samples) // 2], load.samples[-1]
    for name in first:
        cpu_us = (last[name].cpu_s - first[name].cpu_s) * 1e6 / max(1, meter.tokens)
        report.add(f"CPU per token: {name}", cpu_us, "µs")
    report.add("CPU per token: clients", load.client_cpu_s * 1e6 / max(1, meter.tokens), "µs")
    add_ratios(report)
    report.add("memory growth of the pipeline", _growth(first, last) * 100, "%", 5, spread=MEMORY_GROWTH_SPREAD)
    report.add("memory growth of the pipeline, second half", _growth(halfway, last) * 100, "%")
    for name in first:
        report.add(
            f"memory: {name}", last[name].rss_bytes / 2**20, f"MiB (began at {first[name].rss_bytes / 2**20:.0f})"
        )
    rows = counters.get("sluice_post_safety_released_rows_total", 0.0)
    frames = counters.get("sluice_post_safety_records_read_total", 0.0)
    report.add("released rows per record read", rows / max(1.0, frames), "rows")
    return report
