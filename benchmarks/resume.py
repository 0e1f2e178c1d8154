"""What clients notice who come back at another gateway: three of them, and streams that go on meanwhile.

Clients come back at 20 a second, a hundred tokens behind; 500 sockets come back at once; one gateway is killed under
streams whose clients go on at the next one; one is stopped in order and started again. Nothing may be lost or doubled.

`python -m benchmarks.resume [SOCKETS]`: only those that come back at once, three times, with the CPU time by process.
"""

import asyncio
import itertools
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic, process_time

import aiohttp
import orjson

from benchmarks.figures import Report, percentile, sample_processes
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, running_stack, stack_pids
from deploy.local.runner import Stack, simulated

GATEWAYS = 3
TOKENS_PER_S = 20
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 1000 / TOKENS_PER_S, "step_ms": 1000 / TOKENS_PER_S, "kv_blocks": 262_144,
}  # fmt: skip
COME_BACK_PER_S = 20.0
BEHIND = 100
"""Tokens that who comes back has not seen."""
READY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Stream:
    """One response, and what its client has of it."""

    urls: Iterator[str]
    response_id: str = ""
    last: int = 0
    has_ended: bool = False
    connections: int = 0
    heard_at_s: float = 0.0
    largest_gap_s: float = 0.0
    wrong: str = ""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, first: int, last: int) -> None:
        now_s = monotonic()
        if first != self.last + 1:
            self.wrong = f"token {first} after {self.last}"
        if self.heard_at_s:
            self.largest_gap_s = max(self.largest_gap_s, now_s - self.heard_at_s)
        self.last, self.heard_at_s = last, now_s
        if last > BEHIND:
            self.begun.set()


def _gateways(stack: Stack) -> list[str]:
    ports = [spec.environment.get("SLUICE_GATEWAY__PORT") for spec in stack.plan.processes]
    return [f"http://127.0.0.1:{port}" for port in ports if port is not None]


def _from(urls: Sequence[str], first: int) -> Iterator[str]:
    """One after the other, again and again."""
    return itertools.cycle([*urls[first:], *urls[:first]])


async def _follow(session: aiohttp.ClientSession, stream: Stream, tokens: int) -> None:
    """To its end, at the next gateway whenever the last one lets it go."""
    while not stream.has_ended and not stream.wrong:
        try:
            async with session.ws_connect(f"{next(stream.urls)}/v1/stream", compress=0, max_msg_size=0) as socket:
                stream.connections += 1
                if stream.response_id:
                    ask = {"type": "resume", "response_id": stream.response_id, "starting_after": stream.last}
                else:
                    body = chat_body(MODEL, "A story, please.", tokens, ignore_eos=True)
                    ask = {"type": "request", "request_id": "1", "body": body | {"on_disconnect": "continue"}}
                await socket.send_str(orjson.dumps(ask).decode())
                await _hear(socket, stream)
        except aiohttp.ClientError:
            await asyncio.sleep(0.05 + random.random() / 10)


async def _hear(socket: aiohttp.ClientWebSocketResponse, stream: Stream) -> None:
    async for frame in socket:
        message = orjson.loads(frame.data)
        match message["type"]:
            case "accepted":
                stream.response_id = message["response_id"]
            case "delta":
                stream.hear(message["first_sequence"], message["sequence_number"])
            case "terminal":
                stream.has_ended = True
                return
            case "error":
                if not message["resumable"]:
                    stream.wrong = str(message)
                await asyncio.sleep((message.get("retry_after_ms") or 0) / 1_000)
                return


@asynccontextmanager
async def _running(stack: Stack, count: int, tokens: int, first: int | None = None) -> AsyncIterator[list[Stream]]:
    """Streams that have begun, accepted by one gateway or by all in turn; they are left with the block."""
    urls = _gateways(stack)
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        streams = [Stream(_from(urls, number % len(urls) if first is None else first)) for number in range(count)]
        clients = [asyncio.create_task(_follow(session, stream, tokens)) for stream in streams]
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.gather(*(stream.begun.wait() for stream in streams))
            yield streams
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _come_back(stack: Stack, seconds: float, rng: random.Random) -> tuple[list[float], int]:
    """Milliseconds from the request to the first replayed byte, at the gateways that do not own what is asked for."""
    others = _gateways(stack)[1:]
    waits_ms: list[float] = []
    failed = 0
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    tokens = int((seconds + 60) * TOKENS_PER_S)
    async with (
        _running(stack, 100, tokens, first=0) as streams,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session,
    ):

        async def come(delay_s: float, stream: Stream, url: str) -> None:
            nonlocal failed
            await asyncio.sleep(delay_s)
            path = f"{url}/v1/chat/completions/{stream.response_id}"
            query = {"stream": "true", "starting_after": str(stream.last - BEHIND)}
            began_s = monotonic()
            async with session.get(path, params=query) as answer:
                if answer.status != 200 or not await answer.content.readany():
                    failed += 1
                    return
                waits_ms.append((monotonic() - began_s) * 1_000)

        count = int(seconds * COME_BACK_PER_S)
        moments = [(slot + rng.random()) / COME_BACK_PER_S for slot in range(count)]
        async with asyncio.timeout(seconds + END_TIMEOUT_S):
            await asyncio.gather(*(come(at_s, rng.choice(streams), rng.choice(others)) for at_s in moments))
    return waits_ms, failed


