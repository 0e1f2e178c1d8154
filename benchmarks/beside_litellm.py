"""Sluice beside LiteLLM's proxy, and a thin server: one simulated engine's answers through each of them in turn.

LiteLLM stands before the thin server, so what the thin server takes is in what LiteLLM takes. Of Sluice the whole
pipeline runs. In each dialect LiteLLM asks the thin server for a chat, which is all that that one has, and translates.
Where LiteLLM cannot be installed, the others are measured without it.
"""

import contextlib
import os
from collections import Counter

from benchmarks import bursts
from benchmarks.bursts import RATE, STEP_MS, Load, Seen, SideBySide, Target, between_ms, first_tokens_ms
from benchmarks.environments import NotInstalled
from benchmarks.figures import Report, percentile
from benchmarks.peer_servers import litellm_proxy, litellm_version
from benchmarks.spoken import DIALECTS
from benchmarks.stacks import running_stack, stack_pids, thin_server
from deploy.local.runner import simulated

# Long enough that the bound alone ends an answer, in dialects too that have no word for it.
ENGINE: dict[str, bool | int | float | str] = {
    **bursts.ENGINE, "min_output_tokens": 1_000, "max_output_tokens": 1_000,
}  # fmt: skip
SIZES = (8, 32, 200)
STREAMS, STREAM_TOKENS = 200, 100
STREAMS_TIMEOUT_S = 150.0
DIALECT_STREAMS = 32
WARM_UP_S = 5.0


def run(*, short: bool, seed: int) -> Report:
    seconds, rounds, sizes = (3.0, 1, SIZES[:1]) if short else (15.0, 3, SIZES)
    setting = {"rate/s": RATE, "seconds": seconds, "rounds": rounds, "seed": seed}
    report = Report("beside_litellm", {**setting, **ENGINE, "LiteLLM": litellm_version()})
    with contextlib.ExitStack() as servers:
        stack = servers.enter_context(running_stack(simulated(ENGINE, max_running=1_024)))
        thin_url, thin_pid = servers.enter_context(thin_server(ENGINE))
        ours = Target(stack.gateway_url, {"Authorization": f"Bearer {stack.api_key()}"})
        targets = {"Sluice": ours, "thin server": Target(thin_url, {})}
        pids = {"Sluice": stack_pids(stack), "thin server": {"thin server": thin_pid}}
        cores = len(os.sched_getaffinity(0))
        try:
            proxy = servers.enter_context(litellm_proxy(thin_url, kind="custom_openai", workers=cores))
        except NotInstalled as why:
            report.notes.append(f"LiteLLM could not be installed: {why}")
        else:
            targets["LiteLLM"] = Target(proxy.url, {"Authorization": f"Bearer {proxy.key}"})
            pids["LiteLLM"] = {"LiteLLM": proxy.pid, "thin server": thin_pid}
        _measure(report, targets, pids, seed, seconds, rounds, sizes)
    return report


def _measure(
    report: Report,
    targets: dict[str, Target],
    pids: dict[str, dict[str, int]],
    seed: int,
    seconds: float,
    rounds: int,
    sizes: tuple[int, ...],
) -> None:
    turns = SideBySide({name: Load(target, seed, fields={}) for name, target in targets.items()}, pids)
    turns.ask(lambda load: load.one_by_one(8) + load.steady(WARM_UP_S) + load.burst(SIZES[0]))
    for name, seen in turns.ask(lambda load: load.steady(seconds)).items():
        _add_percentiles(report, f"{name}: first token at {RATE:g}/s", first_tokens_ms(seen.answers))
    for size in sizes:
        for name, seen in turns.ask(lambda load: load.burst(size), rounds).items():  # noqa: B023 - called at once
            _add_percentiles(report, f"{name}: first token, {size} at once", first_tokens_ms(seen.answers))
            _add_percentiles(report, f"{name}: between chunks, {size} at once", between_ms(seen.answers))
    streams = SideBySide(
        {name: Load(target, seed, STREAM_TOKENS, STREAMS_TIMEOUT_S, fields={}) for name, target in targets.items()},
        pids,
    )
    for name, seen in streams.ask(lambda load: load.burst(STREAMS)).items():
        _add_rate(report, name, seen)
    lost = turns.bad + streams.bad + _measure_dialects(report, targets, pids, seed, rounds)
    for name in targets:
        report.add(f"{name}: answers lost or wrong", lost[name], "answers")


def _measure_dialects(
    report: Report, targets: dict[str, Target], pids: dict[str, dict[str, int]], seed: int, rounds: int
) -> Counter[str]:
    """Of the servers that have more than chats. Returns how many answers were lost or wrong, by server."""
    lost: Counter[str] = Counter()
    polyglots = {name: target for name, target in targets.items() if name != "thin server"}
    for dialect, spoken in DIALECTS.items():
        loads = {name: Load(target, seed, spoken=spoken, fields={}) for name, target in polyglots.items()}
        turns = SideBySide(loads, pids)
        turns.ask(lambda load: load.one_by_one(2))
        for name, seen in turns.ask(lambda load: load.burst(DIALECT_STREAMS), rounds).items():
            what = f"{name}: {dialect}, {DIALECT_STREAMS} at once"
            _add_percentiles(report, f"{what}, first token", first_tokens_ms(seen.answers))
            _add_percentiles(report, f"{what}, whole", _whole_ms(seen))
            report.add(f"{what}, rate", _requests_per_s(seen, DIALECT_STREAMS), "requests/s")
        lost += turns.bad
    return lost


def _whole_ms(seen: Seen) -> list[float]:
    return [
        (answer.ended_at_s - answer.asked_at_s) * 1000
        for answer in seen.answers
        if answer.ended_at_s is not None and answer.is_good
    ]


def _requests_per_s(seen: Seen, size: int) -> float:
    """Good answers over the time of their bursts, each from its first request to its last end."""
    answers = seen.answers
    bursts_of = [answers[first : first + size] for first in range(0, len(answers), size)]
    took_s = sum(
        max((each.ended_at_s or each.asked_at_s) for each in burst) - min(each.asked_at_s for each in burst)
        for burst in bursts_of
    )
    return sum(answer.is_good for answer in answers) / took_s if took_s else 0.0


def _add_percentiles(report: Report, what: str, values_ms: list[float]) -> None:
    for rank, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(f"{what}, {rank}", percentile(values_ms, share), "ms")


def _add_rate(report: Report, name: str, seen: Seen) -> None:
    """From the first request to the last end; `of what the engine offers` is one token per step and stream."""
    ended_s = [answer.ended_at_s for answer in seen.answers if answer.ended_at_s is not None and answer.is_good]
    tokens = len(ended_s) * STREAM_TOKENS
    took_s = max(ended_s, default=float("nan")) - min(answer.asked_at_s for answer in seen.answers)
    what = f"{name}: {STREAMS} streams"
    report.add(f"{what}, rate", tokens / took_s, "tokens/s")
    report.add(f"{what}, rate of what the engine offers", tokens / took_s / (STREAMS * 1000 / STEP_MS), "ratio")
    servers_s = sum(cpu_s for process, cpu_s in seen.cpu_s.items() if process != "clients")
    report.add(f"{what}, CPU per token of the servers", servers_s * 1e6 / max(1, tokens), "µs")
    report.add(f"{what}, CPU per token of the clients", seen.cpu_s["clients"] * 1e6 / max(1, tokens), "µs")
