"""Results of a batch's lines that wait to be written."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import Final

from streams.clocks import monotonic_ms

SAVED_LINES: Final = 256
SAVED_BYTES: Final = 4_194_304
SAVED_AFTER_MS: Final = 500
FULL_BYTES: Final = 16_777_216
"""Of results that wait to be written; no more are read meanwhile."""
WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Arrived:
    custom_id: str
    value: bytes


class Arrivals:
    """By line, the first that came of it."""

    def __init__(self) -> None:
        self._waiting: dict[int, Arrived] = {}
        self._size_bytes = 0
        self._since_ms = 0
        self._has_come = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._waiting)

    async def room(self) -> None:
        await self._has_room.wait()

    def close(self) -> None:
        """Nobody waits for room any more."""
        self._has_room.set()

    def put(self, line: int, arrived: Arrived) -> None:
        if line in self._waiting:
            return
        if not self._waiting:
            self._since_ms = monotonic_ms()
        self._waiting[line] = arrived
        self._count(len(arrived.value))
        self._has_come.set()

    def _count(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if self._size_bytes < FULL_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()

    def is_due(self, in_flight: int) -> bool:
        """All that is on its way has arrived, or enough of it, or the first of it long ago."""
        return (
            len(self._waiting) >= min(SAVED_LINES, in_flight)
            or self._size_bytes >= SAVED_BYTES
            or monotonic_ms() - self._since_ms >= SAVED_AFTER_MS
        )

    def first(self) -> dict[int, Arrived]:
        """Those that are saved next, in the order in which they came: one, or as many as have so many bytes together.
        What is told of them may take five times that, where vectors become numbers.
        """
        sizes = accumulate(len(each.value) for each in self._waiting.values())
        fitting = sum(1 for _ in takewhile(SAVED_BYTES.__ge__, sizes))
        return dict(islice(self._waiting.items(), max(1, fitting)))

    def written(self, arrived: Mapping[int, Arrived]) -> None:
        for line, each in arrived.items():
            if self._waiting.get(line) is each:
                self._drop(line)
        self._since_ms = monotonic_ms()

    def keep(self, is_awaited: Callable[[int], bool]) -> None:
        """And nothing else."""
        for line in [line for line in self._waiting if not is_awaited(line)]:
            self._drop(line)

    def _drop(self, line: int) -> None:
        self._count(-len(self._waiting.pop(line).value))

    async def wait(self) -> None:
        """For one more, a moment."""
        self._has_come.clear()
        try:
            async with asyncio.timeout(SAVED_AFTER_MS / 1_000 / 10 if self._waiting else WAIT_S):
                await self._has_come.wait()
        except TimeoutError:
            return
