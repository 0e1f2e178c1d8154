"""Real servers and waiting, for tests."""

import signal
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis

from deploy.local.kafka_broker import (
    KafkaNode,
    bootstrap_of,
    cluster,
    copies_among,
    format_storage,
    run_command,
    write_properties,
)
from streams.provisioning import wait_for_brokers
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
    """Runs a process in the background and kills it on exit: nothing that it holds is needed any more."""
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=60)


def until(condition: Callable[[], object], what: str, timeout_s: float = 60, every_s: float = 0.02) -> None:
    """Waits for something that another process or thread does."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(every_s)


@contextmanager
def redis_server(directory: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A running, empty, unpersisted redis-server: its address and its process."""
    directory.mkdir()
    [port] = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    with server(command, directory / "output.log") as process, redis.Redis.from_url(url) as client:
        until(answers, "redis-server answers")
        yield url, process


def new_kafka_node(directory: Path, libs: Path) -> KafkaNode:
    """A formatted node on free ports, not running yet."""
    port, controller_port = free_ports(2)
    return _formatted(KafkaNode(directory, libs, port, controller_port, heap_mb=256))


def _formatted(node: KafkaNode) -> KafkaNode:
    write_properties(node)
    format_storage(node)
    return node


def new_kafka_cluster(directory: Path, libs: Path, brokers: int) -> list[KafkaNode]:
    """Formatted nodes of one cluster on free ports, not running yet."""
    ports = free_ports(2 * brokers)
    nodes = [
        KafkaNode(directory / f"kafka-{number}", libs, ports[2 * number], ports[2 * number + 1])
        for number in range(brokers)
    ]
    return [_formatted(node) for node in cluster(nodes)]


@contextmanager
def running_cluster(nodes: Sequence[KafkaNode]) -> Iterator[tuple[KafkaSettings, list[subprocess.Popen[bytes]]]]:
    """Runs them until each knows of all, and kills them at the end. Consumers' sessions are short."""
    copies, min_insync = copies_among(len(nodes))
    settings = KafkaSettings(
        bootstrap=bootstrap_of(nodes), session_timeout_ms=1_000, replication_factor=copies,
        min_insync_replicas=min_insync,
    )  # fmt: skip
    with ExitStack() as held:
        outputs = [node.directory / "output.log" for node in nodes]
        processes = [
            held.enter_context(server(run_command(node), output)) for node, output in zip(nodes, outputs, strict=True)
        ]
        try:
            wait_for_brokers(settings, 120, len(nodes))
        except TimeoutError as error:
            said = "\n".join(output.read_text()[-4_000:] for output in outputs)
            raise RuntimeError(f"a broker did not start:\n{said}") from error
        yield settings, processes


@contextmanager
def running(node: KafkaNode) -> Iterator[tuple[KafkaSettings, subprocess.Popen[bytes]]]:
    """A node alone."""
    with running_cluster([node]) as (settings, [process]):
        yield settings, process


@contextmanager
def proxy_of_the_environment(environment: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What programs tell the proxy that the environment names. It answers nothing."""
    told: list[bytes] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            told.append(self.request.recv(65_536))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            for spelt in (name, name.upper()):
                environment.delenv(spelt, raising=False)
                if name != "no_proxy":
                    environment.setenv(spelt, f"http://127.0.0.1:{proxy.server_address[1]}")
        try:
            yield told
        finally:
            proxy.shutdown()
            thread.join(timeout=10)


def hear_interrupts() -> None:
    """For `preexec_fn`: a shell that runs the tests in the background has every child ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
