"""Several events at once, acknowledged in order.

Faust acknowledges by offset and commits across a gap of one (its `concurrency > 1` commits past unfinished work). So an
agent keeps `concurrency=1`, turns automatic acknowledgement off, and hands its events to `InOrder`, which acknowledges
an event only when it and all events before it in its partition are done.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

MAX_BYTES_IN_WORK = 67_108_864
"""Of records, per agent; what a stage makes of one is several times as large."""


class NotBegun(Exception):
    """Of an event that was not begun before the end, and is somebody else's to begin: as if it had not been read."""


@dataclass(slots=True)
class _Slot:
    acknowledge: Callable[[], None]
    done: bool = False


class InOrder:
    """At most `limit` events in work, and `limit_bytes` of them where one alone has no more. Used from one event loop.

    `on_failure` is called with the error of an event that could not be finished; nothing at or behind that event in its
    line is acknowledged ever after. Nor is what raises NotBegun, which is no failure.
    """

    def __init__(
        self, limit: int, on_failure: Callable[[Exception], None], *, limit_bytes: int = MAX_BYTES_IN_WORK
    ) -> None:
        self._free = asyncio.Semaphore(limit)
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._lighter = asyncio.Event()
        self._lines: dict[Hashable, deque[_Slot]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_failure = on_failure
        self._closed = False

    @property
    def in_work(self) -> int:
        return len(self._tasks)

    async def start(
        self,
        line: Hashable,
        work: Callable[[], Awaitable[None]],
        acknowledge: Callable[[], None],
        size_bytes: int = 0,
    ) -> None:
        """Waits for a free place, then starts `work`. Events of a line must be started in their order, one by one.

        After `close` it starts nothing.
        """
        await self._free.acquire()
        while self._bytes and self._bytes + size_bytes > self._limit_bytes:
            self._lighter.clear()
            await self._lighter.wait()
        if self._closed:
            self._free.release()
            return
        slot = _Slot(acknowledge)
        self._lines.setdefault(line, deque()).append(slot)
        self._bytes += size_bytes
        task = asyncio.create_task(self._run(line, slot, work, size_bytes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, line: Hashable, slot: _Slot, work: Callable[[], Awaitable[None]], size_bytes: int) -> None:
        try:
            await work()
        except NotBegun:
            pass
        except Exception as error:  # noqa: BLE001
            self._on_failure(error)
        else:
            slot.done = True
            self._acknowledge(line)
        finally:
            self._bytes -= size_bytes
            self._lighter.set()
            self._free.release()

    def _acknowledge(self, line: Hashable) -> None:
        slots = self._lines[line]
        while slots and slots[0].done:
            slots.popleft().acknowledge()
        if not slots:
            del self._lines[line]

    async def close(self, timeout_s: float) -> bool:
        """Starts nothing more and waits for what is in work. True when all of it finished in time."""
        self._closed = True
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not pending
