"""The database for asyncio processes: transactions on a few threads of their own, each with a deadline."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from streams.metadata.engine import WRITES, engine_of
from streams.metadata.schema import check_schema
from streams.metadata.unavailable import MetadataUnavailable, TooManyWait
from streams.settings import MetadataSettings

MAX_WAITING: Final = 1_000
"""Transactions that run or wait for a thread: each holds what it is about to write."""
CLOSE_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 30.0
"""At start: the migrations are read as well."""
_NOT_AS_MIGRATED: Final = "42"
"""Class of Postgres' errors: a table or a right is missing. It may come back, and until then other work goes on."""

_log = structlog.get_logger()
_T = TypeVar("_T")


class Database:
    """All methods are called from one event loop; `work` runs on a thread, in one transaction."""

    def __init__(self, settings: MetadataSettings, data_dir: Path) -> None:
        self._engine = engine_of(settings, data_dir)
        self._threads = ThreadPoolExecutor(settings.connections, thread_name_prefix="metadata")
        # A writer waits for another one first, and then for its own statements.
        self._timeout_s = (settings.busy_timeout_ms + settings.statement_timeout_ms) / 1_000
        self._present = 0

    async def read(self, work: Callable[[Connection], _T]) -> _T:
        """What `work` returns. Raises MetadataUnavailable, also where too many wait."""
        return await self._run(work, writes=False)

    async def write(self, work: Callable[[Connection], _T]) -> _T:
        """The same, committed to disk. Who is told that it is unavailable does not know whether it is done."""
        return await self._run(work, writes=True)

    async def check(self) -> None:
        """Raises SettingsError unless the tables are those of this release, and MetadataUnavailable."""
        await self._run(check_schema, writes=False, timeout_s=CHECK_TIMEOUT_S)

    async def _run(self, work: Callable[[Connection], _T], *, writes: bool, timeout_s: float | None = None) -> _T:
        timeout_s = timeout_s or self._timeout_s
        if self._present >= MAX_WAITING:
            raise TooManyWait(f"{self._present} transactions wait already")
        self._present += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, self._do, work, writes)
        running.add_done_callback(self._left)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(running)
        except TimeoutError:
            raise MetadataUnavailable(f"no answer within {timeout_s:g} s") from None

    def _left(self, running: asyncio.Future[_T]) -> None:
        """Also of what nobody waits for any more."""
        self._present -= 1
        if not running.cancelled():
            running.exception()

    def _do(self, work: Callable[[Connection], _T], writes: bool) -> _T:
        try:
            with self._engine.connect() as connection:
                connection = connection.execution_options(**{WRITES: writes})
                with connection.begin():
                    return work(connection)
        except (IntegrityError, DataError):
            raise  # Ours, whatever state the database is in.
        except (DBAPIError, PoolTimeoutError) as error:
            cause = getattr(error, "orig", None) or error
            why = f"{type(cause).__name__}: {str(cause)[:200]}"
            if isinstance(error, ProgrammingError):
                if not str(getattr(cause, "sqlstate", "")).startswith(_NOT_AS_MIGRATED):
                    raise
                _log.error("metadata_not_as_migrated", why=why, repeats=True)
            raise MetadataUnavailable(why) from None

    async def close(self) -> None:
        """What is begun has a moment to end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        closing = asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT_S)
        self._engine.dispose()
