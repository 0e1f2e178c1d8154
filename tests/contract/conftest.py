"""Each log under contract, in turn."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contract.logs import InMemory, Log, OnKafka, new_name


@pytest.fixture(params=["memory", "kafka"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    with ExitStack() as held:
        if request.param == "memory":
            yield InMemory(held)
        else:
            yield OnKafka(held, request.getfixturevalue("kafka_settings"))


@pytest.fixture
def group() -> str:
    return new_name("group")
