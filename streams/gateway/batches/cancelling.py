"""Ends the lines of a batch that may be on the log, wherever they are: those that run, and those that wait for room.

`control` is heard by what runs, and remembered for minutes; a line may wait for hours in front of its quota. So
admission is told too, which keeps that the line is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from streams.blobs.port import BlobChanged, BlobMissing
from streams.gateway.batches.core import SENT_TOGETHER, Held, Next, Status
from streams.gateway.batches.line_log import LineLog
from streams.gateway.batches.lines import Line, custom_id_of
from streams.gateway.batches.source import Source

NAMED_TOGETHER: Final = 1_024


def on_the_log(held: Held) -> list[int]:
    """Lines that may be there and have not ended: of the last ones a crash may have kept that they were sent."""
    sent = min(held.batch.total, held.progress.sent_lines + SENT_TOGETHER)
    return [line for line in range(sent) if not held.progress.has_ended(line)]


class Cancelling:
    """Of one holder of a batch. What the one before did is done again, and changes nothing.

    All methods raise LogError, TimeoutError; what has failed may be done again.
    """

    def __init__(self, log: LineLog, clock_ms: Callable[[], int]) -> None:
        self._log = log
        self._clock_ms = clock_ms
        self._is_told_to_workers = False
        self._is_done = False

    def is_due(self, held: Held, following: Next) -> bool:
        """Of a batch that is cancelled: before anything is waited for, or told not to have run."""
        is_cancelled = held.batch.status is Status.CANCELLING and following in (Next.COLLECT, Next.SWEEP)
        return is_cancelled and not self._is_done

    async def cancel(self, held: Held, source: Source, keep: Callable[[], Awaitable[None]]) -> None:
        """Its results tell each line by its `custom_id`, which stands in the file: `source` begins there. `keep` is
        called now and then. Raises BlobsUnavailable, and what `keep` raises.
        """
        try:
            await self._tell_workers(held)
            left = {*on_the_log(held)}
            try:
                while left and (lines := await source.next(NAMED_TOGETHER, keep)):
                    named = await asyncio.to_thread(_named, lines, left)
                    await self._log.withdraw(held.batch, named, self._clock_ms())
                    left -= named.keys()
                    await keep()
            except (BlobMissing, BlobChanged):
                pass  # The file is gone, and with it their names. No reason to let them run.
            await self._log.withdraw(held.batch, dict.fromkeys(left, ""), self._clock_ms())
        finally:
            await source.close()
        self._is_done = True

    async def cancel_untold(self, held: Held) -> None:
        """Of a batch that has ended, whose lines nobody waits for any more."""
        if self._clock_ms() < held.batch.expires_at_ms and (lines := on_the_log(held)):
            await self._tell_workers(held)
            await self._log.withdraw(held.batch, dict.fromkeys(lines, ""), self._clock_ms())

    async def _tell_workers(self, held: Held) -> None:
        if not self._is_told_to_workers:
            sent = [line for line in on_the_log(held) if line < held.progress.sent_lines]
            await self._log.cancel(held.batch, sent, self._clock_ms())
            self._is_told_to_workers = True


def _named(lines: Sequence[Line], wanted: set[int]) -> dict[int, str]:
    """On a thread."""
    return {line.number: custom_id_of(line.raw) for line in lines if line.number in wanted}
