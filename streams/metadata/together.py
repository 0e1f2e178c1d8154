"""Rows that come at the same time are written in one transaction: each transaction costs a flush of the disk."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from streams.metadata.unavailable import MetadataUnavailable, TooManyWait

MAX_WAITING: Final = 10_000

_Row = TypeVar("_Row")
_Batch = dict[asyncio.Future[None], _Row]


class Together(Generic[_Row]):
    """While one batch is written the next one gathers: nobody waits for company. `size_of` and bounds are of a batch.

    `write` takes all rows of a batch or none. Where it raises MetadataUnavailable all who wait are told so at once,
    unless the database is not away but too many wait for it. After any other error the rows are tried in halves, down
    to single ones: it is of those alone that fail by themselves.
    """

    def __init__(
        self, write: Callable[[Sequence[_Row]], Awaitable[None]], size_of: Callable[[_Row], int], *, max_rows: int,
        max_bytes: int,
    ) -> None:  # fmt: skip
        self._write = write
        self._size_of = size_of
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._waiting: _Batch[_Row] = {}
        self._writing: asyncio.Task[None] | None = None

    async def add(self, row: _Row) -> None:
        """Returns once it is written. Raises what `write` raises, and TooManyWait.

        Cancelled before its turn it is not written, and afterwards this ends only when it is there or will not be.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyWait(f"{len(self._waiting)} rows wait already")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[written] = row
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._run())
        try:
            await asyncio.shield(written)
        except asyncio.CancelledError:
            if self._waiting.pop(written, None) is None:
                await asyncio.wait((written,))
            raise

    async def _run(self) -> None:
        apart: list[_Batch[_Row]] = []
        try:
            while batch := apart.pop() if apart else self._next():
                error = await self._error_of(list(batch.values()))
                is_away = isinstance(error, MetadataUnavailable)
                if error is not None and not is_away and len(batch) > 1:
                    # One of them may be what fails: the others, who may be anybody, go without it.
                    apart += _halves(batch)
                    continue
                if is_away and not isinstance(error, TooManyWait):
                    # Each would wait as long again, and most of them in vain.
                    for others in (*apart, self._waiting):
                        batch |= others
                    apart, self._waiting = [], {}
                for written in batch:
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
        finally:
            self._writing = None

    def _next(self) -> _Batch[_Row]:
        batch: _Batch[_Row] = {}
        size_bytes = 0
        for written, row in islice(self._waiting.items(), self._max_rows):
            size_bytes += self._size_of(row)
            if batch and size_bytes > self._max_bytes:
                break
            batch[written] = row
        for written in batch:
            del self._waiting[written]
        return batch

    async def _error_of(self, rows: Sequence[_Row]) -> Exception | None:
        try:
            await self._write(rows)
        except Exception as error:  # noqa: BLE001 - whoever added a row has it
            return error
        return None


def _halves(batch: _Batch[_Row]) -> list[_Batch[_Row]]:
    """The first one last."""
    rows = list(batch.items())
    middle = len(rows) // 2
    return [dict(rows[middle:]), dict(rows[:middle])]
