from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.unit.billing_jobs.clickhouse.interface_world import OPERATORS, Analyst, World, served


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("billing"))
    with closing(made):
        yield made


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    with served(world) as address:
        yield address


@pytest.fixture(scope="module")
def acme(world: World, url: str) -> Iterator[Analyst]:
    analyst = Analyst(url, "acme", world.keys["acme"])
    with analyst.http:
        yield analyst


@pytest.fixture(scope="module")
def operator(url: str) -> Iterator[Analyst]:
    analyst = Analyst(url, "operator", OPERATORS)
    with analyst.http:
        yield analyst
