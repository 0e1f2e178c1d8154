"""Each log under contract, in turn."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from streams.settings import KafkaSettings
from tests.contract.logs import InMemory, Log, OnKafka, new_name


@pytest.fixture(scope="session")
def kafka_settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    """Nobody is killed here: a member stays one however long its process is held up, and hears of balances at once."""
    at_once = {"heartbeat.interval.ms": "100"}
    return kafka_settings.model_copy(update={"session_timeout_ms": 60_000, "extra": at_once})


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
