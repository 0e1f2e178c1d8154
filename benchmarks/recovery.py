"""What clients notice when a process is killed: the gap in streams that run, and the wait of requests that arrive.

SIGKILL of post-safety under running streams, again and again; SIGKILL of one of two admission workers under a steady
arrival of requests. Every answer must still end well.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

import aiohttp

from benchmarks.clients import Answer, Meter, ask_over_sse, ask_over_websocket
from benchmarks.figures import Report, percentile
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, running_stack
from deploy.local.runner import Stack, simulated

ENGINE: dict[str, bool | int | float | str] = {"ttft_ms": 20.0, "inter_token_ms": 20.0}
STREAMS = 50
ARRIVALS_PER_S = 20.0


async def streams_over(
    stack: Stack, blow: Callable[[], object], tokens: int, *, streams: int = STREAMS, after_s: float = 2.0
) -> list[Answer]:
    """Answers of so many tokens each, asked for at once; `blow` falls `after_s` later, beside them."""
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def stream(number: int) -> Answer:
            body = chat_body(MODEL, f"Story {number}, please.", tokens, ignore_eos=True)
            body.pop("stream")
            async with asyncio.timeout(120), session.ws_connect(stack.websocket_url, compress=0) as socket:
                return await ask_over_websocket(socket, body, str(number), Meter())

        asked = [asyncio.create_task(stream(number)) for number in range(streams)]
        await asyncio.sleep(after_s)
        await asyncio.to_thread(blow)
        return await asyncio.gather(*asked)


def wrong(answers: Iterable[Answer], tokens: int) -> Counter[str]:
    """What was wrong with those that failed, have a hole, said a token twice or have not all of their tokens."""
    return Counter(
        answer.error or f"{answer.tokens} of {tokens} tokens"
        for answer in answers
        if not answer.is_good or answer.tokens != tokens
    )


async def _arrivals_over_a_kill(stack: Stack, process: str, seconds: float, rng: random.Random) -> list[Answer]:
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(delay_s: float, number: int) -> Answer:
            await asyncio.sleep(delay_s)
            return await ask_over_sse(session, stack.gateway_url, headers, chat_body(MODEL, f"Hello {number}", 8), 60)

        moments = [(slot + rng.random()) / ARRIVALS_PER_S for slot in range(int(seconds * ARRIVALS_PER_S))]
        asked = [asyncio.create_task(ask(moment, number)) for number, moment in enumerate(moments)]
        await asyncio.sleep(seconds / 3)
        await asyncio.to_thread(stack.kill, process)
        return await asyncio.gather(*asked)


def run(*, short: bool, seed: int) -> Report:
    rounds, tokens = (1, 600) if short else (10, 700)
    rng = random.Random(seed)
    report = Report("recovery", {"streams": STREAMS, "kills": rounds, "arrivals/s": ARRIVALS_PER_S, "seed": seed})
    gaps_s: list[float] = []
    waits_ms: list[float] = []
    bad_streams: Counter[str] = Counter()
    bad_arrivals: Counter[str] = Counter()
    began_s = monotonic()
    with running_stack(simulated(ENGINE, max_running=256, admission=2)) as stack:
        for _ in range(rounds):
            answers = asyncio.run(streams_over(stack, partial(stack.kill, "post-safety"), tokens))
            gaps_s += [answer.largest_gap_s for answer in answers]
            bad_streams += wrong(answers, tokens)
            stack.wait_ready()
        for _ in range(rounds):
            answers = asyncio.run(_arrivals_over_a_kill(stack, "admission-1", 15.0, rng))
            waits_ms += [wait for answer in answers if (wait := answer.first_token_ms) is not None]
            bad_arrivals.update(answer.error or "no token" for answer in answers if not answer.is_good)
            stack.wait_ready()
    report.add("post-safety killed: gap in a stream p50", percentile(gaps_s, 0.5), "s")
    report.add("post-safety killed: gap in a stream p99", percentile(gaps_s, 0.99), "s", 4)
    report.add_lost("post-safety killed: answers lost or wrong", bad_streams.total())
    slow = [wait for wait in waits_ms if wait > 1_000]
    report.add("admission killed: first token p50", percentile(waits_ms, 0.5), "ms")
    report.add("admission killed: first token p99", percentile(waits_ms, 0.99), "ms")
    report.add("admission killed: slowest first token", max(waits_ms, default=float("nan")), "ms")
    report.add("admission killed: requests that waited over 1 s", len(slow) / rounds, "requests per kill")
    report.add_lost("admission killed: answers lost or wrong", bad_arrivals.total())
    report.notes += [f"{count} answers: {why[:200]}" for why, count in (bad_streams + bad_arrivals).most_common(3)]
    report.notes.append(f"took {monotonic() - began_s:.0f} s")
    return report
