"""A reader as billing has it: a process that is started when it is asked, given newer snapshots, and killed when it
does not answer in time.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Lock

import structlog

from billing_jobs.clickhouse.access import (
    HOURS_DATABASE,
    HOURS_TABLE,
    OF_TENANTS,
    OF_THE_OPERATOR,
    TABLES_DATABASE,
    Layout,
    Limits,
    reach_of,
    views_of_tenants,
)
from billing_jobs.clickhouse.asks import Answer, Ask
from billing_jobs.clickhouse.channel import ChannelClosed, receive, send
from billing_jobs.clickhouse.errors import ClickHouseFailed, Refused
from billing_jobs.clickhouse.snapshots import Snapshots
from billing_jobs.embedded import EMBEDDED_DATABASE
from billing_jobs.rollups.views import HOURS, usage_views

OPEN_S = 30.0
"""For a process to start and an engine to open a snapshot; a tenth of a second and one, on a machine with room."""
AGAIN_S = 2.0
"""After a start that failed; until then nobody tries."""
LATE_S = 1.0
"""So much later than the engine should have ended a statement by itself, its process is killed."""
_KEPT_VARIABLES = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
"""Of the environment. The others may be secrets."""

_log = structlog.get_logger()


class ReadingProcess:
    """One statement at a time; used from one thread, but for `cancel`. It reads what was there `max_age_s` ago, or
    later: a new snapshot is taken where `writes`, how often the tables were written, has changed since the last one.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        writes: Callable[[], int],
        limits: Limits,
        *,
        max_age_s: float,
        server_memory_bytes: int,
        clock_s: Callable[[], float] = time.monotonic,
        on_kill: Callable[[], None] = lambda: None,
        gated: bool = True,
    ) -> None:
        """`on_kill` is called where a statement did not end in time. Not `gated`, only the engine's own access control
        holds: to see that it does.
        """
        self._source = snapshots
        self._writes = writes
        self._limits = limits
        self._max_age_s = max_age_s
        self._server_memory_bytes = server_memory_bytes
        self._clock_s = clock_s
        self._on_kill = on_kill
        self._views = {OF_TENANTS.views: _of_tenants(), OF_THE_OPERATOR.views: _of_the_operator()}
        self._gated = gated
        self._turn = Lock()
        self._running: Ask | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._opened: Layout | None = None
        self._opened_at_s = 0.0
        self._failed_at_s = -AGAIN_S
        self._opened_at_writes = 0
        self._snapshots: list[Path] = []
        """Given to the process, and not known to be removed by it: the newest last."""

    def ask(self, ask: Ask) -> Answer:
        """Raises ClickHouseFailed, and StoreError where there is no snapshot to be had."""
        self._reap()
        with self._turn:
            self._running = ask
        try:
            return self._answer(ask)
        finally:
            with self._turn:
                self._running = None

    def cancel(self, ask: Ask) -> None:
        """From any thread: nobody waits for its answer any more. What runs it is killed, if it runs."""
        with self._turn:
            process = self._process
            if self._running is ask and process is not None:
                process.kill()

    def _answer(self, ask: Ask) -> Answer:
        try:
            channel = self._ready_for(ask.tenant)
        except (TimeoutError, ChannelClosed) as error:
            self._failed_at_s = self._clock_s()
            _log.warning("reader_not_started", exit_code=self._end(), error=f"{type(error).__name__}: {error}")
            raise Refused("NETWORK_ERROR", "no reader could be started") from None
        try:
            send(channel, ask.told())
            header, body = receive(channel, self._limits.time_s + LATE_S, self._limits.result_bytes)
        except TimeoutError:
            self._end()
            self._on_kill()
            raise Refused(
                "TIMEOUT_EXCEEDED", f"Timeout exceeded: the statement was ended after {self._limits.time_s:g} s"
            ) from None
        except ChannelClosed:
            _log.warning("reader_died", exit_code=self._end(), tenant=ask.tenant)
            raise Refused("QUERY_WAS_CANCELLED", "the statement ended the process that ran it") from None
        if "error" in header:
            raise ClickHouseFailed(**header["error"])
        return Answer(body, header["format"], header["read_rows"], header["read_bytes"], header["elapsed_ns"])

    def _reap(self) -> None:
        """One that had nothing to do for a while has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._end()

    def _ready_for(self, tenant: str) -> socket.socket:
        layout = reach_of(tenant).layout
        if self._channel is None:
            if self._clock_s() - self._failed_at_s < AGAIN_S:
                raise Refused("NETWORK_ERROR", "no reader could be started a moment ago")
            self._start()
        assert self._channel is not None
        now_s, writes = self._clock_s(), self._writes()
        is_old = writes != self._opened_at_writes and now_s - self._opened_at_s >= self._max_age_s
        if self._opened != layout or is_old:
            self._opened = None
            self._snapshots.append(self._source.take(layout))
            send(self._channel, {"snapshot": str(self._snapshots[-1]), "tenant": tenant})
            header, _ = receive(self._channel, OPEN_S)
            if "error" in header:
                self._failed_at_s = now_s
                self._end()
                raise ClickHouseFailed(**header["error"])
            self._opened, self._opened_at_s, self._opened_at_writes = layout, now_s, writes
            self._snapshots = self._snapshots[-1:]
        return self._channel

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "billing_jobs.clickhouse.reader", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
            )  # fmt: skip
        self._channel = ours
        told = {"limits": asdict(self._limits), "server_memory_bytes": self._server_memory_bytes, "gated": self._gated}
        send(ours, {**told, "views": self._views, "folder": str(self._source.folder)})

    def _end(self) -> int | None:
        """Kills it, whatever it does."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        snapshots, self._snapshots = self._snapshots, []
        self._opened = None
        if channel is not None:
            channel.close()
        code = None
        if process is not None:
            process.kill()
            code = process.wait()
        for snapshot in snapshots:
            shutil.rmtree(snapshot, ignore_errors=True)
        return code

    def close(self) -> None:
        self._end()


# Of this program, as it was when billing started: the tables are of its schema.


def _of_tenants() -> str:
    tables, views = f"{TABLES_DATABASE}.", f"{EMBEDDED_DATABASE}."
    return "\n".join((
        f"CREATE DATABASE {EMBEDDED_DATABASE} ENGINE = Memory;",
        _hours(tables),
        views_of_tenants(tables, views, "CREATE VIEW", HOURS_TABLE),
    ))  # fmt: skip


def _of_the_operator() -> str:
    tables = f"{EMBEDDED_DATABASE}."
    return "\n".join((_hours(tables), usage_views(tables, tables, "CREATE VIEW", HOURS_TABLE)))


def _hours(tables: str) -> str:
    return "\n".join((
        f"CREATE DATABASE {HOURS_DATABASE} ENGINE = Memory;",
        f"CREATE TABLE {HOURS_TABLE} (hour DateTime('UTC'), generation UInt64, is_open Bool, kept UInt64)"
        " ENGINE = Memory;",
        f"INSERT INTO {HOURS_TABLE} {HOURS.format(tables=tables)};",
    ))  # fmt: skip
