"""Real servers for tests: one Kafka node and one redis-server per test run, started when first asked for."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from deploy.kafka_broker import KafkaNode, fetch_jars, format_command, has_jars, run_command, write_properties
from streams.provisioning import wait_for_broker
from streams.settings import KafkaSettings


def free_ports(count: int) -> list[int]:
    """Distinct free loopback ports."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def server(command: Sequence[str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process in the background; ends it on exit, by force if it does not go within 10 s."""
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def until(condition: Callable[[], object], what: str, timeout_s: float = 30, every_s: float = 0.02) -> None:
    """Waits for something that another process or thread does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(every_s)


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The broker's jars, fetched once per user."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    libs = cache / "sluice" / "kafka" / "libs"
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
    port, controller_port = free_ports(2)
    node = KafkaNode(server_directory / "kafka", kafka_libs, port, controller_port, heap_mb=256)
    write_properties(node)
    subprocess.run(format_command(node), check=True, timeout=60, capture_output=True)
    settings = KafkaSettings(bootstrap=node.bootstrap, session_timeout_ms=1_000)
    output = node.directory / "output.log"
    with server(run_command(node), output):
        try:
            wait_for_broker(settings, timeout_s=60)
        except TimeoutError as error:
            raise RuntimeError(f"the broker did not start:\n{output.read_text()[-4_000:]}") from error
        yield settings


@pytest.fixture(scope="session")
def redis_url(server_directory: Path) -> Iterator[str]:
    """A running, empty, unpersisted redis-server. Give your keys a prefix of their own, or flush."""
    directory = server_directory / "redis"
    directory.mkdir()
    [port] = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    with server(command, directory / "output.log"), redis.Redis.from_url(url) as client:
        until(answers, "redis-server answers")
        yield url
