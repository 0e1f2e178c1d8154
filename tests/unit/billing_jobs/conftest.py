from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from billing_jobs.queries import read_settings
from billing_jobs.store import ClickHouseStore, Connection, Database
from tests.unit.billing_jobs.internal_http import Client, http_client, reader_thread

_names = count(1)


@pytest.fixture(scope="module")
def engine_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an embedded ClickHouse that runs until the module's tests end."""
    path = tmp_path_factory.mktemp("clickhouse")
    with closing(Database.embedded(path)) as running:
        running.open()
        yield path


@pytest.fixture
def database(engine_folder: Path) -> Iterator[Database]:
    """Fresh tables in the module's engine."""
    with closing(Database.embedded(engine_folder, f"test_{next(_names)}")) as fresh:
        fresh.open()
        yield fresh


@pytest.fixture
def store(database: Database) -> ClickHouseStore:
    return ClickHouseStore(database.connection())


@pytest.fixture
async def client(database: Database, store: ClickHouseStore) -> AsyncIterator[Client]:
    def connection() -> Connection:
        return database.connection(read_settings(max_rows=100, timeout_s=60))

    with (
        closing(store),
        closing(reader_thread(connection(), "usage")) as usage,
        closing(reader_thread(connection(), "sql")) as sql,
    ):
        async with http_client(usage, sql) as http:
            yield Client(http)
