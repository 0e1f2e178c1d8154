"""The sink over a server: what the log holds is stored there once, whatever is lost on the way."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from billing_jobs.store import ClickHouseStore, Database, StoreError
from streams.log.memory import Crashed
from tests.clickhouse_server import PASSWORD, USER, Served, clickhouse_server
from tests.unit.billing_jobs.events import compute_record, delivered_count, presence
from tests.unit.billing_jobs.sink_world import World, crash, on_commit, put_usage
from tests.unit.billing_jobs.test_store import execute, query


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    in_server: Any = ClickHouseStore(database.connection())
    with closing(in_server):
        yield World(store=in_server)


def stored(database: Database) -> list[int]:
    return query(database, "SELECT log_offset FROM usage_events ORDER BY log_offset", first_column=True)


def test_records_of_every_kind_reach_their_tables_and_poison_the_dead_letters(world: World, database: Database) -> None:
    put_usage(world, 0, 5)
    for partition, value in enumerate([b"poison", compute_record(0).encode(), delivered_count(0).encode()]):
        world.append(value, partition)
    world.append(presence().encode(), 0)
    member = world.member()
    world.steps(member)
    assert stored(database) == [0, 1, 2, 3, 4, 5]
    tables = ("compute_records", "delivered_counts", "worker_presence")
    counts = ", ".join(f"(SELECT count() FROM {table})" for table in tables)
    assert query(database, f"SELECT {counts}") == [(1, 1, 1)]
    assert len(world.dead_letters()) == 1
    assert member.sink.progress.lag_records == 0


def test_who_dies_before_the_commit_leaves_nothing_that_is_stored_twice(world: World, database: Database) -> None:
    put_usage(world, 0, 6)
    first = world.member("a")
    on_commit(first.consumer, crash(first))
    with pytest.raises(Crashed):
        world.steps(first)
    world.steps(world.member("b"))
    assert stored(database) == [0, 1, 2, 3, 4, 5, 6], "without FINAL: the server knew the tokens"


@pytest.fixture
def failing(engine_folder: Path) -> Iterator[tuple[Database, Served]]:
    """One of the tests' own, which can be told to fail."""
    with clickhouse_server(engine_folder) as (url, served):
        name = "answers_lost"
        with closing(Database.embedded(engine_folder, name)) as made:
            made.open()
            yield Database.server(f"{url}/{name}"), served


def test_an_insert_of_which_nobody_was_told_counts_once(failing: tuple[Database, Served]) -> None:
    database, served = failing
    in_server: Any = ClickHouseStore(database.connection())
    with closing(in_server):
        world = World(store=in_server)
        put_usage(world, 0, 3)
        served.answers_to_lose = 3
        member = world.member()
        world.steps(member, 100)
        assert served.answers_to_lose == 0
        assert member.sink.progress.lag_records == 0
    assert stored(database) == [0, 1, 2, 3]
    assert query(database, "SELECT requests FROM usage_by_month", first_column=True) == [4]


def test_what_a_server_refuses_is_told_by_its_code(
    failing: tuple[Database, Served],
) -> None:
    database, _ = failing
    with pytest.raises(StoreError) as unknown:
        execute(database, "SELECT * FROM nowhere")
    assert unknown.value.code == 60
    with pytest.raises(StoreError) as missing:
        execute(database, "ALTER TABLE usage_events ADD COLUMN choice UInt32")
    assert missing.value.code == 15
    assert query(database, "SELECT currentUser()") == [("default",)], "the next statement is answered"


def test_tables_that_are_not_replicated_are_not_taken_for_replicated_ones(failing: tuple[Database, Served]) -> None:
    database, _ = failing
    with closing(database.connection()) as connection, connection.client() as client:
        url = client.url.replace("http://", f"http://{USER}:{PASSWORD}@")
    with pytest.raises(StoreError, match=r"usage_events.* not replicated, and billing.clickhouse_replicated is true"):
        Database.server(f"{url}/answers_lost", replicated=True).open()
    execute(database, "CREATE DATABASE plain")
    with pytest.raises(StoreError, match="this is Atomic"):
        Database.server(f"{url}/plain", replicated=True).open()


def test_a_wrong_password_is_told(failing: tuple[Database, Served]) -> None:
    database, _ = failing
    with closing(database.connection()) as connection, connection.client() as client:
        wrong = client.url.replace("http://", f"http://{USER}:wrong@")
    with pytest.raises(StoreError) as refused:
        Database.server(f"{wrong}/answers_lost").open()
    assert refused.value.code == 516
