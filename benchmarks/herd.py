"""All clients lose their gateway and admission in one moment and come back: sockets that follow a stream, and who asks.

300 sockets follow streams at one gateway; a hundred requests of OpenAI's package are asked just when it goes. Gateway
and admission are killed together. Sockets come back as the chat page does (`connection.js`: later each time, never
before they are advised, by chance up to twice as late), the package by its own rule. Beside it, in the same run, all
sockets come back every second, as naive clients do. Nobody may lose anything.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import aiohttp
import httpx
import openai
import orjson

from benchmarks.figures import Report, percentile
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, running_stack
from deploy.local.runner import Stack, simulated

TOKENS_PER_S = 5
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 1_000 / TOKENS_PER_S, "step_ms": 1_000 / TOKENS_PER_S, "kv_blocks": 262_144,
}  # fmt: skip
PAGE_MS = (300, 1_000, 3_000, 5_000)
"""As in `connection.js`."""
EVERY_MS = 1_000
ASKED_WITHIN_S = 0.5
PACKAGE_RETRIES = 12
SLICE_S = 0.1
READY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 240.0

Wait = Callable[[int, int, random.Random], float]
"""Seconds before the next attempt, by how many there were and what was advised, in milliseconds."""


def as_the_page(attempts: int, advised_ms: int, rng: random.Random) -> float:
    wait_ms = max(advised_ms, PAGE_MS[min(attempts, len(PAGE_MS) - 1)])
    return (wait_ms + rng.random() * wait_ms) / 1_000


def every_second(_attempts: int, _advised_ms: int, _rng: random.Random) -> float:
    return EVERY_MS / 1_000


@dataclass(slots=True)
class Herd:
    """What the gateway saw of those who came back, and they of it. Times are monotonic seconds."""

    attempts_s: list[float] = field(default_factory=list)
    reached_s: list[float] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def most_in_a_slice(self) -> int:
        """Of those that reached a gateway: one that is away suffers from nobody."""
        return max(Counter(int(at_s / SLICE_S) for at_s in self.reached_s).values(), default=0)


@dataclass(slots=True)
class Follower:
    herd: Herd
    wait: Wait
    rng: random.Random
    tokens: int
    response_id: str = ""
    last: int = 0
    attempts: int = 0
    advised_ms: int = 0
    lost: bool = False
    has_ended: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, session: aiohttp.ClientSession, url: str) -> None:
        while not self.has_ended:
            if self.lost:
                self.herd.attempts_s.append(monotonic())
            with suppress(aiohttp.ClientError, ConnectionError):
                async with session.ws_connect(f"{url}/v1/stream", compress=0, max_msg_size=0) as socket:
                    if self.lost:
                        self.herd.reached_s.append(monotonic())
                    await socket.send_str(orjson.dumps(self._ask()).decode())
                    await self._hear(socket)
            if not self.has_ended:
                self.lost = True
                wait_s = self.wait(self.attempts, self.advised_ms, self.rng)
                self.attempts, self.advised_ms = self.attempts + 1, 0
                await asyncio.sleep(wait_s)

    def _ask(self) -> dict[str, object]:
        if self.response_id:
            return {"type": "resume", "response_id": self.response_id, "starting_after": self.last}
        body = chat_body(MODEL, "A story, please.", self.tokens, ignore_eos=True)
        return {"type": "request", "request_id": "1", "body": body | {"on_disconnect": "continue"}}

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            message = orjson.loads(frame.data)
            match message["type"]:
                case "accepted":
                    self.response_id = message["response_id"]
                case "delta":
                    self._take(message)
                case "terminal":
                    self.has_ended = True
                    if message["code"] != "completed" or self.last != self.tokens:
                        self.herd.wrong.append(f"{message['code']} after {self.last} tokens")
                    return
                case "error" | "closing":
                    self.advised_ms = max(self.advised_ms, message.get("retry_after_ms") or 0)
                    if message["type"] == "error":
                        return

    def _take(self, message: dict[str, int]) -> None:
        self.attempts = 0
        if message["first_sequence"] != self.last + 1:
            self.herd.wrong.append(f"token {message['first_sequence']} after {self.last}")
        self.last = message["sequence_number"]
        self.begun.set()
        if self.lost:
            self.lost = False
            self.herd.back_s.append(monotonic())


async def _ask_by_package(stack: Stack, herd: Herd, rng: random.Random) -> None:
    """Of OpenAI's package, with more retries than it has by itself: nobody gives up while a gateway starts."""
    await asyncio.sleep(rng.random() * ASKED_WITHIN_S)

    async def noted(_request: httpx.Request) -> None:
        herd.attempts_s.append(monotonic())

    async def heard(_response: httpx.Response) -> None:
        herd.reached_s.append(monotonic())

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [noted], "response": [heard]}
    async with httpx.AsyncClient(trust_env=False, event_hooks=hooks, timeout=60) as client:
        api = openai.AsyncOpenAI(
            api_key=stack.api_key(), base_url=f"{stack.gateway_url}/v1", max_retries=PACKAGE_RETRIES, http_client=client
        )
        messages = [{"role": "user", "content": "What is there?"}]
        try:
            answer = await api.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=5, extra_body={"ignore_eos": True}  # type: ignore[arg-type]
            )  # fmt: skip
        except openai.APIError as error:
            herd.wrong.append(f"{type(error).__name__}: {error}"[:200])
        else:
            herd.back_s.append(monotonic())
            if answer.usage is None or answer.usage.completion_tokens != 5:
                herd.wrong.append("an answer without its tokens")


