"""The tables in a server, reached as billing reaches one: over HTTP, by the same client, with the same settings."""

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import clickhouse_connect
import pytest

from billing_jobs.store import Database
from tests.clickhouse_server import ADDRESS_VARIABLE, clickhouse_server

_names = count(1)


@pytest.fixture(scope="module")
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of the server that the environment names, or of one that tests serve themselves."""
    if address := os.environ.get(ADDRESS_VARIABLE):
        yield address.rstrip("/")
        return
    with clickhouse_server(request.getfixturevalue("engine_folder")) as (url, _):
        yield url


@pytest.fixture
def database(server_url: str) -> Iterator[Database]:
    """Fresh tables in that server, in the place of those in the module's engine."""
    name = f"sluice_test_{os.getpid()}_{next(_names)}"
    with closing(clickhouse_connect.get_client(dsn=server_url, autogenerate_session_id=False)) as client:
        client.command(f"CREATE DATABASE {name}")
        try:
            with closing(Database.server(f"{server_url}/{name}")) as fresh:
                fresh.open()
                yield fresh
        finally:
            client.command(f"DROP DATABASE {name}")
