"""The database: its file is private, its transactions are whole and have deadlines, its tables are this release's."""

import asyncio
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from streams.metadata import database as database_module
from streams.metadata.database import Database
from streams.metadata.engine import FILE_NAME, address_of, engine_of, shown_address
from streams.metadata.schema import check_schema, migrate
from streams.metadata.tables import METADATA
from streams.metadata.unavailable import GivenUp, MetadataUnavailable, NotAsked, NotAsMigrated
from streams.settings import MetadataSettings, SettingsError

PATIENT = MetadataSettings(busy_timeout_ms=20_000, statement_timeout_ms=20_000)
NO_LOCKS = MetadataSettings(busy_timeout_ms=50, statement_timeout_ms=20_000)
QUICK = MetadataSettings(busy_timeout_ms=20_000, statement_timeout_ms=50)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    migrate(PATIENT, tmp_path)
    return tmp_path


def checked(settings: MetadataSettings, folder: Path) -> None:
    engine = engine_of(settings, folder)
    try:
        with engine.connect() as connection:
            check_schema(connection)
    finally:
        engine.dispose()


def execute(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        connection.execute(statement)
    connection.close()


def test_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert migrate(PATIENT, folder)
    engine = engine_of(PATIENT, folder)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2, "FULL: what is committed is on disk"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    engine.dispose()
    assert set(modes) >= {FILE_NAME, f"{FILE_NAME}-wal"}
    assert set(modes.values()) == {0o600}


def test_migrations_make_the_tables_that_the_code_knows(folder: Path) -> None:
    engine = engine_of(PATIENT, folder)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


def test_a_second_migration_has_nothing_to_do(folder: Path) -> None:
    assert not migrate(PATIENT, folder)
    checked(PATIENT, folder)


def test_tables_that_are_missing_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sluice migrate"):
        checked(PATIENT, tmp_path)


def test_a_later_release_s_tables_are_left_alone(folder: Path) -> None:
    execute(folder, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SettingsError, match="later release"):
        checked(PATIENT, folder)
    with pytest.raises(SettingsError, match="later release"):
        migrate(PATIENT, folder)


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    engine_of(PATIENT, tmp_path).dispose()
    execute(tmp_path, "CREATE TABLE stored_responses (x)")
    with pytest.raises(MetadataUnavailable, match="already exists"):
        migrate(PATIENT, tmp_path)
    execute(tmp_path, "DROP TABLE stored_responses")
    assert migrate(PATIENT, tmp_path)


async def test_a_transaction_that_fails_changes_nothing(folder: Path) -> None:
    def work(connection: Connection) -> None:
        connection.execute(text("DELETE FROM alembic_version"))
        raise ValueError("no")

    database = Database(PATIENT, folder)
    with pytest.raises(ValueError, match="no"):
        await database.write(work)
    await database.check()
    await database.close()


async def test_a_statement_that_does_not_end_is_ended(folder: Path) -> None:
    database = Database(QUICK, folder)
    ended = threading.Event()

    def work(connection: Connection) -> None:
        try:
            connection.execute(text(ENDLESS))
        finally:
            ended.set()

    with pytest.raises(MetadataUnavailable):
        await database.read(work)
    assert await asyncio.to_thread(ended.wait, 60), "its thread is free again"
    await asyncio.sleep(0)
    await database.close()


@pytest.fixture
def locked(folder: Path) -> Iterator[sqlite3.Connection]:
    """Somebody else writes, and does not end."""
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


class _Undefined(Exception):
    """As Postgres' driver tells it."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("no such relation")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "raised"),
    [
        ("42P01", MetadataUnavailable),
        ("42501", MetadataUnavailable),
        (None, ProgrammingError),
        ("0A000", ProgrammingError),
    ],
)
async def test_a_table_or_a_right_that_is_missing_is_told_as_a_database_that_is_away(
    folder: Path, sqlstate: str | None, raised: type[Exception]
) -> None:
    """Somebody may be about to migrate, and chats need no database."""

    def work(_connection: Connection) -> None:
        raise ProgrammingError("SELECT 1", {}, _Undefined(sqlstate))

    database = Database(PATIENT, folder)
    with pytest.raises(raised):
        await database.read(work)
    await database.close()


async def test_readers_wait_for_no_writer_and_a_writer_not_for_ever(folder: Path, locked: sqlite3.Connection) -> None:
    database = Database(NO_LOCKS, folder)
    await database.check()
    with pytest.raises(MetadataUnavailable):
        await database.write(lambda connection: connection.execute(text("DELETE FROM stored_responses")).rowcount)
    locked.execute("ROLLBACK")
    patient = Database(PATIENT, folder)
    assert await patient.write(lambda c: c.execute(text("DELETE FROM stored_responses")).rowcount) == 0
    await database.close()
    await patient.close()


async def test_no_more_transactions_wait_than_may(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "MAX_WAITING", 2)
    go = threading.Event()
    database = Database(PATIENT, folder)
    wait: Callable[[Connection], bool] = lambda _connection: go.wait(60)  # noqa: E731
    waiting = [asyncio.ensure_future(database.read(wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(MetadataUnavailable, match="wait already"):
        await database.read(wait)
    go.set()
    assert await asyncio.gather(*waiting) == [True, True]
    await database.close()


class Away:
    """A database whose clock is ours, and which fails as the driver tells it while it `is_away`."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 0
        self.is_away = True
        self.asked = 0
        settings = PATIENT.model_copy(update={"circuit_failures": 3, "circuit_open_ms": 1_000})
        self.database = Database(settings, folder, lambda: self.now_ms)

    def work(self, _connection: Connection) -> str:
        self.asked += 1
        if self.is_away:
            raise OperationalError("SELECT 1", {}, ConnectionError("server closed the connection"))
        return "done"

    async def fails(self) -> None:
        with pytest.raises(MetadataUnavailable):
            await self.database.read(self.work)


@pytest.fixture
async def away(folder: Path) -> AsyncIterator[Away]:
    world = Away(folder)
    yield world
    await world.database.close()


async def test_a_database_that_answers_nobody_is_asked_by_one_at_a_time(away: Away) -> None:
    for _ in range(3):
        assert not away.database.circuit_is_open
        await away.fails()
    assert away.database.circuit_is_open
    for _ in range(100):
        with pytest.raises(NotAsked):
            await away.database.write(away.work)
    assert away.asked == 3, "nobody waited for it"
    away.now_ms += 1_250
    await asyncio.gather(*(away.fails() for _ in range(100)))
    assert away.asked == 4, "one tried"
    away.is_away, away.now_ms = False, away.now_ms + 2_500
    assert [await away.database.read(away.work) for _ in range(3)] == ["done"] * 3
    assert not away.database.circuit_is_open


@pytest.mark.parametrize("sqlstate", ["57014", "55P03", "40P01", "40001"])
async def test_a_transaction_that_the_database_ends_is_unavailable_to_its_own_asker_alone(
    away: Away, sqlstate: str
) -> None:
    def ends(_connection: Connection) -> None:
        raise OperationalError("SELECT 1", {}, _Undefined(sqlstate))

    for _ in range(10):
        with pytest.raises(MetadataUnavailable):
            await away.database.read(ends)
    assert not away.database.circuit_is_open
    for _ in range(3):
        await away.fails()
    away.now_ms += 1_250
    with pytest.raises(GivenUp):
        await away.database.read(ends)
    assert not away.database.circuit_is_open, "it answers again"


async def test_a_database_that_answers_some_is_asked_by_all(away: Away) -> None:
    def refuses(_connection: Connection) -> None:
        raise ProgrammingError("SELECT 1", {}, _Undefined("42P01"))

    for _ in range(5):
        await away.fails()
        await away.fails()
        with pytest.raises(NotAsMigrated):
            await away.database.read(refuses)
    assert away.asked == 10
    assert not away.database.circuit_is_open


async def test_what_its_asker_waited_for_in_vain_keeps_no_place_in_front_of_others(folder: Path) -> None:
    """Else who tries when it is back would wait behind all that was asked while it was away."""
    settings = MetadataSettings(busy_timeout_ms=25, statement_timeout_ms=25, connections=1, circuit_failures=100)
    go, done = threading.Event(), list[bool]()
    database = Database(settings, folder)

    def hang(_connection: Connection) -> None:
        go.wait(60)

    def write(_connection: Connection) -> None:
        done.append(True)

    asking = [database.read(hang), *(database.read(write) for _ in range(20))]
    outcomes = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(outcome, MetadataUnavailable) for outcome in outcomes)
    go.set()
    database._timeout_s = 60
    assert await database.read(lambda _connection: list(done)) == []
    await database.close()