async def _lose_all(stack: Stack, sockets: int, asking: int, wait: Wait, tokens: int, seed: int) -> tuple[Herd, float]:
    """The herd, and when it lost its gateway."""
    herd, rng = Herd(), random.Random(seed)
    headers = {"Authorization": f"Bearer {stack.api_key()}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
        followers = [Follower(herd, wait, random.Random(rng.random()), tokens) for _ in range(sockets)]
        async with asyncio.TaskGroup() as group, asyncio.timeout(READY_TIMEOUT_S + END_TIMEOUT_S):
            for follower in followers:
                group.create_task(follower.follow(session, stack.gateway_url))
            await asyncio.gather(*(follower.begun.wait() for follower in followers))
            lost_s = monotonic()
            killing = [asyncio.to_thread(stack.kill, name) for name in ("gateway-1", "admission-1")]
            await asyncio.gather(*killing)
            for _ in range(asking):
                group.create_task(_ask_by_package(stack, herd, rng))
    return herd, lost_s


def _add(report: Report, name: str, herd: Herd, lost_s: float, clients: int) -> None:
    first_s = min(herd.reached_s, default=lost_s)
    report.add(f"{name}: the first reaches a gateway again after", first_s - lost_s, "s")
    report.add(f"{name}: attempts of each client", len(herd.attempts_s) / clients, "attempts")
    report.add(f"{name}: most that reach it in 100 ms", herd.most_in_a_slice(), "clients")
    for share, what in ((0.5, "half"), (0.99, "99 of 100")):
        report.add(f"{name}: {what} have text again after", percentile(herd.back_s, share) - lost_s, "s")
    report.add(f"{name}: all have, behind the first that reached it", max(herd.back_s) - first_s, "s")
    lost = len(herd.wrong) + clients - len(herd.back_s)
    report.add_lost(f"{name}: lost, doubled or given up", lost)
    report.notes += [f"{name}: {why}" for why, _ in Counter(herd.wrong).most_common(3)]
    report.notes.append(f"{name}: reached the gateway, in each 100 ms: {_slices(herd.reached_s, first_s)}")


def _slices(reached_s: Sequence[float], first_s: float, most: int = 40) -> str:
    counts = Counter(int((at_s - first_s) / SLICE_S) for at_s in reached_s)
    return " ".join(str(counts[number]) for number in range(min(max(counts, default=0) + 1, most)))


def run(*, short: bool, seed: int) -> Report:
    sockets, asking, seconds = (30, 10, 20) if short else (300, 100, 45)
    report = Report("herd", {"sockets": sockets, "requests": asking, "tokens/s": TOKENS_PER_S, "seed": seed})
    with running_stack(simulated(ENGINE, max_running=sockets + asking + 64)) as stack:
        for name, wait in (("every second", every_second), ("as advised", as_the_page)):
            arguments = (stack, sockets, asking, wait, seconds * TOKENS_PER_S, seed)
            herd, lost_s = asyncio.run(_lose_all(*arguments))
            _add(report, name, herd, lost_s, sockets + asking)
            stack.wait_ready(READY_TIMEOUT_S)
    most = "most that reach it in 100 ms"
    report.add_ratio(f"{most}, as advised / every second", f"as advised: {most}", f"every second: {most}", 0.5)
    return report
