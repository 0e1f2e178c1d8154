"""Tables across restarts and kills of the process that owns them; each test has a folder of its own."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from billing_jobs import rows
from billing_jobs.schema_steps import SCHEMA_VERSION
from billing_jobs.store import ClickHouseStore, Database, SchemaTooNew
from tests.unit.billing_jobs.test_store import execute, query, usage_batch


def test_rows_lost_behind_their_token_are_put_back_however_often(tmp_path: Path) -> None:
    """Killed after the engine noted the token and before the rows were visible: the token alone would drop them."""
    path, parts = tmp_path / "clickhouse", list[str]()
    for again in (False, True, True):
        for part in parts:
            shutil.rmtree(part)
        with closing(Database.embedded(path)) as database:
            database.open()
            with closing(ClickHouseStore(database.connection())) as store:
                store.insert(usage_batch(0, 4), again=False)
                if again:
                    rows = query(database, "SELECT count() FROM usage_events")
                    assert rows == [(0,)], "the hazard is gone: simplify insert"
                    store.insert(usage_batch(0, 4), again=True)
                store.insert(usage_batch(0, 4), again=True)
                assert query(database, "SELECT count() FROM usage_events") == [(5,)]
                parts = query(
                    database, "SELECT path FROM system.parts WHERE table = 'usage_events' AND active", first_column=True
                )


def test_tables_survive_a_restart_and_those_of_a_newer_program_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    for _ in range(2):
        with closing(Database.embedded(path)) as database:
            database.open()
            with closing(ClickHouseStore(database.connection())) as store:
                store.insert(usage_batch(0, 4), again=False)
                assert query(database, "SELECT count() FROM usage_events") == [(5,)]
                assert query(database, "SELECT max(version) FROM schema_version") == [(SCHEMA_VERSION,)]
    with closing(Database.embedded(path)) as database:
        with closing(database.connection()) as connection, connection.client() as client:
            client.insert("schema_version", [[SCHEMA_VERSION + 1]], column_names=["version"])
        with pytest.raises(SchemaTooNew, match=f"version {SCHEMA_VERSION + 1}"):
            database.open()


class Late:
    """A client that reads the schema's version just before somebody else makes all tables."""

    def __init__(self, client: Any, meanwhile: Callable[[], None]) -> None:
        self._client = client
        self._meanwhile: list[Callable[[], None]] = [meanwhile]
        self.commands: list[str] = []

    def query(self, text: str, **options: Any) -> Any:
        answer = self._client.query(text, **options)
        if self._meanwhile and "schema_version" in text:
            self._meanwhile.pop()()
        return answer

    def command(self, text: str) -> None:
        self.commands.append(text)
        self._client.command(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_who_finds_no_tables_yet_changes_none_that_another_makes_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    with closing(Database.embedded(path)) as database, closing(database.connection()) as connection:
        with connection.client() as client:
            late = Late(client, database.open)
            Database(lambda _settings, _timeout_s: late).open()
        assert [text for text in late.commands if not text.startswith("CREATE") or " OR REPLACE " in text] == []


def test_a_new_table_is_never_replaced(tmp_path: Path) -> None:
    """Rows that others insert while one is are lost."""
    tables = "SELECT name, uuid FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
    with closing(Database.embedded(tmp_path / "clickhouse")) as database:
        database.open()
        made = query(database, f"{tables} ORDER BY name")
        execute(database, "TRUNCATE TABLE schema_version")
        with closing(Database.embedded(tmp_path / "clickhouse")) as late:
            late.open()
        assert query(database, f"{tables} ORDER BY name") == made


def test_tables_of_an_older_program_are_carried_over_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it was killed after a migration and before it had noted that."""
    path = tmp_path / "clickhouse"

    def contents(database: Database) -> list[tuple[object, ...]]:
        return query(database, "SELECT * FROM usage ORDER BY usage_id")

    def by_hour(database: Database) -> list[tuple[object, ...]]:
        return query(
            database, "SELECT hour, model, sum(requests), sum(cost_pico) FROM usage_by_hour GROUP BY hour, model"
        )

    def as_version_1_made_it(database: Database) -> None:
        execute(
            database,
            "CREATE TABLE older ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(accepted_at)"
            " ORDER BY (tenant_id, toStartOfHour(accepted_at), usage_id) AS SELECT * FROM usage_events",
        )
        execute(database, "EXCHANGE TABLES older AND usage_events")
        execute(database, "DROP TABLE older")

    with closing(Database.embedded(path)) as database, monkeypatch.context() as older:
        older.setattr("billing_jobs.store.SCHEMA_VERSION", 1)
        known_then = [column for column in rows._BATCH if column.name not in ("log_id", "presence_rows", "decisions")]
        older.setattr(rows, "_BATCH", known_then)
        older.setattr("billing_jobs.store.store_marks", lambda *_: None)
        older.setattr("billing_jobs.store.Forgetting.look", lambda *_: False)
        database.open()
        as_version_1_made_it(database)
        with closing(ClickHouseStore(database.connection())) as store:
            for _ in range(2):
                store.insert(usage_batch(0, 4), again=False)
            store.insert(usage_batch(3, 9), again=False)
        before, hours_before = contents(database), by_hour(database)
    assert len(before) == 10
    for _ in range(2):
        with closing(Database.embedded(path)) as database:
            database.open()
            assert contents(database) == before
            assert by_hour(database) == hours_before != []
            [engine] = query(database, "SELECT engine_full FROM system.tables WHERE name = 'usage_events'")
            assert str(engine[0]).startswith("ReplacingMergeTree(precedence)")
            execute(database, "TRUNCATE TABLE schema_version")
            execute(database, "INSERT INTO schema_version (version) VALUES (1)")


_CHILD = """
import sys
from contextlib import closing
from pathlib import Path
from billing_jobs.store import ClickHouseStore, Database
from tests.unit.billing_jobs.test_store import usage_batch

folder, number, again = Path(sys.argv[1]), int(sys.argv[2]), True
with closing(Database.embedded(folder)) as database:
    database.open()
    with closing(ClickHouseStore(database.connection())) as store:
        while True:
            print(number, flush=True)  # The commit: from here on batch `number` is cut.
            store.insert(usage_batch(20 * number, 20 * number + 19), again=again)
            number, again = number + 1, False
"""


@pytest.mark.long
def test_sigkill_at_any_moment_neither_loses_nor_doubles(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse"
    chance = random.Random(20251121)
    number = 0
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path), str(number)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        with child, child.stdout:
            lines = chance.randint(3, 12)
            for _ in range(lines):
                number = int(child.stdout.readline())
            time.sleep(chance.random() * 0.02)
            child.kill()
            number = max([number, *(int(line) for line in child.stdout)])
    with closing(Database.embedded(path)) as database:
        database.open()
        with closing(ClickHouseStore(database.connection())) as store:
            store.insert(usage_batch(20 * number, 20 * number + 19), again=True)
        rows = 20 * (number + 1)
        assert query(database, "SELECT count(), uniqExact(usage_id), max(log_offset) FROM usage_events") == [
            (rows, rows, rows - 1)
        ]
        assert query(database, "SELECT count(), sum(records) FROM billing_batches") == [(number + 1, rows)]
