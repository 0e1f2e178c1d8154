from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from billing_jobs.store import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An embedded ClickHouse of its own; one process can hold one at a time."""
    with closing(Database.embedded(tmp_path / "clickhouse")) as embedded:
        embedded.open()
        yield embedded
