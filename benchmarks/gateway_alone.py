"""One gateway process alone, fed with ready records on `responses`: nothing else of the pipeline has work.

Idle sockets take memory; then each of them has a stream of one token a second; then fewer streams bring 100,000 tokens
a second. The gateway does all that it does for real streams: history in Redis, commits, joining under load. Beside it a
bare loop says the same to as many sockets: what the machine takes for that, whoever sends.
"""

import asyncio
import os
import sys
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from subprocess import PIPE, Popen
from time import monotonic, process_time, time
from typing import Any

import aiohttp
import orjson

from benchmarks.figures import ProcessSample, Report, percentile, sample_processes
from benchmarks.stacks import process_group, running_stack, stack_pids
from deploy.local.runner import Stack, simulated

GATEWAY = "gateway-1"
OPENED_AT_ONCE = 100
READY_TIMEOUT_S = 120.0
HISTORY_S = 2.0
"""Until history has how they began: who comes back sooner has it read from the log, one after the other."""
SETTLE_S = 5.0


@dataclass(slots=True)
class _Seen:
    """What arrived at all sockets; counted while `running`."""

    running: bool = False
    tokens: int = 0
    messages: int = 0
    begun: int = 0
    wrong: list[str] = field(default_factory=list)
    ages_ms: "array[float]" = field(default_factory=lambda: array("f"))


@dataclass(frozen=True, slots=True)
class _Counted:
    """For how long, and the CPU time of whoever sends and of the sockets' other ends."""

    took_s: float
    sender_s: float
    clients_s: float


@asynccontextmanager
async def _sockets(url: str, api_key: str, count: int) -> AsyncIterator[list[aiohttp.ClientWebSocketResponse]]:
    """All of them open."""
    headers = {"Authorization": f"Bearer {api_key}"}
    turns = asyncio.Semaphore(OPENED_AT_ONCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def connect() -> aiohttp.ClientWebSocketResponse:
            async with turns:
                return await session.ws_connect(url, compress=0, max_msg_size=0)

        yield await asyncio.gather(*(connect() for _ in range(count)))


async def _follow(socket: aiohttp.ClientWebSocketResponse, response_id: str, seen: _Seen) -> None:
    """One stream of one socket, whose tokens must come without a gap; until it is cancelled."""
    await socket.send_str(orjson.dumps({"type": "resume", "response_id": response_id, "starting_after": 0}).decode())
    last = 0
    async for frame in socket:
        message = orjson.loads(frame.data)
        kind = message["type"]
        if kind == "delta":
            if message["first_sequence"] != last + 1:
                seen.wrong.append(f"token {message['first_sequence']} after {last}")
            if seen.running:
                seen.messages += 1
                seen.tokens += message["sequence_number"] - last
                seen.ages_ms.append(time() * 1_000 - message["emitted_at_us"] / 1_000)
            last = message["sequence_number"]
        elif kind == "started":
            seen.begun += 1
        elif kind in ("error", "closing"):
            seen.wrong.append(str(message))
    seen.wrong.append("the socket closed")


def _feeder(stack: Stack, tokens_per_s: float, tokens: int) -> tuple[list[str], dict[str, Any]]:
    settings = stack.plan.settings
    arguments = [settings.kafka.bootstrap, settings.topics.responses.name, "0", str(tokens_per_s), str(tokens)]
    return [sys.executable, "-m", "benchmarks.ready_records", *arguments], {"stdin": PIPE, "stdout": PIPE, "text": True}


async def _begin(feeder: "Popen[str]", response_ids: Sequence[str]) -> None:
    """Every response has started, and nothing was said yet."""
    assert feeder.stdin is not None
    assert feeder.stdout is not None
    feeder.stdin.write("".join(f"{response_id}\n" for response_id in response_ids) + "\n")
    feeder.stdin.flush()
    said = await asyncio.to_thread(feeder.stdout.readline)
    if said != "started\n":
        raise RuntimeError("the feeder did not start")
    await asyncio.sleep(HISTORY_S)


async def _stream(
    stack: Stack, sockets: Sequence[aiohttp.ClientWebSocketResponse], rate: float, tokens: int, seconds: float
) -> tuple[_Seen, _Counted]:
    """A stream on each socket, of `rate` tokens a second in rows of `tokens`."""
    ids = stack.plan.settings.response_ids
    response_ids = [ids.mint(0) for _ in sockets]
    command, streams = _feeder(stack, rate, tokens)
    with process_group(command, os.environ, **streams) as feeder:
        await _begin(feeder, response_ids)
        return await _count(sockets, response_ids, feeder, stack_pids(stack)[GATEWAY], seconds)


async def _bare(count: int, rate: float, tokens: int, seconds: float) -> tuple[_Seen, _Counted]:
    """The same of a bare loop with so many sockets."""
    command = [sys.executable, "-m", "benchmarks.bare_sockets", str(count), str(rate), str(tokens)]
    with process_group(command, os.environ, stdin=PIPE, stdout=PIPE, text=True) as bare:
        assert bare.stdout is not None
        port = int(await asyncio.to_thread(bare.stdout.readline))
        async with _sockets(f"ws://127.0.0.1:{port}", "none", count) as sockets:
            return await _count(sockets, ["its own"] * count, bare, bare.pid, seconds)


async def _count(
    sockets: Sequence[aiohttp.ClientWebSocketResponse], response_ids: Sequence[str], feeder: "Popen[str]", pid: int,
    seconds: float,
) -> tuple[_Seen, _Counted]:  # fmt: skip
    """What comes of the streams that `feeder` begins when it is told to, and what that takes process `pid`."""
    seen = _Seen()
    viewers = [asyncio.create_task(_follow(*each, seen)) for each in zip(sockets, response_ids, strict=True)]
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while seen.begun < len(sockets) and not seen.wrong:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert feeder.stdin is not None
        feeder.stdin.write("now\n")
        feeder.stdin.flush()
        await asyncio.sleep(SETTLE_S)
        before, clients_s, seen.running = _cpu_s(pid), process_time(), True
        began_s = monotonic()
        await asyncio.sleep(seconds)
        seen.running = False
        return seen, _Counted(monotonic() - began_s, _cpu_s(pid) - before, process_time() - clients_s)
    finally:
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)


