"""All of the database in one file, and back, whichever database it came from and whichever it goes to.

The file is an ordinary SQLite database with the same tables, at the schema that the database had, and one more table
that says what it is: its schema, and of each table how many rows it has and their digest. It is written beside its
place, for its owner alone, and put there once it is whole and on disk: whatever fails, what stood there before stands.
A restore reads it through and proves it before it changes anything, and changes everything in one transaction.
"""

import fcntl
import glob
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, Table, create_engine, event, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError

from streams.clocks import now_ms
from streams.metadata import schema
from streams.metadata.backup_rows import Digest, Rows, batches, digest_of, tables_of
from streams.metadata.engine import WRITES, address_of, engine_of
from streams.metadata.tables import METADATA
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import MetadataSettings

FORMAT: Final = 1
PATIENCE: Final = {"statement_timeout_ms": 86_400_000, "busy_timeout_ms": 5_000}
"""A statement may copy gigabytes; a lock that another process holds it does not give up by waiting."""
PAGES_AT_ONCE: Final = 4_096
FETCHED_AT_ONCE: Final = 16
"""Of a server's rows, each of which may be as large as an answer is kept."""
_ABOUT: Final = "sluice_backup"
_BROUGHT_UP: Final = ".restore."
"""How the folder's name begins in which a copy is brought up."""


class BackupError(Exception):
    """Why there is no backup, or nothing was restored; one line."""


class Backup(NamedTuple):
    """What a file says of itself. `tables`: the rows of each and their digest."""

    revision: str
    made_at_ms: int
    tables: dict[str, Digest]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.tables.values())


def back_up(settings: MetadataSettings, data_dir: Path, to: Path) -> Backup:
    """As the database is at one moment, whoever writes to it meanwhile. What killed ones have left beside `to` goes.
    Raises BackupError, MetadataUnavailable, SettingsError and OSError.
    """
    patient = settings.model_copy(update=PATIENCE)
    address = address_of(patient, data_dir)
    is_file = address.get_backend_name() == "sqlite"
    if is_file and not Path(address.database or "").exists():
        raise BackupError(f"there is no database at {address.database}")
    with _alone_at(to), _placed(to) as part, _explained():
        engine = engine_of(patient, data_dir)
        try:
            revision = _revision(engine)
            if is_file:
                _copy_file(Path(address.database or ""), part)
            else:
                _copy_rows(engine, part, revision)
        finally:
            engine.dispose()
        return _sealed(part)


def restore(settings: MetadataSettings, data_dir: Path, source: Path, *, replace: bool = False) -> Backup:
    """All that the database has is what the backup has, brought up to this release, or nothing has changed.

    Without `replace` only an empty database takes it. Nobody else may have it open, nor restore with the same data
    folder: what killed ones have left there goes. Raises as `back_up`.
    """
    for left in data_dir.glob(f"{_BROUGHT_UP}*"):
        shutil.rmtree(left)
    patient = settings.model_copy(update=PATIENCE)
    with _explained(), closing(_opened(source)) as proved:
        about = _about(proved, source)
        _prove(proved, about, source)
        if _is_there(patient, data_dir):
            with _alone_in(patient, data_dir) as connection:
                _refuse_rows(connection, replace=replace)  # before its schema becomes this release's
        schema.migrate(settings, data_dir)
        with _at_this_release(proved, about, data_dir) as rows, _alone_in(patient, data_dir) as connection:
            schema.check_schema(connection)
            _refuse_rows(connection, replace=replace)
            _replace(connection, rows)
    return about


@contextmanager
def _explained() -> Iterator[None]:
    """What a database says of a full disk, a lock or a broken file is one line."""
    try:
        yield
    except DBAPIError as error:
        raise MetadataUnavailable(f"metadata: {str(error.orig)[:200]}") from None
    except sqlite3.Error as error:
        raise BackupError(f"the backup: {str(error)[:200]}") from None


