"""A backup is whole, private and proved, and goes into any database, at this release, in one step or not at all."""

import asyncio
import os
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, delete, select

from deploy.cli.backup import backup_database, restore_database
from streams.gateway.conversations.port import NewConversation
from streams.gateway.conversations.sql import SqlConversations
from streams.gateway.stored.port import Answer, NewTurn
from streams.gateway.stored.sql import SqlStoredResponses
from streams.metadata import backup
from streams.metadata.backup import Backup, BackupError, back_up, restore
from streams.metadata.backup_rows import BATCH_BYTES, BATCH_ROWS, Digest, batches, digest_of
from streams.metadata.database import Database
from streams.metadata.engine import FILE_NAME, WRITES, engine_of
from streams.metadata.schema import migrate, revision_of, upgrade
from streams.metadata.tables import METADATA
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import MetadataSettings

SETTINGS = MetadataSettings(busy_timeout_ms=20_000, statement_timeout_ms=20_000)
Tables = dict[str, list[tuple[Any, ...]]]


def in_transaction(work: Callable[[Connection], Any], folder: Path, settings: MetadataSettings = SETTINGS) -> Any:
    engine = engine_of(settings, folder)
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(**{WRITES: True})
            with connection.begin():
                return work(connection)
    finally:
        engine.dispose()


def tables_in(folder: Path, settings: MetadataSettings = SETTINGS) -> Tables:
    def work(connection: Connection) -> Tables:
        return {
            table.name: sorted(
                tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
                for row in connection.execute(select(*table.columns))
            )
            for table in METADATA.sorted_tables
        }

    found: Tables = in_transaction(work, folder, settings)
    return found


async def _fill(folder: Path, settings: MetadataSettings, turns: int) -> None:
    database = Database(settings, folder)
    responses, conversations = SqlStoredResponses(database), SqlConversations(database)
    await conversations.create(NewConversation("c", "acme", "ada", "Émile 🎉", {"a": "b"}, 1, b"\x00\xff"))
    for number in range(turns):
        await responses.open(NewTurn(f"r{number}", "acme", None, number, 2**53, 9, b"hi" * number, "c"))
    await responses.complete([Answer("r1", "acme", bytes(range(256)), 4, 7)])
    await database.close()


def filled(folder: Path, settings: MetadataSettings = SETTINGS, turns: int = 12) -> Tables:
    """A database with rows of every kind of value."""
    migrate(settings, folder)
    asyncio.run(_fill(folder, settings, turns))
    return tables_in(folder, settings)


def damaged(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        connection.execute(statement)
    connection.close()


def test_what_is_restored_is_what_was_backed_up(tmp_path: Path) -> None:
    rows = filled(tmp_path / "a")
    file = tmp_path / "file"
    told = back_up(SETTINGS, tmp_path / "a", file)
    assert told.rows == 13
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()].count("file") == len(list(tmp_path.iterdir())) - 1
    assert restore(SETTINGS, tmp_path / "b", file) == told
    assert tables_in(tmp_path / "b") == rows
    assert back_up(SETTINGS, tmp_path / "b", tmp_path / "again").tables == told.tables


def test_what_is_there_is_replaced_only_when_that_is_said(tmp_path: Path) -> None:
    rows = filled(tmp_path / "a")
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    others = filled(tmp_path / "b", turns=2)
    with pytest.raises(BackupError, match="3 rows already"):
        restore(SETTINGS, tmp_path / "b", tmp_path / "file")
    assert tables_in(tmp_path / "b") == others
    restore(SETTINGS, tmp_path / "b", tmp_path / "file", replace=True)
    assert tables_in(tmp_path / "b") == rows


@pytest.mark.parametrize("is_open", [False, True], ids=["has rows", "is open"])
def test_a_refused_restore_leaves_the_schema_of_the_release_before(tmp_path: Path, is_open: bool) -> None:
    """Whose gateways would not start any more."""

    def older(connection: Connection) -> None:
        upgrade(connection, "0002")
        columns = "response_id, tenant_id, created_at_ms, expires_at_ms, input, carried_bytes, size_bytes"
        connection.exec_driver_sql(f"INSERT INTO stored_responses ({columns}) VALUES ('r', 'acme', 1, 2, x'00', 1, 1)")

    filled(tmp_path / "a")
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    in_transaction(older, tmp_path / "b")
    revisions: list[str | None] = []
    with closing(sqlite3.connect(tmp_path / "b" / FILE_NAME)) as reader:
        if is_open:
            reader.execute("SELECT count(*) FROM stored_responses").fetchall()
        with pytest.raises(BackupError, match="stop the gateways" if is_open else "1 rows already"):
            restore(SETTINGS, tmp_path / "b", tmp_path / "file", replace=is_open)
    in_transaction(lambda connection: revisions.append(revision_of(connection)), tmp_path / "b")
    assert revisions == ["0002"]


