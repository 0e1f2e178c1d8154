"""A simulated engine for models that embed: vectors without weights, on the event loop's timers.

An input's vector is drawn from the hash of its tokens: the same for the same input, near to that of no other.
"""

import asyncio
import hashlib
import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest, EngineStats, OnDied, OnStep
from gpu_consumers.engines.vectors import NO_TEXT, Vectors, next_step
from streams.engine_args import SimulatedPoolingSettings

STEP_TOKENS: Final = 2_048
"""In one step there are no more, unless one input has them."""


@dataclass(order=True, slots=True)
class _Running:
    priority: int
    order: int
    inputs: list[list[int]] = field(compare=False)
    vectors: Vectors = field(compare=False)
    done: int = field(default=0, compare=False)


def drawn(token_ids: Sequence[int], dimensions: int, seed: int = 0) -> list[float]:
    """A vector of length 1, of every direction as likely."""
    key = hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=str(seed).encode()).digest()
    source = random.Random(key)  # noqa: S311 (vectors, not secrets)
    numbers = [source.gauss(0, 1) for _ in range(dimensions)]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


class SimulatedPoolingEngine:
    """Steps one after the other, the inputs of the most urgent request first. No task and no thread of its own."""

    def __init__(self, settings: SimulatedPoolingSettings, dimensions: int) -> None:
        self._settings = settings
        self._dimensions = dimensions
        self._starts = 0
        self._is_up = False
        self._submitted = 0
        self._embedded = 0
        self._requests: dict[str, _Running] = {}
        self._queue: list[tuple[_Running, str]] = []
        self._ready: list[EngineDelta] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def accepts_seed(self) -> bool:
        return True

    async def start(self, on_step: OnStep, on_died: OnDied) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        self._on_died = on_died
        if self._settings.start_ms:
            await asyncio.sleep(self._settings.start_ms / 1_000)
        self._starts += 1
        self._is_up = True

    def submit(self, request: EngineRequest) -> None:
        if not self._is_up:
            raise EngineDied("the engine is not running")
        request_id = request.request_id
        if request.input_ends:
            self._submitted += 1
            running = _Running(request.priority, self._submitted, request.inputs, Vectors(request))
            self._requests[request_id] = running
            heappush(self._queue, (running, request_id))
        else:
            self._ready.append(EngineDelta.failure(request_id, NO_TEXT))
        self._schedule()

    def abort(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._ready = [row for row in self._ready if row.request_id != request_id]

    async def probe(self) -> None:
        if not self._is_up:
            raise EngineDied("the engine is not running")

    def kill(self, why: str) -> None:
        if self._is_up:
            self._end()
            self._on_died(EngineDied(why))

    def stats(self) -> EngineStats:
        count = len(self._requests)
        running = min(count, self._settings.max_running)
        return EngineStats(running=running, waiting=count - running)

    async def close(self) -> None:
        self._end()

    def _end(self) -> None:
        self._is_up = False
        self._requests.clear()
        self._queue.clear()
        self._ready.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _schedule(self) -> None:
        """The next step, for as long as it takes; at once, where rows are ready."""
        if self._timer is not None or not (self._requests or self._ready):
            return
        batch = [] if self._ready else self._batch()
        tokens = sum(len(running.inputs[index]) for _, running, index in batch)
        duration_s = (self._settings.step_ms + tokens * self._settings.prompt_token_us / 1_000) / 1_000
        self._timer = self._loop.call_at(self._loop.time() + (duration_s if batch else 0), self._step, batch)

    def _batch(self) -> list[tuple[str, _Running, int]]:
        batch: list[tuple[str, _Running, int]] = []
        room = STEP_TOKENS
        while self._queue and room > 0 and len(batch) < self._settings.max_running:
            running, request_id = self._queue[0]
            if self._requests.get(request_id) is not running or running.done == len(running.inputs):
                heappop(self._queue)
                continue
            size = len(running.inputs[running.done])
            if batch and size > room:
                break
            batch.append((request_id, running, running.done))
            running.done += 1
            room -= size
        return batch

    def _step(self, batch: list[tuple[str, _Running, int]]) -> None:
        self._timer = None
        for request_id, running, index in batch:
            if self._requests.get(request_id) is not running:
                continue
            running.vectors.put(index, drawn(running.inputs[index], self._dimensions, self._settings.seed))
            self._embedded += 1
            if running.vectors.are_complete:
                del self._requests[request_id]
                self._ready += running.vectors.rows()
        if self._starts == 1 and 0 < self._settings.die_after_inputs <= self._embedded:
            self.kill(f"died after {self._embedded} inputs, as its settings say")
            return
        step, self._ready = next_step(self._ready)
        if step or batch:
            self._on_step(step)
        self._schedule()