@contextmanager
def _alone_at(to: Path) -> Iterator[None]:
    """Nobody else makes a backup there meanwhile. Raises BackupError where somebody does."""
    lock = to.absolute().with_name(f".{to.name}.lock")
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), lock.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:  # or its owner has just taken it away
            raise BackupError(f"another backup to {to} is being made")
        try:
            for left in lock.parent.glob(f"{glob.escape(_part_prefix(to))}*"):
                left.unlink(missing_ok=True)
            yield
        finally:
            lock.unlink(missing_ok=True)


def _part_prefix(to: Path) -> str:
    return f".{to.name}.part-"


@contextmanager
def _placed(to: Path) -> Iterator[Path]:
    """An empty file beside `to`, which is put there at the end, on disk; if anything fails it is gone."""
    descriptor, name = tempfile.mkstemp(dir=to.absolute().parent, prefix=_part_prefix(to))
    os.close(descriptor)  # It is 0600.
    part = Path(name)
    try:
        yield part
        _flush(part)
        os.replace(part, to)
        _flush(to.absolute().parent)
    finally:
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _revision(engine: Engine) -> str:
    with engine.connect() as connection:
        revision = schema.revision_of(connection)
    if revision is None:
        raise BackupError("the database has no tables yet; make them with: sluice migrate")
    return revision