def test_a_database_that_somebody_has_open_is_not_touched(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    others = filled(tmp_path / "b", turns=2)
    reader = sqlite3.connect(tmp_path / "b" / FILE_NAME)
    reader.execute("SELECT count(*) FROM conversations").fetchall()
    with pytest.raises(BackupError, match="stop the gateways"):
        restore(SETTINGS, tmp_path / "b", tmp_path / "file", replace=True)
    reader.close()
    assert tables_in(tmp_path / "b") == others


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_older_one_is_brought_up(tmp_path: Path, revision: str) -> None:
    def older(connection: Connection) -> None:
        upgrade(connection, revision)
        columns = "response_id, tenant_id, created_at_ms, expires_at_ms, input, carried_bytes, size_bytes"
        connection.exec_driver_sql(f"INSERT INTO stored_responses ({columns}) VALUES ('r', 'acme', 1, 2, x'00', 1, 1)")

    in_transaction(older, tmp_path / "a")
    told = back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    assert told.revision == revision
    restore(SETTINGS, tmp_path / "b", tmp_path / "file")
    [row] = tables_in(tmp_path / "b")["stored_responses"]
    assert row[:3] == ("r", "acme", None)
    assert [path.name for path in (tmp_path / "b").iterdir()] == [FILE_NAME], "the copy that was brought up is gone"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE stored_responses SET tenant_id = 'beta' WHERE response_id = 'r3'", "damaged"),
        ("DELETE FROM stored_responses WHERE response_id = 'r3'", "damaged"),
        ("UPDATE conversations SET opening = x'00fe'", "damaged"),
        ("CREATE TABLE more (x)", "damaged"),
        ("DROP TABLE sluice_backup", "no backup"),
        ("UPDATE sluice_backup SET about = '{}'", "no backup"),
        ("UPDATE sluice_backup SET about = replace(about, '\"format\": 1', '\"format\": 2')", "later release"),
        ('UPDATE sluice_backup SET about = replace(about, \'"revision": "\', \'"revision": "9\')', "later release"),
    ],
)
def test_what_is_not_whole_changes_nothing(tmp_path: Path, statement: str, why: str) -> None:
    filled(tmp_path / "a")
    file = tmp_path / "file"
    back_up(SETTINGS, tmp_path / "a", file)
    others = filled(tmp_path / "b", turns=2)
    damaged(file, statement)
    with pytest.raises(BackupError, match=why):
        restore(SETTINGS, tmp_path / "b", file, replace=True)
    assert tables_in(tmp_path / "b") == others


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\x00" + b"x" * 5_000])
def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BackupError, match="no backup"):
        restore(SETTINGS, tmp_path / "b", tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        restore(SETTINGS, tmp_path / "b", tmp_path / "nothing")
    assert not (tmp_path / "b").exists()


def test_bytes_that_the_disk_has_lost_are_found(tmp_path: Path) -> None:
    filled(tmp_path / "a", turns=400)
    file = tmp_path / "file"
    back_up(SETTINGS, tmp_path / "a", file)
    raw = file.read_bytes()
    at = raw.index(b"hi" * 50)
    file.write_bytes(raw[:at] + b"ho" + raw[at + 2 :])
    with pytest.raises(BackupError, match="damaged"):
        restore(SETTINGS, tmp_path / "b", file)
    file.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(BackupError):
        restore(SETTINGS, tmp_path / "b", file)


def test_where_it_fails_the_one_before_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "a")
    file = tmp_path / "file"
    file.write_bytes(b"the one before")

    def fails(part: Path) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(backup, "_sealed", fails)
    with pytest.raises(BackupError, match="disk is full"):
        back_up(SETTINGS, tmp_path / "a", file)
    assert file.read_bytes() == b"the one before"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "file"}


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def ends_it(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that ends a process, as where nobody has said otherwise."""
    number: signal.Signals = request.param
    before = signal.signal(number, signal.SIG_DFL)
    yield number
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(number, before)


def test_ended_by_a_signal_it_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_it: signal.Signals
) -> None:
    filled(tmp_path / "a")
    before = tables_in(tmp_path / "a")
    monkeypatch.setattr(backup, "_sealed", lambda _part: signal.raise_signal(ends_it))
    with pytest.raises(SystemExit, match=str(128 + ends_it)):
        backup_database(tmp_path / "file", tmp_path / "a")
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    monkeypatch.undo()
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    monkeypatch.setattr(backup, "batches", lambda _rows: signal.raise_signal(ends_it))
    with pytest.raises(SystemExit, match=str(128 + ends_it)):
        restore_database(tmp_path / "file", tmp_path / "a", replace=True)
    assert tables_in(tmp_path / "a") == before


def test_it_is_said_which_database_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a variable of the gateways' is missing, it is another one than theirs."""
    filled(tmp_path / "a")
    backup_database(tmp_path / "file", tmp_path / "a")
    restore_database(tmp_path / "file", tmp_path / "b")
    made, restored = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "a" / FILE_NAME) in made
    assert str(tmp_path / "b" / FILE_NAME) in restored


