"""Time to first token that the pipeline adds: Sluice and a thin HTTP server before the same simulated engine.

Both are asked in turn, phase by phase, within one run. In each round both get the same prompts at the same moments.
"""

import asyncio
import random

import aiohttp

from benchmarks.clients import Answer, ask_over_sse
from benchmarks.figures import Report, percentile
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, running_stack, thin_server
from deploy.local.runner import simulated

# One step for all running requests, as continuous batching has.
ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": 18.0, "step_ms": 18.0}
WARM_UP_S = 10.0
MAX_TOKENS = 24


def _arrivals(rate: float, seconds: float, rng: random.Random) -> list[tuple[float, str]]:
    """Seconds from the beginning, and a prompt: `rate` of them a second, each at a random moment of its slot."""
    return [
        ((slot + rng.random()) / rate, f"Question {rng.randrange(10**9)}: what is the capital of France?")
        for slot in range(int(rate * seconds))
    ]


async def _phase(url: str, headers: dict[str, str], arrivals: list[tuple[float, str]]) -> list[Answer]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(delay_s: float, prompt: str) -> Answer:
            await asyncio.sleep(delay_s)
            return await ask_over_sse(session, url, headers, chat_body(MODEL, prompt, MAX_TOKENS), 30)

        return await asyncio.gather(*(ask(delay_s, prompt) for delay_s, prompt in arrivals))


def add_ratios(report: Report) -> None:
    """Of all that a client waits for: what is added alone can be next to nothing, which makes no ratio.

    Runs seen: 1.40 to 1.53 of the thin server at p50, 2.0 to 2.3 at p99.
    """
    for rank, spread in (("p50", 0.1), ("p99", 0.3)):
        of, over = f"pipeline: first token {rank}", f"thin server: first token {rank}"
        report.add_ratio(f"first token {rank}, pipeline / thin server", of, over, spread)


def run(*, short: bool, seed: int) -> Report:
    rate, seconds, rounds = (20.0, 5.0, 2) if short else (20.0, 20.0, 5)
    rng = random.Random(seed)
    report = Report("first_token", {"requests/s": rate, "seconds": seconds * rounds, "seed": seed, **ENGINE})
    waits: dict[str, list[float]] = {"pipeline": [], "thin server": []}
    bad = 0
    with running_stack(simulated(ENGINE)) as stack, thin_server(ENGINE) as (thin_url, _):
        targets = {
            "pipeline": (stack.gateway_url, {"Authorization": f"Bearer {stack.api_key()}"}),
            "thin server": (thin_url, {}),
        }
        for round_number in range(rounds + 1):
            arrivals = _arrivals(rate, seconds if round_number else WARM_UP_S, rng)
            for name, (url, headers) in targets.items():
                answers = asyncio.run(_phase(url, headers, arrivals))
                if round_number == 0:
                    continue  # warms both up
                waits[name] += [wait for answer in answers if (wait := answer.first_token_ms) is not None]
                bad += sum(1 for answer in answers if not answer.is_good)
    for name, values in waits.items():
        report.add(f"{name}: first token p50", percentile(values, 0.5), "ms")
        report.add(f"{name}: first token p99", percentile(values, 0.99), "ms")
    for share, goal in ((0.5, 8.0), (0.99, 24.0)):
        added = percentile(waits["pipeline"], share) - percentile(waits["thin server"], share)
        report.add(f"added p{share * 100:.0f}", added, "ms", goal)
    add_ratios(report)
    report.add_lost("answers lost or wrong", bad)
    return report