@asynccontextmanager
async def _opened(stack: Stack, count: int) -> AsyncIterator[list[aiohttp.ClientWebSocketResponse]]:
    """So many sockets at another gateway than the first."""
    url = f"{_gateways(stack)[1]}/v1/stream"
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        opened = await asyncio.gather(*(session.ws_connect(url, compress=0, max_msg_size=0) for _ in range(count)))
        yield opened
        for socket in opened:
            await socket.close()


async def _catch_up(streams: Sequence[Stream], opened: Sequence[aiohttp.ClientWebSocketResponse]) -> list[float]:
    """Milliseconds until each of these has what was there when all came back."""
    began_s = monotonic()

    async def catch_up(stream: Stream, socket: aiohttp.ClientWebSocketResponse) -> float:
        until = stream.last
        ask = {"type": "resume", "response_id": stream.response_id, "starting_after": until - BEHIND}
        await socket.send_str(orjson.dumps(ask).decode())
        async for frame in socket:
            message = orjson.loads(frame.data)
            if message["type"] == "delta" and message["sequence_number"] >= until:
                return (monotonic() - began_s) * 1_000
        return float("inf")

    async with asyncio.timeout(END_TIMEOUT_S):
        return await asyncio.gather(*map(catch_up, streams, opened))


async def _come_back_at_once(stack: Stack, sockets: int) -> list[float]:
    async with _running(stack, sockets, 60 * TOKENS_PER_S, first=0) as streams, _opened(stack, sockets) as opened:
        return await _catch_up(streams, opened)


async def _print_at_once(stack: Stack, sockets: int) -> None:
    """Three times; beside each process' CPU time what it takes in as long without anybody who comes back."""
    pids = stack_pids(stack)

    def sampled_ms() -> dict[str, float]:
        of_stack = {name: sample.cpu_s * 1_000 for name, sample in sample_processes(pids).items()}
        return of_stack | {"clients": process_time() * 1_000}

    async with _running(stack, sockets, 60 * TOKENS_PER_S, first=0) as streams:
        for _ in range(3):
            idle_ms, idle_s = sampled_ms(), monotonic()
            await asyncio.sleep(2)
            usual, usual_s = sampled_ms(), monotonic() - idle_s
            async with _opened(stack, sockets) as opened:
                before_ms, began_s = sampled_ms(), monotonic()
                waits_ms = await _catch_up(streams, opened)
                after_ms, share = sampled_ms(), (monotonic() - began_s) / usual_s
            print(f"all caught up after {max(waits_ms):,.0f} ms, half of them after {percentile(waits_ms, 0.5):,.0f}")
            for name, value_ms in after_ms.items():
                usual_ms = (usual[name] - idle_ms[name]) * share
                print(f"  {name}: {value_ms - before_ms[name]:,.0f} ms of CPU time, usually {usual_ms:,.0f}")


async def _lose_a_gateway(stack: Stack, count: int, number: int) -> list[Stream]:
    """Streams at all three gateways, to their ends; one of these is killed, or stopped in order, and started again."""
    async with _running(stack, count, 30 * TOKENS_PER_S) as streams, asyncio.timeout(END_TIMEOUT_S):
        for stream in streams:
            stream.largest_gap_s = 0.0
        await asyncio.to_thread(stack.kill, f"gateway-{GATEWAYS}", number)
        while not all(stream.has_ended or stream.wrong for stream in streams):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return streams


def _lost(streams: Sequence[Stream]) -> int:
    return sum(bool(stream.wrong) or stream.last != 30 * TOKENS_PER_S for stream in streams)


def run(*, short: bool, seed: int) -> Report:
    seconds, sockets, count = (10.0, 100, 60) if short else (60.0, 500, 300)
    rng = random.Random(seed)
    report = Report("resume", {"gateways": GATEWAYS, "sockets": sockets, "streams": count, "seed": seed})
    with running_stack(simulated(ENGINE, max_running=sockets + 64, gateways=GATEWAYS)) as stack:
        waits_ms, failed = asyncio.run(_come_back(stack, seconds, rng))
        at_once_ms = asyncio.run(_come_back_at_once(stack, sockets))
        killed = asyncio.run(_lose_a_gateway(stack, count, signal.SIGKILL))
        stack.wait_ready(READY_TIMEOUT_S)
        drained = asyncio.run(_lose_a_gateway(stack, count, signal.SIGTERM))
    report.add("at another gateway: first replayed byte p50", percentile(waits_ms, 0.5), "ms")
    report.add("at another gateway: first replayed byte p99", percentile(waits_ms, 0.99), "ms", 50)
    report.add_lost("at another gateway: refused", failed)
    report.add("all at once: caught up p50", percentile(at_once_ms, 0.5), "ms")
    report.add("all at once: all caught up", max(at_once_ms), "ms", 300)
    for what, streams, goal_s in (("killed", killed, 4.0), ("drained and started again", drained, 0.5)):
        moved = [stream.largest_gap_s for stream in streams if stream.connections > 1]
        stayed = [stream.largest_gap_s for stream in streams if stream.connections == 1]
        report.add(f"a gateway is {what}: gap of its streams p99", percentile(moved, 0.99), "s", goal_s)
        report.add(f"a gateway is {what}: gap of the others p99", percentile(stayed, 0.99), "s", 0.5)
        report.add_lost(f"a gateway is {what}: streams lost or doubled", _lost(streams))
        wrong = [stream.wrong for stream in streams if stream.wrong]
        report.notes += [f"{what}: {why[:200]}" for why in wrong[:3]]
    return report


if __name__ == "__main__":
    count = int(sys.argv[1]) if sys.argv[1:] else 500
    with running_stack(simulated(ENGINE, max_running=count + 64, gateways=GATEWAYS)) as running:
        asyncio.run(_print_at_once(running, count))
