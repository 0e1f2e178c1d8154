"""Connections to the database that the settings name: SQLite in the data folder, or Postgres."""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url

from streams.settings import MetadataSettings

FILE_NAME: Final = "metadata.sqlite"
WRITES: Final = "sluice_writes"
"""Execution option of a connection whose transaction writes."""
PROGRESS_STEPS: Final = 10_000
"""Of SQLite's virtual machine, between two looks at the deadline: about a millisecond."""
MAX_CONNECT_S: Final = 10
NOTICED: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
"""A server that is gone without a word, where no statement's deadline is held any more: its threads are free again."""


def address_of(settings: MetadataSettings, data_dir: Path) -> URL:
    """With the password, and the driver that is installed."""
    if not settings.url:
        return URL.create("sqlite", database=str(data_dir.absolute() / FILE_NAME))
    url = make_url(settings.url)
    if url.get_backend_name() == "sqlite":
        return url
    if password := settings.password.get_secret_value():
        url = url.set(password=password)
    return url.set(drivername="postgresql+psycopg")


def shown_address(settings: MetadataSettings, data_dir: Path) -> str:
    """For people: without any password."""
    url = address_of(settings, data_dir)
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    shown = url._replace(drivername="postgresql", password=None)
    return shown.difference_update_query(["password", "sslpassword"]).render_as_string()


def engine_of(settings: MetadataSettings, data_dir: Path) -> Engine:
    """Connects to nothing yet. Dispose of it. Raises OSError where SQLite's file cannot be made."""
    url = address_of(settings, data_dir)
    pool: dict[str, Any] = {
        "pool_size": settings.connections, "max_overflow": 0, "pool_timeout": settings.statement_timeout_ms / 1_000,
        # A statement's parameters are prompts.
        "hide_parameters": True,
    }  # fmt: skip
    if url.get_backend_name() == "sqlite":
        _make_private(Path(url.database or ""))
        engine = create_engine(url, connect_args={"timeout": settings.busy_timeout_ms / 1_000}, **pool)
        event.listen(engine, "connect", _prepare)
        deadline_s = settings.statement_timeout_ms / 1_000
        event.listen(engine, "begin", lambda connection: _begin(connection, deadline_s))
        return engine
    timeouts = {
        "statement_timeout": settings.statement_timeout_ms,
        "lock_timeout": settings.busy_timeout_ms,
        "idle_in_transaction_session_timeout": 10 * settings.statement_timeout_ms,
    }
    arguments = {
        # libpq knows no less; and whatever a statement may take, a server that is there takes a connection.
        "connect_timeout": min(max(2, settings.statement_timeout_ms // 1_000), MAX_CONNECT_S),
        **NOTICED,
        "fallback_application_name": "sluice",
        "options": " ".join(f"-c {name}={value}" for name, value in timeouts.items()),
    }
    return create_engine(url, connect_args=arguments, pool_pre_ping=True, pool_recycle=600, **pool)


def _make_private(path: Path) -> None:
    """Prompts and answers lie in it: for its owner alone, and so are the files that SQLite puts beside it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # `_begin` begins transactions; the driver would do so late, and not for all
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection, deadline_s: float) -> None:
    """A writer waits for the one before it here, once, and not in the middle of what it has read."""
    raw = connection.connection.dbapi_connection
    assert isinstance(raw, sqlite3.Connection)
    raw.set_progress_handler(None, 0)  # the last one's deadline may have passed
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else "BEGIN")
    ends_s = time.monotonic() + deadline_s
    raw.set_progress_handler(lambda: time.monotonic() > ends_s, PROGRESS_STEPS)
