"""Real servers for tests: one Kafka node and one redis-server per test run, started when first asked for."""

import gc
import logging
import os
import shutil
import ssl
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings

from deploy.install.kafka_jars import fetch_jars, has_jars
from deploy.install.kafka_jars import kafka_libs as in_environment
from streams.settings import KafkaSettings
from tests.postgres import cluster, why_not
from tests.servers import new_kafka_node, redis_server, running

# No test depends on how fast the machine is.
settings.register_profile("sluice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sluice")

gc.disable()


def pytest_collection_finish() -> None:
    """What was imported for all tests stays for good: to look for garbage in it, again and again, takes minutes."""
    gc.collect()
    gc.freeze()
    gc.enable()


VARIABLES = {name: value for name, value in os.environ.items() if name.startswith("SLUICE_")}


@pytest.fixture(scope="session", autouse=True)
def certificates_are_loaded_once() -> Iterator[None]:
    """Each client of httpx loads all that it might check servers by, which takes longer than most answers."""
    load = httpx.create_ssl_context

    @cache
    def of_everybody(trust_env: bool) -> ssl.SSLContext:
        return load(trust_env=trust_env)

    def once(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        return of_everybody(trust_env) if verify is True and cert is None else load(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("httpx._transports.default.create_ssl_context", once)
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Undoes what a test configures: the standard output that pytest lends it is closed after it."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
        root.setLevel(level)
        root.handlers[:] = handlers


@pytest.fixture(autouse=True)
def variables_as_they_were() -> Iterator[None]:
    """What one test leaves in the environment, every later one would read as settings of an operator's own."""
    yield
    left = {name: value for name, value in os.environ.items() if name.startswith("SLUICE_")}
    assert left == VARIABLES, "left in the environment"


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The broker's jars, those of the environment."""
    libs = in_environment(Path(sys.prefix))
    if not has_jars(libs):
        fetch_jars(libs)
    return libs


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """A short path: unix sockets live below it."""
    directory = Path(tempfile.mkdtemp(prefix="sluice-"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def kafka_settings(kafka_libs: Path, server_directory: Path) -> Iterator[KafkaSettings]:
    """Settings of a running broker without topics. Give your topics and groups names of their own."""
    node = new_kafka_node(server_directory / "kafka", kafka_libs)
    with running(node) as (settings, _process):
        yield settings


@pytest.fixture(scope="session")
def postgres_url(server_directory: Path) -> Iterator[str]:
    """A running Postgres, whose one database the tests share. Skips where it is not installed."""
    if (why := why_not()) is not None:
        pytest.skip(why)
    server_directory.chmod(0o755)
    with cluster(server_directory / "postgres") as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(server_directory: Path) -> Iterator[str]:
    """A running, empty, unpersisted redis-server. Give your keys a prefix of their own, or flush."""
    with redis_server(server_directory / "redis") as (url, _process):
        yield url
