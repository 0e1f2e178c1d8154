"""The databases that stores are held against: SQLite in a folder, and a Postgres of the tests' own."""

from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import delete

from streams.metadata.database import Database
from streams.metadata.engine import engine_of
from streams.metadata.schema import migrate
from streams.metadata.tables import METADATA
from streams.settings import MetadataSettings

KINDS: Final = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.long)]
"""Parameters of a fixture; where Postgres is not installed those on it are skipped by name."""


def database_in(folder: Path, url: str = "", *, busy_timeout_ms: int = 20_000) -> Database:
    """An empty one, which waits for nobody's disk."""
    chosen = MetadataSettings(url=url, busy_timeout_ms=busy_timeout_ms, statement_timeout_ms=20_000)
    migrate(chosen, folder)
    if url:
        engine = engine_of(chosen, folder)
        with engine.begin() as connection:
            for table in METADATA.sorted_tables:
                connection.execute(delete(table))
        engine.dispose()
    return Database(chosen, folder)


def url_of(request: pytest.FixtureRequest) -> str:
    """Of the database that a fixture's parameter names; empty: SQLite."""
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else ""