def _copy_file(database: Path, part: Path) -> None:
    """Page by page while others write: a transaction that is held holds the moment."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)) as source:
        source.execute("BEGIN").close()
        source.execute("SELECT count(*) FROM alembic_version").close()
        with closing(sqlite3.connect(part)) as copy:
            _copy_pages(source, copy)
            copy.execute("PRAGMA journal_mode = DELETE").close()  # all of it in one file


def _copy_pages(source: sqlite3.Connection, copy: sqlite3.Connection) -> None:
    """Signals are heard between two steps: nowhere else does Python run."""
    source.backup(copy, pages=PAGES_AT_ONCE, progress=lambda *_: None)


def _copy_rows(engine: Engine, part: Path, revision: str) -> None:
    copy = create_engine(f"sqlite:///{part}", hide_parameters=True)
    try:
        with copy.begin() as into:
            schema.upgrade(into, revision)
        reading = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True, "yield_per": FETCHED_AT_ONCE}
        with (
            closing(sqlite3.connect(part)) as raw,
            engine.connect().execution_options(**reading) as source,
            source.begin(),
        ):
            for name, columns in tables_of(raw).items():
                quoted = ", ".join(f'"{column}"' for column in columns)
                rows = source.execute(text(f'SELECT {quoted} FROM "{name}"'))  # noqa: S608 - names of our tables
                marks = ", ".join("?" for _ in columns)
                for batch in batches(tuple(row) for row in rows):
                    raw.executemany(f'INSERT INTO "{name}" ({quoted}) VALUES ({marks})', batch)  # noqa: S608
                    raw.commit()
    finally:
        copy.dispose()


def _sealed(part: Path) -> Backup:
    """What the file says of itself from now on."""
    with closing(sqlite3.connect(part)) as copy:
        [[revision]] = copy.execute("SELECT version_num FROM alembic_version").fetchall()
        tables = {name: digest_of(copy, name, columns) for name, columns in tables_of(copy).items()}
        backup = Backup(revision, now_ms(), tables)
        about = {
            "format": FORMAT, "revision": revision, "made_at_ms": backup.made_at_ms,
            "tables": {name: each._asdict() for name, each in tables.items()},
        }  # fmt: skip
        copy.execute(f"CREATE TABLE {_ABOUT} (about TEXT NOT NULL)")
        copy.execute(f"INSERT INTO {_ABOUT} VALUES (?)", [json.dumps(about)])  # noqa: S608 - a name of ours
        copy.commit()
    return backup


def _opened(source: Path) -> sqlite3.Connection:
    """Raises OSError where it cannot be read."""
    with source.open("rb"):
        pass
    return sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)


def _about(proved: sqlite3.Connection, source: Path) -> Backup:
    """Raises BackupError for what is no backup, and for one of a later release."""
    try:
        [[written]] = proved.execute(f"SELECT about FROM {_ABOUT}").fetchall()  # noqa: S608 - a name of ours
        told = json.loads(written)
        tables = {name: Digest(**each) for name, each in told["tables"].items()}
        version, about = told["format"], Backup(told["revision"], told["made_at_ms"], tables)
    except (sqlite3.Error, ValueError, KeyError, TypeError, AttributeError):
        raise BackupError(f"{source} is no backup, or not a whole one") from None
    if version != FORMAT or not schema.is_known(about.revision):
        raise BackupError(f"{source} is of a later release (schema {about.revision})")
    return about


def _prove(proved: sqlite3.Connection, about: Backup, source: Path) -> None:
    tables = tables_of(proved, beside=_ABOUT)
    if {name: digest_of(proved, name, columns) for name, columns in tables.items()} != about.tables:
        raise BackupError(f"{source} is damaged: its rows are not those that were backed up")


@contextmanager
def _at_this_release(proved: sqlite3.Connection, about: Backup, data_dir: Path) -> Iterator[Rows]:
    """Its rows; those of an older one from a copy that is brought up."""
    if schema.is_head(about.revision):
        yield Rows(proved)
        return
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=_BROUGHT_UP) as folder:
        path = Path(folder) / "copy.sqlite"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(sqlite3.connect(path)) as copy:
            _copy_pages(proved, copy)
        engine = create_engine(f"sqlite:///{path}", hide_parameters=True)
        try:
            with engine.begin() as connection:
                schema.upgrade(connection, "head")
        finally:
            engine.dispose()
        with closing(sqlite3.connect(path)) as copy:
            yield Rows(copy)


def _is_there(settings: MetadataSettings, data_dir: Path) -> bool:
    """Whether there may be anything to refuse for: a file that is not there has nothing."""
    address = address_of(settings, data_dir)
    return address.get_backend_name() != "sqlite" or Path(address.database or "").exists()


@contextmanager
def _alone_in(settings: MetadataSettings, data_dir: Path) -> Iterator[Connection]:
    """A transaction while which nobody else has the database open. Raises BackupError where somebody has."""
    engine = engine_of(settings, data_dir)
    if engine.dialect.name == "sqlite":
        # Before anything else is asked of a connection: refused while another process has the file open.
        event.listen(engine, "connect", _alone, insert=True)
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(**{WRITES: True})
            with connection.begin():
                _refuse_others(connection)
                yield connection
    except (sqlite3.OperationalError, OperationalError) as error:
        if "database is locked" not in str(error):
            raise
        raise BackupError("another process has the database open; stop the gateways first") from None
    finally:
        engine.dispose()


def _refuse_rows(connection: Connection, *, replace: bool) -> None:
    """Raises BackupError where there are some, of whichever release, and they are not to be replaced."""
    if not replace and (held := sum(_count(connection, table) for table in _tables_there(connection))):
        raise BackupError(f"the database has {held} rows already; replace them with --replace")


def _tables_there(connection: Connection) -> list[Table]:
    there = set(inspect(connection).get_table_names())
    return [table for table in METADATA.sorted_tables if table.name in there]


def _replace(connection: Connection, rows: Rows) -> None:
    for table in METADATA.sorted_tables:
        connection.execute(table.delete())
        columns = [column.name for column in table.columns]
        for batch in batches(rows.of(table.name, columns)):
            connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in batch])


def _alone(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").close()


def _refuse_others(connection: Connection) -> None:
    """Of a server: SQLite has refused by itself where there are others. Raises BackupError."""
    if connection.dialect.name != "postgresql":
        return
    if others := _others(connection):
        named = ", ".join(dict.fromkeys(others))[:200]
        raise BackupError(f"{len(others)} others have the database open ({named}); stop them first")
    if names := ", ".join(f'"{table.name}"' for table in _tables_there(connection)):
        connection.execute(text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))


def _others(connection: Connection) -> list[str]:
    """Who else is connected, by user and program. Of others' connections a role may see no more than their users: then
    those without one are the server's own.
    """
    found = connection.execute(
        text(
            "SELECT usename, application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND usesysid IS NOT NULL"
            " AND coalesce(backend_type, 'client backend') = 'client backend' ORDER BY pid"
        )
    )
    return [f"{user}: {program}" if program else str(user) for user, program in found]


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())
