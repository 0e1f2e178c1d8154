"""Rows that come at the same time are written in one transaction: each transaction costs a flush of the disk."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from streams.metadata.unavailable import MetadataUnavailable

MAX_WAITING: Final = 10_000

_Row = TypeVar("_Row")


class Together(Generic[_Row]):
    """While one batch is written the next one gathers: nobody waits for company. `size_of` and bounds are of a batch.

    `write` takes all rows of a batch or none.
    """

    def __init__(
        self, write: Callable[[Sequence[_Row]], Awaitable[None]], size_of: Callable[[_Row], int], *, max_rows: int,
        max_bytes: int,
    ) -> None:  # fmt: skip
        self._write = write
        self._size_of = size_of
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._waiting: list[tuple[_Row, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def add(self, row: _Row) -> None:
        """Returns once it is written. Raises what `write` raises, and MetadataUnavailable where too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise MetadataUnavailable(f"{len(self._waiting)} rows wait already")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, written))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._run())
        await written

    async def _run(self) -> None:
        try:
            while batch := self._next():
                error = await self._error_of([row for row, _ in batch])
                for _, written in batch:
                    if written.done():
                        continue  # Who waited has left.
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
        finally:
            self._writing = None

    def _next(self) -> list[tuple[_Row, asyncio.Future[None]]]:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        count = size_bytes = 0
        for row, _ in self._waiting[: self._max_rows]:
            size_bytes += self._size_of(row)
            if count and size_bytes > self._max_bytes:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _error_of(self, rows: Sequence[_Row]) -> Exception | None:
        try:
            await self._write(rows)
        except Exception as error:  # noqa: BLE001 - whoever added a row has it
            return error
        return None
