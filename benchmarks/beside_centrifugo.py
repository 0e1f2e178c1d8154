"""Fan-out beside Centrifugo: as many messages a second to as many WebSockets, each stream with a viewer of its own.

First the whole pipeline of Sluice delivers what its engine makes. Then a publisher hands Centrifugo as many messages a
second, of the same fields, through its HTTP API. Where Centrifugo cannot be installed, Sluice is measured alone.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from time import monotonic, process_time, time

import aiohttp
import orjson

from benchmarks import fan_out
from benchmarks.centrifugo_publisher import channel
from benchmarks.clients import Meter
from benchmarks.environments import NotInstalled
from benchmarks.figures import Report, percentile, sample_processes
from benchmarks.peer_servers import CENTRIFUGO, Peer, centrifugo
from benchmarks.stacks import process_group

SUBSCRIBE_TIMEOUT_S = 60.0
SETTLE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Viewed:
    """For how long was counted, and the CPU time that it took, by process."""

    took_s: float
    cpu_s: dict[str, float]


def run(*, short: bool, seed: int) -> Report:
    streams, seconds = (200, 10.0) if short else (1_000, 60.0)
    setting = {"streams": streams, "seconds": seconds, "seed": seed, "Centrifugo": CENTRIFUGO[1]}
    report = Report("beside_centrifugo", setting)
    ours = fan_out.measure(streams, seconds, 3_000, SETTLE_S, seed)
    messages_per_s, tokens = ours.value("messages delivered"), ours.value("tokens per message")
    report.add("Sluice: messages delivered", messages_per_s, "messages/s")
    report.add("Sluice: delivered / offered", ours.value("delivered / offered"), "ratio")
    for rank in ("p50", "p99"):
        report.add(f"Sluice: made to client, {rank}", ours.value(f"worker to client {rank}"), "ms")
    prefix = "CPU per token: "
    cpu_us = {
        figure.name.removeprefix(prefix): figure.value * tokens
        for figure in ours.figures
        if figure.name.startswith(prefix) and figure.unit == "µs"
    }
    _add_costs(report, "Sluice", cpu_us)
    try:
        with centrifugo() as peer:
            _measure(report, peer, streams, seconds, messages_per_s, round(tokens))
    except NotInstalled as why:
        report.notes.append(f"Centrifugo could not be installed: {why}")
    return report


def _add_costs(report: Report, name: str, cpu_us: dict[str, float]) -> None:
    """By process; the clients' own apart."""
    servers_us = sum(cost_us for process, cost_us in cpu_us.items() if process != "clients")
    report.add(f"{name}: CPU per message of all servers", servers_us, "µs")
    for process, cost_us in cpu_us.items():
        report.add(f"{name}: CPU per message of {process}", cost_us, "µs")


async def _view(peer: Peer, streams: int, seconds: float, publisher_command: list[str], meter: Meter) -> _Viewed:
    """Subscribes all viewers, then has the publisher run, and counts for a while."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:
        subscribed = asyncio.Semaphore(0)
        viewers = [group.create_task(_follow(session, peer.url, n, meter, subscribed)) for n in range(streams)]
        async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
            for _ in viewers:
                await subscribed.acquire()
        with process_group(publisher_command, os.environ | {"CENTRIFUGO_KEY": peer.key}) as publisher:
            await asyncio.sleep(SETTLE_S)
            pids = {"Centrifugo": peer.pid, "publisher": publisher.pid}
            before, clients_before_s, meter.running = sample_processes(pids), process_time(), True
            began_s = monotonic()
            await asyncio.sleep(seconds)
            meter.running = False
            took_s, after = monotonic() - began_s, sample_processes(pids)
            cpu_s = {name: after[name].cpu_s - before[name].cpu_s for name in pids}
            cpu_s["clients"] = process_time() - clients_before_s
            for viewer in viewers:
                viewer.cancel()
    return _Viewed(took_s, cpu_s)


def _measure(report: Report, peer: Peer, streams: int, seconds: float, messages_per_s: float, tokens: int) -> None:
    meter = Meter()
    arguments = [peer.url, str(streams), str(messages_per_s), str(tokens)]
    command = [sys.executable, "-m", "benchmarks.centrifugo_publisher", *arguments]
    viewed = asyncio.run(_view(peer, streams, seconds, command, meter))
    delivered_per_s = meter.messages / viewed.took_s
    report.add("Centrifugo: messages delivered", delivered_per_s, "messages/s")
    report.add("Centrifugo: delivered / offered", delivered_per_s / messages_per_s, "ratio")
    for rank, share in (("p50", 0.5), ("p99", 0.99)):
        report.add(f"Centrifugo: made to client, {rank}", percentile(meter.ages_ms, share), "ms")
    _add_costs(report, "Centrifugo", {name: s * 1e6 / max(1, meter.messages) for name, s in viewed.cpu_s.items()})


async def _follow(
    session: aiohttp.ClientSession, url: str, stream: int, meter: Meter, subscribed: asyncio.Semaphore
) -> None:
    """One viewer of one channel, who checks that nothing is missing; until it is cancelled."""
    seen = 0
    async with session.ws_connect(f"{url}/connection/websocket", compress=0) as socket:
        await socket.send_str('{"id":1,"connect":{}}')
        await socket.send_str(orjson.dumps({"id": 2, "subscribe": {"channel": channel(stream)}}).decode())
        async for frame in socket:
            for line in frame.data.splitlines():
                message = orjson.loads(line)
                if not message:
                    await socket.send_str("{}")  # it asks whether anybody is there
                elif push := message.get("push"):
                    delta = push["pub"]["data"]
                    if delta["first_sequence"] != seen + 1:
                        raise RuntimeError(f"a gap after token {seen} of stream {stream}")
                    seen = delta["sequence_number"]
                    if meter.running:
                        meter.messages += 1
                        meter.ages_ms.append(time() * 1000 - delta["emitted_at_us"] / 1000)
                elif "error" in message:
                    raise RuntimeError(f"Centrifugo refused: {message}")
                elif message.get("id") == 2:
                    subscribed.release()
    raise RuntimeError(f"Centrifugo closed the socket of stream {stream}")
