"""The worker's scheduler before a real vLLM whose batch or memory is full, without log and claims' store.

What `one_worker.py` measures in virtual time: how much of the batch is in use while work waits, beside batches of which
each ends before the next begins; and how often the engine has to take somebody's memory back, where requests are let
in by count, and by memory. Batch, blocks and preemptions are vLLM's own, as it tells of them.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from benchmarks.figures import Report, load, load_note
from benchmarks.one_worker import Policy, StaticBatches
from benchmarks.stacks import MODEL_PATH
from gpu_consumers.core.capacity import Capacity, MemoryPolicy
from gpu_consumers.core.fair_queue import Queued
from gpu_consumers.core.held import Held
from gpu_consumers.core.scheduler import Given, Scheduler, Sizes
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.request import Lane, Sampling
from streams.settings import WorkerSettings

BATCH = 32
SIZES = Sizes(BATCH, int(WorkerSettings().headroom * BATCH))
BLOCKS, BLOCK_TOKENS = 320, 32
ENGINE_ARGS: dict[str, bool | int | float | str] = {
    "max_model_len": 2_048, "block_size": BLOCK_TOKENS, "num_gpu_blocks_override": BLOCKS
}  # fmt: skip
TENANTS = 8
SHORT, LONG = (10, 40), (300, 500)
"""Tokens of prompts: of the short ones the memory holds more than a batch, of the long ones two thirds of one."""
OUTPUTS, MOST_OUTPUT = (20, 200), 256
"""Tokens of answers, drawn, and the bound that their requests name."""
BY_MEMORY, BY_COUNT, STATIC = "by memory", "by count", "static batches"
POLICIES: dict[str, Callable[[], Policy]] = {
    BY_MEMORY: lambda: Scheduler(SIZES),
    BY_COUNT: lambda: Scheduler(SIZES, memory=Capacity(MemoryPolicy(foresight=0))),
    STATIC: lambda: StaticBatches(BATCH),
}
END_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Job:
    """`output`: the engine alone is told after how many tokens its answer ends."""

    tenant_id: str
    prompt: list[int]
    output: int


def jobs(rng: random.Random, count: int, prompt_tokens: tuple[int, int]) -> list[Job]:
    return [
        Job(
            f"t{number % TENANTS}", rng.choices(range(20, 2_000), k=rng.randint(*prompt_tokens)), rng.randint(*OUTPUTS)
        )
        for number in range(count)
    ]  # fmt: skip


@dataclass(slots=True)
class Seen:
    """`running`: how many of the batch were in use, step by step, from the first answer's end until nobody waits."""

    running: list[int] = field(default_factory=list)
    preemptions: int = 0
    answered: int = 0
    tokens: int = 0
    failed: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def used(self) -> float:
        return sum(self.running) / max(len(self.running), 1) / BATCH


class _Backlog:
    """Jobs that all wait, until the last one is answered."""

    def __init__(self, engine: VllmEngine, policy: Policy, waiting: Sequence[Job], tag: str) -> None:
        self._engine, self._policy = engine, policy
        self._held = Held()
        self._jobs = {f"{tag}-{number}": job for number, job in enumerate(waiting)}
        self._live: dict[str, tuple[Given, int, int]] = {}
        """What has a slot, how many tokens it has, and of how many the policy is to be told."""
        self._untaken = len(waiting)
        self._began_s = monotonic()
        self.over = asyncio.Event()
        self.seen = Seen(preemptions=-engine.stats().preemptions)
        self._policy.engine_tells(engine.stats(), self._now_ms)
        for name, job in self._jobs.items():
            tokens = len(job.prompt) + MOST_OUTPUT
            self._policy.add(
                Queued(name, Lane.STANDARD, tokens, self._now_ms, 1, job.tenant_id, len(job.prompt), MOST_OUTPUT)
            )
        self._fill()

    @property
    def _now_ms(self) -> int:
        return int(monotonic() * 1_000)

    def _fill(self) -> None:
        while (given := self._policy.take(self._held, self._now_ms)) is not None:
            item = given.item
            job = self._jobs[item.response_id]
            self._untaken -= 1
            self._held.add(item.lane, item.tenant_id, 1, on_floor=given.on_floor)
            self._held.silent[item.lane] += 1
            self._live[item.response_id] = given, 0, given.told_beyond
            sampling = Sampling(temperature=0, ignore_eos=True)
            self._engine.submit(EngineRequest(item.response_id, job.prompt, sampling, job.output, 1, item.tenant_id))

    def step(self, deltas: Sequence[EngineDelta]) -> None:
        running = self._engine.stats().running
        if self._untaken and self.seen.answered:
            self.seen.running.append(running)
        for delta in deltas:
            self._take(delta)
        self._policy.engine_tells(self._engine.stats(), self._now_ms)
        self._fill()
        if not self._live and not self._untaken:
            self.seen.preemptions += self._engine.stats().preemptions
            self.seen.took_s = monotonic() - self._began_s
            self.over.set()

    def _take(self, delta: EngineDelta) -> None:
        name = delta.request_id
        given, output, told_beyond = self._live[name]
        item = given.item
        self._held.silent[item.lane] -= not output
        output += len(delta.token_ids)
        self.seen.tokens += len(delta.token_ids)
        if output > told_beyond:
            told_beyond = self._policy.grown(item.lane, name, output)
        self._live[name] = given, output, told_beyond
        if delta.error is not None:
            self.seen.failed.append(delta.error)
        if delta.finish or delta.error is not None:
            del self._live[name]
            self.seen.answered += bool(delta.finish)
            self._held.add(item.lane, item.tenant_id, -1, on_floor=given.on_floor)
            self._policy.left(item.lane, name, output)