def test_what_killed_ones_have_left_goes_with_the_next(tmp_path: Path) -> None:
    def older(connection: Connection) -> None:
        upgrade(connection, "0001")

    in_transaction(older, tmp_path / "a")
    left = [tmp_path / ".file.part-a1b2c3", tmp_path / ".file.part-a1b2c3-journal", tmp_path / "b" / ".restore.d4"]
    left[-1].mkdir(parents=True)
    others = [tmp_path / ".file.txt", tmp_path / ".other.part-a1b2c3"]
    for path in (*left[:-1], *others, left[-1] / "copy.sqlite"):
        path.write_bytes(b"prompts")
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    restore(SETTINGS, tmp_path / "b", tmp_path / "file")
    assert [path for path in (*left, *others) if path.exists()] == others


def test_one_backup_is_made_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "a")
    sealed = backup._sealed

    def meanwhile(part: Path) -> Backup:
        with pytest.raises(BackupError, match="another backup"):
            back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
        return sealed(part)

    monkeypatch.setattr(backup, "_sealed", meanwhile)
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    monkeypatch.undo()
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "file"}


def test_signals_are_heard_while_pages_are_copied(tmp_path: Path) -> None:
    """All of them are copied by one call, in which none is heard unless Python runs."""
    filled(tmp_path / "a", turns=600)
    steps: list[None] = []

    class Watched(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **more: Any) -> None:
            progress = more["progress"]
            super().backup(target, pages=1, progress=lambda *told: steps.append(progress(*told)))

    source = sqlite3.connect(tmp_path / "a" / FILE_NAME, factory=Watched)
    copy = sqlite3.connect(":memory:")
    backup._copy_pages(source, copy)
    copy.close()
    source.close()
    assert len(steps) > 10


def test_a_restore_that_fails_on_its_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "a")
    back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    others = filled(tmp_path / "b", turns=2)
    taken = iter([True, False])

    def fails(rows: Any) -> Any:
        for batch in batches(rows):
            if not next(taken):
                raise sqlite3.OperationalError("database or disk is full")
            yield batch

    monkeypatch.setattr(backup, "batches", fails)
    with pytest.raises((BackupError, MetadataUnavailable), match="disk is full"):
        restore(SETTINGS, tmp_path / "b", tmp_path / "file", replace=True)
    assert tables_in(tmp_path / "b") == others


