from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from billing_jobs.store import Database

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