class OneVllm:
    """Answers one backlog after the other."""

    def __init__(self) -> None:
        self._engine = VllmEngine(str(MODEL_PATH), ENGINE_ARGS, BATCH)
        self._backlog: _Backlog | None = None
        self._died: EngineDied | None = None
        self._number = 0

    async def start(self) -> None:
        await self._engine.start(self._on_step, self._on_died)

    async def close(self) -> None:
        await self._engine.close()

    def _on_step(self, deltas: list[EngineDelta]) -> None:
        assert self._backlog is not None
        self._backlog.step(deltas)

    def _on_died(self, death: EngineDied) -> None:
        self._died = death
        if self._backlog is not None:
            self._backlog.over.set()

    async def answer(self, policy: Policy, waiting: Sequence[Job]) -> Seen:
        self._number += 1
        self._backlog = _Backlog(self._engine, policy, waiting, str(self._number))
        async with asyncio.timeout(END_TIMEOUT_S):
            await self._backlog.over.wait()
        if self._died is not None:
            raise self._died
        return self._backlog.seen


async def _measure(report: Report, count: int, seed: int) -> None:
    rng = random.Random(seed)
    one = OneVllm()
    await one.start()
    try:
        await one.answer(POLICIES[BY_COUNT](), jobs(rng, BATCH, SHORT))  # warms it up
        short, long = jobs(rng, count, SHORT), jobs(rng, count, LONG)
        for name in (BY_MEMORY, STATIC):
            seen = await one.answer(POLICIES[name](), short)
            goal = 0.7 if name == BY_MEMORY else None
            spread = 0.1 if name == BY_MEMORY else None
            report.add(f"{name}: slots in use under backlog", seen.used, "ratio", goal, at_most=False, spread=spread)
            report.add(f"{name}: short prompts, tokens", seen.tokens / seen.took_s, "tokens/s")
            report.add_lost(f"{name}: short prompts, not answered", count - seen.answered)
        for name in (BY_MEMORY, BY_COUNT):
            seen = await one.answer(POLICIES[name](), long)
            what = f"{name}: more prompts than the memory holds"
            report.add(f"{what}, preemptions", seen.preemptions, "preemptions", 0 if name == BY_MEMORY else None)
            report.add(f"{what}, slots in use", seen.used, "ratio")
            report.add(f"{what}, tokens", seen.tokens / seen.took_s, "tokens/s")
            report.add_lost(f"{what}, not answered", count - seen.answered)
    finally:
        await one.close()


def run(*, short: bool, seed: int) -> Report:
    count = 3 * BATCH if short else 6 * BATCH
    setting = {"model": MODEL_PATH.name, "batch": BATCH, "kv_blocks": BLOCKS, "block_tokens": BLOCK_TOKENS}
    report = Report("one_vllm", {**setting, "answers": count, "seed": seed})
    load_before = load()
    asyncio.run(_measure(report, count, seed))
    report.notes.append(load_note(load_before))
    return report
