"""Work that nobody waits for."""

import asyncio
from collections.abc import Awaitable

import structlog

_log = structlog.get_logger()


class Background:
    """Keeps tasks from being collected; logs what they fail with."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_task_failed", exc_info=error)

    async def settle(self, timeout_s: float) -> None:
        """Waits for what runs now."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