def _cpu_s(pid: int) -> float:
    return sample_processes({"": pid})[""].cpu_s


async def _measure(report: Report, stack: Stack, sockets: int, streams: int, seconds: float) -> None:
    pids = {GATEWAY: stack_pids(stack)[GATEWAY]}
    edge = stack.websocket_url, stack.api_key()
    async with _sockets(*edge, min(100, sockets)):
        await asyncio.sleep(SETTLE_S)  # what the first ones load is none of the others' memory
        before: ProcessSample = sample_processes(pids)[GATEWAY]
    async with _sockets(*edge, sockets) as opened:
        await asyncio.sleep(SETTLE_S)
        grown_bytes = sample_processes(pids)[GATEWAY].rss_bytes - before.rss_bytes
        report.add("memory per idle socket", grown_bytes / sockets / 1_024, "KiB", 45)
        seen, counted = await _stream(stack, opened, 1, 1, seconds)
        _add(report, f"{sockets} sockets at 1 token/s", seen, counted, sockets, most_us=None)
    what = f"{streams} sockets at 100 tokens/s"
    bare, bare_counted = await _bare(streams, 100, 5, seconds / 2)
    async with _sockets(*edge, streams) as opened:
        seen, counted = await _stream(stack, opened, 100, 5, seconds)
        _add(report, what, seen, counted, streams * 100, most_us=18)
    report.add(f"{what}: CPU per message of a bare loop", bare_counted.sender_s * 1e6 / max(1, bare.messages), "µs")
    report.add_ratio(
        f"{what}: CPU, gateway / bare loop", f"{what}: CPU per message of the gateway",
        f"{what}: CPU per message of a bare loop", 0.25,
    )  # fmt: skip
    report.notes += [f"bare loop: {why[:200]}" for why in bare.wrong[:3]]


def _add(report: Report, what: str, seen: _Seen, counted: _Counted, offered_per_s: int, most_us: float | None) -> None:
    offered = offered_per_s * counted.took_s
    report.add(f"{what}: delivered / offered", seen.tokens / offered, "ratio", 0.99, at_most=False, spread=0.01)
    report.add(f"{what}: tokens delivered", seen.tokens / counted.took_s, "tokens/s")
    report.add(f"{what}: messages delivered", seen.messages / counted.took_s, "messages/s")
    report.add(f"{what}: written to client p50", percentile(seen.ages_ms, 0.5), "ms")
    report.add(f"{what}: written to client p99", percentile(seen.ages_ms, 0.99), "ms")
    messages = max(1, seen.messages)
    report.add(f"{what}: CPU per message of the gateway", counted.sender_s * 1e6 / messages, "µs", most_us)
    report.add(f"{what}: CPU per message of the clients", counted.clients_s * 1e6 / messages, "µs")
    report.add_ratio(
        f"{what}: CPU, gateway / clients", f"{what}: CPU per message of the gateway",
        f"{what}: CPU per message of the clients", 0.25,
    )  # fmt: skip
    report.add(f"{what}: gaps, refusals and closed sockets", len(seen.wrong), "streams", 0, spread=0.0)
    report.notes += [f"{what}: {why[:200]}" for why in seen.wrong[:3]]


def run(*, short: bool, seed: int) -> Report:
    sockets, streams, seconds = (500, 100, 5.0) if short else (10_000, 1_000, 60.0)
    report = Report("gateway_alone", {"sockets": sockets, "streams": streams, "seconds": seconds, "seed": seed})
    more = {"SLUICE_GATEWAY__TENANT_SHARE__CONNECTIONS": str(sockets + 1_000)}
    with running_stack(replace(simulated(), environment=more)) as stack:
        asyncio.run(_measure(report, stack, sockets, streams, seconds))
    return report
