"""The database for asyncio processes: transactions on a few threads of their own, each with a deadline.

While it answers nobody, whoever comes hears so at once, instead of after that deadline, and one at a time tries.
"""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from streams.asking import telling
from streams.breaker import Breaker
from streams.clocks import monotonic_ms
from streams.metadata.engine import WRITES, engine_of
from streams.metadata.schema import check_schema
from streams.metadata.unavailable import GivenUp, MetadataUnavailable, NotAsked, NotAsMigrated, TooManyWait
from streams.settings import MetadataSettings

MAX_WAITING: Final = 1_000
"""Transactions that run or wait for a thread: each holds what it is about to write."""
CLOSE_TIMEOUT_S: Final = 5.0
CHECK_TIMEOUT_S: Final = 30.0
"""At start: the migrations are read as well."""
PROBE_GRACE_MS: Final = 1_000
_NOT_AS_MIGRATED: Final = "42"
"""Class of Postgres' errors: a table or a right is missing."""
_GIVEN_UP: Final = ("57014", "55P03", "40P01", "40001")
"""Postgres' codes: a statement's time was over, a lock's was, a deadlock, two that cannot both be done."""
_LACKS: Final = ("no such table", "no such column", "has no column")
"""As SQLite says it, whose code is that of any error in SQL."""

_log = structlog.get_logger()
_T = TypeVar("_T")


def _is_silence(error: BaseException) -> bool:
    return isinstance(error, MetadataUnavailable) and not isinstance(error, NotAsMigrated | GivenUp)


class Database:
    """All methods are called from one event loop; `work` runs on a thread, in one transaction."""

    def __init__(self, settings: MetadataSettings, data_dir: Path, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        self._engine = engine_of(settings, data_dir)
        self._threads = ThreadPoolExecutor(settings.connections, thread_name_prefix="metadata")
        # A writer waits for another one first, and then for its own statements.
        self._timeout_s = (settings.busy_timeout_ms + settings.statement_timeout_ms) / 1_000
        self._present = 0
        self._clock_ms = clock_ms
        # Gateways that have lost it together do not all try together.
        open_ms = settings.circuit_open_ms + random.randrange(settings.circuit_open_ms // 4 + 1)  # noqa: S311
        self._breaker = Breaker(settings.circuit_failures, open_ms, int(self._timeout_s * 1_000) + PROBE_GRACE_MS)

    @property
    def circuit_is_open(self) -> bool:
        """It answers nobody: who asks is refused, but for one at a time."""
        return self._breaker.is_open

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
        if self._present >= MAX_WAITING:
            raise TooManyWait(f"{self._present} transactions wait already")
        asked_at_ms = self._clock_ms()
        if not self._breaker.may_ask(asked_at_ms):
            raise NotAsked("it has answered nobody lately")
        with telling(self._breaker, asked_at_ms, self._clock_ms, _is_silence):
            return await self._within(timeout_s or self._timeout_s, self._threads.submit(self._do, work, writes))

    async def _within(self, timeout_s: float, begun: Future[_T]) -> _T:
        self._present += 1
        running = asyncio.wrap_future(begun)
        running.add_done_callback(self._left)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(running)
        except TimeoutError:
            # Where it waits for a thread, nobody waits behind it.
            begun.cancel()
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
            sqlstate = str(getattr(cause, "sqlstate", ""))
            if sqlstate in _GIVEN_UP:
                raise GivenUp(why) from None
            if sqlstate.startswith(_NOT_AS_MIGRATED) or any(said in str(cause) for said in _LACKS):
                _log.error("metadata_not_as_migrated", why=why, repeats=True)
                raise NotAsMigrated(why) from None
            if isinstance(error, ProgrammingError):
                raise
            raise MetadataUnavailable(why) from None

    async def close(self) -> None:
        """What is begun has a moment to end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        closing = asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT_S)
        self._engine.dispose()