def test_a_servers_address_gets_its_password_and_its_driver(tmp_path: Path) -> None:
    settings = MetadataSettings(url="postgresql://sluice@db.example/sluice", password="p:w")
    address = address_of(settings, tmp_path)
    assert address.render_as_string(hide_password=False) == "postgresql+psycopg://sluice:p%3Aw@db.example/sluice"
    assert "p:w" not in repr(settings)
    assert shown_address(settings, tmp_path) == "postgresql://sluice@db.example/sluice"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", "{folder}/metadata.sqlite"),
        ("sqlite:////var/lib/sluice/m.sqlite", "/var/lib/sluice/m.sqlite"),
        ("postgresql://sluice:hunter2@db.example:5433/sluice", "postgresql://sluice@db.example:5433/sluice"),
        (
            "postgresql://db.example/sluice?sslmode=verify-full&password=hunter2&sslpassword=hunter2",
            "postgresql://db.example/sluice?sslmode=verify-full",
        ),
    ],
)
def test_a_database_is_shown_without_its_password(tmp_path: Path, url: str, shown: str) -> None:
    assert shown_address(MetadataSettings(url=url), tmp_path) == shown.format(folder=tmp_path)


def given_to_the_driver(settings: MetadataSettings, folder: Path) -> dict[str, Any]:
    engine = engine_of(settings, folder)
    asked: list[dict[str, Any]] = []

    def refuse(_dialect: object, _record: object, _args: object, parameters: dict[str, Any]) -> None:
        asked.append(parameters)
        raise ConnectionRefusedError

    event.listen(engine, "do_connect", refuse)
    with pytest.raises(ConnectionRefusedError):
        engine.connect()
    [given] = asked
    return given


@pytest.mark.parametrize(("statement_timeout_ms", "connect_s"), [(100, 2), (5_000, 5), (86_400_000, 10)])
def test_whoever_lets_statements_run_for_a_day_waits_no_day_for_a_server(
    tmp_path: Path, statement_timeout_ms: int, connect_s: int
) -> None:
    settings = MetadataSettings(url="postgresql://db.example/sluice", statement_timeout_ms=statement_timeout_ms)
    assert given_to_the_driver(settings, tmp_path)["connect_timeout"] == connect_s


def test_a_server_that_is_gone_without_a_word_is_noticed(tmp_path: Path) -> None:
    """No deadline of the server's holds then, and a thread would wait for as long as the system sends again."""
    given = given_to_the_driver(MetadataSettings(url="postgresql://sluice@db.example/sluice"), tmp_path)
    silent_s = given["keepalives_idle"] + given["keepalives_interval"] * given["keepalives_count"]
    assert max(given["tcp_user_timeout"] / 1_000, silent_s) <= 15


@pytest.mark.parametrize(
    ("given", "why"),
    [({"url": "mysql://x"}, "url"), ({"password": "x" * 8}, "postgresql://"), ({"connections": 0}, "connections")],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MetadataSettings.model_validate(given)
