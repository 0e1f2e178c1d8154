"""Tokens/s of 32 streams on the real model: the bare engine, vLLM's own API server, and the whole pipeline.

The three take turns on the same cores, and nothing idles beside the one that is measured: the baselines are stopped
(SIGSTOP) when it is not their turn, and each turn of the pipeline has a stack of its own, because sessions and leases
would not outlive a pause. All three compute in one process on as many threads
(`gpu_consumers.engines.vllm_options`), which is the faster way on CPU for each of them.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import monotonic
from typing import Any

import aiohttp
import orjson

from benchmarks.clients import JSON_BODY
from benchmarks.figures import Report
from benchmarks.spoken import chat_body
from benchmarks.stacks import (
    MODEL,
    MODEL_PATH,
    Turns,
    baseline_server,
    free_port,
    process_group,
    running_stack,
)
from deploy.local.plan import Options
from gpu_consumers.engines.vllm_options import ONE_PROCESS_EXECUTOR, compute_threads

STREAMS = 32
MEAN_TOKENS = 256
WARM_UP_S = 10.0
PIPELINE_SPREAD = 0.15
"""Runs seen: 0.77 three times, 0.68 twice."""
ENGINE_ARGS: dict[str, bool | int | float | str] = {
    "dtype": "float32",
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "distributed_executor_backend": ONE_PROCESS_EXECUTOR,
}


def question(number: int) -> str:
    return f"Tell me a story, number {number}."


def answer_tokens(number: int) -> int:
    """Between half of the mean and one and a half: answers of one length would all end in the same step."""
    return MEAN_TOKENS // 2 + number * 83 % (MEAN_TOKENS + 1)


async def _stream_tokens(url: str, headers: dict[str, str], model: str, seconds: float) -> float:
    """Tokens/s that `STREAMS` clients read, each asking again as soon as its answer ended.

    An answer that runs over the end counts by the share of its time that lies before it. Until the last of these has
    ended, the others go on asking, so that all of it is served under the same load.
    """
    counted, counting = 0.0, STREAMS
    all_counted = asyncio.Event()
    began_s = monotonic()
    end_s = began_s + seconds
    extra: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}

    async def ask(session: aiohttp.ClientSession, number: int) -> int:
        body = orjson.dumps(chat_body(model, question(number), answer_tokens(number), **extra))
        tokens = 0
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"{url} answered {response.status}: {await response.text()}")
            async for line in response.content:
                if b'"usage":{' in line:
                    tokens = orjson.loads(line[6:])["usage"]["completion_tokens"]
        return tokens

    async def stream(session: aiohttp.ClientSession, first: int) -> None:
        nonlocal counted, counting
        number, is_counting = first, True
        while True:
            asked_s = monotonic()
            tokens = await ask(session, number % STREAMS)
            ended_s = monotonic()
            if asked_s < end_s:
                counted += tokens * min(1.0, (end_s - asked_s) / (ended_s - asked_s))
            if is_counting and ended_s >= end_s:
                is_counting = False
                counting -= 1
                if not counting:
                    all_counted.set()
            number += 1

    headers = JSON_BODY | headers
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        streams = [group.create_task(stream(session, number)) for number in range(STREAMS)]
        await all_counted.wait()
        for task in streams:
            task.cancel()
    return counted / seconds


class _BareEngine:
    """`bare_engine.py` as a process: a line to it starts a round, a line from it is the round's result."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._rounds, self._results = process.stdin, process.stdout

    def _read_until(self, beginning: str) -> str:
        while not (line := self._results.readline()).startswith(beginning):
            if not line:
                raise RuntimeError("the bare engine ended")
        return line

    def wait_ready(self) -> None:
        self._read_until("ready")

    def tokens_per_s(self) -> float:
        self._rounds.write("\n")
        self._rounds.flush()
        return float(json.loads(self._read_until("{"))["tokens_per_s"])


@contextlib.contextmanager
def _bare_engine(seconds: float, rounds: int) -> Iterator[tuple[int, _BareEngine]]:
    """Its process group, and itself."""
    arguments = [json.dumps(ENGINE_ARGS), str(STREAMS), str(int(seconds)), str(rounds)]
    command = [sys.executable, "-m", "benchmarks.bare_engine", str(MODEL_PATH), *arguments]
    with process_group(command, _environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        engine = _BareEngine(process)
        engine.wait_ready()
        yield process.pid, engine


def _environment() -> dict[str, str]:
    """The baselines compute on as many threads as a worker's engine does."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": str(compute_threads()),
    }  # fmt: skip


def _api_server_command(port: int) -> list[str]:
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL_PATH),
        "--served-model-name", MODEL, "--port", str(port), "--host", "127.0.0.1", "--dtype", "float32",
        "--max-model-len", "4096", "--max-num-seqs", "64", "--enforce-eager",
        "--distributed-executor-backend", ONE_PROCESS_EXECUTOR,
    ]  # fmt: skip


def _pipeline_tokens_per_s(seconds: float) -> float:
    with running_stack(Options(engine="vllm", engine_args=ENGINE_ARGS, free_ports=True)) as stack:
        key = {"Authorization": f"Bearer {stack.api_key()}"}
        asyncio.run(_stream_tokens(stack.gateway_url, key, MODEL, WARM_UP_S))
        return asyncio.run(_stream_tokens(stack.gateway_url, key, MODEL, seconds))


def run(*, short: bool, seed: int) -> Report:
    seconds, rounds = (8.0, 1) if short else (15.0, 3)
    report = Report("engine_throughput", {"streams": STREAMS, "mean_tokens": MEAN_TOKENS, "seconds": seconds * rounds})
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    rates: dict[str, list[float]] = {"bare engine": [], "vLLM's API server": [], "pipeline": []}
    with (
        _bare_engine(seconds, rounds + 1) as (bare_group, bare),
        baseline_server(_api_server_command(port), url, _environment(), "/health") as server_group,
        Turns({"bare engine": bare_group, "vLLM's API server": server_group}) as turns,
    ):
        baselines: dict[str, Callable[[], float]] = {
            "bare engine": bare.tokens_per_s,
            "vLLM's API server": lambda: asyncio.run(_stream_tokens(url, {}, MODEL, seconds)),
        }
        for round_number in range(rounds + 1):
            for name, tokens_per_s in baselines.items():
                with turns.turn(name):
                    rate = tokens_per_s()
                if round_number:  # the first round warms them up
                    rates[name].append(rate)
            if round_number:
                rates["pipeline"].append(_pipeline_tokens_per_s(seconds))
    medians = {name: median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        report.add(name, rate, "tokens/s")
    server_ratio = medians["vLLM's API server"] / medians["bare engine"]
    report.add("vLLM's API server / bare engine", server_ratio, "ratio")
    name = "pipeline / bare engine"
    report.add_ratio(name, "pipeline", "bare engine", PIPELINE_SPREAD, goal=server_ratio, at_most=False)
    return report