def test_of_what_was_never_migrated_there_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no database"):
        back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    engine = engine_of(SETTINGS, tmp_path / "a")
    engine.connect().close()
    engine.dispose()
    with pytest.raises(BackupError, match="sluice migrate"):
        back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("backends", "told"),
    [
        ([(1, "sluice", 16, "sluice", "client backend")], []),
        ([(2, None, None, None, None), (3, None, None, "", "autovacuum worker")], []),
        ([(2, "sluice", 16, "", "parallel worker")], []),
        ([(2, "sluice", 16, "sluice", "client backend"), (3, "watch", 17, None, None)], ["sluice: sluice", "watch"]),
    ],
    ids=["itself", "the server's", "its helpers", "others"],
)
def test_of_a_server_it_is_said_who_else_is_there(backends: list[tuple[Any, ...]], told: list[str]) -> None:
    """As `pg_stat_activity` shows them, also to a role that may see little of others."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        raw: Any = connection.connection.dbapi_connection
        raw.create_function("current_database", 0, lambda: "sluice")
        raw.create_function("pg_backend_pid", 0, lambda: 1)
        connection.exec_driver_sql(
            "CREATE TABLE pg_stat_activity (datname, pid, usename, usesysid, application_name, backend_type)"
        )
        for backend in [*backends, (9, "elsewhere", 18, "", "client backend")]:
            datname = "other" if backend[0] == 9 else "sluice"
            connection.exec_driver_sql("INSERT INTO pg_stat_activity VALUES (?, ?, ?, ?, ?, ?)", (datname, *backend))
        assert backup._others(connection) == told
    engine.dispose()


@pytest.mark.long
def test_it_goes_from_either_database_into_the_other(tmp_path: Path, postgres_url: str) -> None:
    on_postgres = MetadataSettings(url=postgres_url, busy_timeout_ms=20_000, statement_timeout_ms=20_000)

    def empty(connection: Connection) -> None:
        for table in METADATA.sorted_tables:
            connection.execute(delete(table))

    rows = filled(tmp_path / "a", turns=1_200)
    first = back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    migrate(on_postgres, tmp_path)
    in_transaction(empty, tmp_path, on_postgres)
    restore(on_postgres, tmp_path, tmp_path / "file")
    assert tables_in(tmp_path, on_postgres) == rows
    with pytest.raises(BackupError, match="rows already"):
        restore(on_postgres, tmp_path, tmp_path / "file")
    second = back_up(on_postgres, tmp_path, tmp_path / "again")
    assert (second.rows, second.revision) == (first.rows, first.revision)
    restore(SETTINGS, tmp_path / "b", tmp_path / "again")
    assert tables_in(tmp_path / "b") == rows
    open_elsewhere = engine_of(on_postgres, tmp_path)
    with open_elsewhere.connect(), pytest.raises(BackupError, match=r"1 others have the database open \(.*: sluice\)"):
        restore(on_postgres, tmp_path, tmp_path / "file", replace=True)
    open_elsewhere.dispose()
    in_transaction(empty, tmp_path, on_postgres)


@given(st.lists(st.integers(0, BATCH_BYTES + 10), max_size=20), st.integers(0, 3))
def test_batches_hold_all_rows_in_order_and_are_bounded(sizes: list[int], thousands: int) -> None:
    class Sized(bytes):
        def __len__(self) -> int:
            return size_of[id(self)]

    size_of: dict[int, int] = {}
    values = [Sized() for _ in range(len(sizes) + 700 * thousands)]
    for number, value in enumerate(values):
        size_of[id(value)] = sizes[number] if number < len(sizes) else 0
    told = list(batches((value,) for value in values))
    assert [id(row[0]) for batch in told for row in batch] == [id(value) for value in values]
    for batch in told:
        assert 0 < len(batch) <= BATCH_ROWS
        assert len(batch) == 1 or sum(len(row[0]) for row in batch) <= BATCH_BYTES


VALUES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.binary(max_size=8))


@given(st.lists(st.tuples(VALUES, VALUES), max_size=4), st.lists(st.tuples(VALUES, VALUES), max_size=4))
def test_rows_that_differ_have_other_digests(one: list[tuple[Any, Any]], other: list[tuple[Any, Any]]) -> None:
    def digest(rows: list[tuple[Any, Any]]) -> Digest:
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE t (a, b)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        told = digest_of(connection, "t", ["a", "b"])
        connection.close()
        return told

    assert (digest(one) == digest(other)) == (one == other)


def test_a_moment_is_backed_up_whoever_writes_meanwhile(tmp_path: Path) -> None:
    """Each transaction writes two rows: a backup has both or none, though its pages are read in between."""
    filled(tmp_path / "a", turns=600)
    writer = sqlite3.connect(tmp_path / "a" / FILE_NAME, isolation_level=None)
    writes = iter(range(10_000))

    def write_two() -> None:
        number = next(writes)
        writer.execute("BEGIN IMMEDIATE")
        for half in "ab":
            writer.execute(
                "INSERT INTO idempotency_keys VALUES ('acme', ?, x'00', 'r', 1, 1, 1)", [f"{number}-{half}"]
            )  # fmt: skip
        writer.execute("COMMIT")

    class Busy(sqlite3.Connection):
        def backup(self, target: sqlite3.Connection, **more: Any) -> None:
            super().backup(target, pages=1, progress=lambda *_: write_two())

    connect = sqlite3.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, **{"factory": Busy, **more}))
        write_two()
        told = back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    assert next(writes) > 10, "it was written to meanwhile"
    writer.close()
    assert told.tables["idempotency_keys"].rows == 2


def test_whose_umask_is_wide_has_a_private_file_all_the_same(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    before = os.umask(0)
    try:
        back_up(SETTINGS, tmp_path / "a", tmp_path / "file")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
