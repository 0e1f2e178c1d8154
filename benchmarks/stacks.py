"""Starting what is measured: whole stacks in temporary folders, and baseline servers."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deploy.install.kafka_jars import kafka_libs
from deploy.local import guardian
from deploy.local.data_folder import DataFolder
from deploy.local.kafka_broker import (
    KafkaNode,
    bootstrap_of,
    cluster,
    copies_among,
    format_storage,
    run_command,
    write_properties,
)
from deploy.local.plan import Options
from deploy.local.ports import free_ports as local_ports
from deploy.local.runner import Stack
from deploy.local.supervisor import Guardian
from deploy.tenants_file import write_tenants
from streams.directory import Limits
from streams.log.kafka import KafkaConsumer
from streams.log.port import LogRecord
from streams.log.reading import kept_offsets, read_offsets
from streams.provisioning import wait_for_brokers
from streams.settings import KafkaSettings
from streams.toml_directory import read_tenants

ROOT = Path(__file__).resolve().parent.parent
MODEL = "sluice-tiny"
MODEL_PATH = ROOT / "models" / MODEL
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
WAKE_S = 1.0
"""After a pause, before anything is measured: timers that ran out meanwhile."""

BEYOND_REACH = Limits(
    requests_per_minute=10**9, tokens_per_minute=10**12, concurrent_responses=10**6, max_output_tokens=131_072
)
"""A benchmark measures the pipeline with quota switched on but never exhausted."""


@contextlib.contextmanager
def running_stack(options: Options) -> Iterator[Stack]:
    """A ready stack on free ports; its folder is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, Stack(Path(folder), options) as stack:
        raise_limits(stack)
        stack.wait_ready(READY_TIMEOUT_S)
        yield stack


@contextlib.contextmanager
def running_brokers(brokers: int) -> Iterator[KafkaSettings]:
    """Kafka alone, as a local stack has it with so many brokers; their folders are deleted afterwards."""
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-kafka-")))
        ports = local_ports(random.Random())
        nodes = cluster([
            KafkaNode(path, kafka_libs(Path(sys.prefix)), next(ports), next(ports))
            for path in DataFolder(folder).kafka(brokers)
        ])  # fmt: skip
        for node in nodes:
            write_properties(node)
            format_storage(node)
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            held.enter_context(process_group(run_command(node), os.environ, **quiet))
        copies, min_insync = copies_among(brokers)
        settings = KafkaSettings(
            bootstrap=bootstrap_of(nodes), replication_factor=copies, min_insync_replicas=min_insync
        )
        wait_for_brokers(settings, READY_TIMEOUT_S, brokers)
        yield settings


def stack_pids(stack: Stack) -> dict[str, int]:
    """Of its processes that run, by name."""
    return {process.name: process.pid for process in stack.processes() if process.pid is not None}


def raise_limits(stack: Stack) -> None:
    """Gives every tenant limits that no benchmark reaches, keeping its keys."""
    tenants = read_tenants(stack.data.tenants_file)
    write_tenants(stack.data.tenants_file, [tenant.model_copy(update={"limits": BEYOND_REACH}) for tenant in tenants])


def records_of(stack: Stack, topic: str, timeout_s: float) -> Iterator[LogRecord]:
    """All that the topic has now, each partition in its order. Raises LogError, also where it takes longer."""
    consumer = KafkaConsumer(stack.plan.settings.kafka, None, "benchmark")
    try:
        offsets = kept_offsets(consumer, consumer.partitions(topic))
        yield from read_offsets(consumer, offsets, time.monotonic() + timeout_s)
    finally:
        consumer.close()


def metrics_of(stack: Stack, *names: str) -> dict[str, float]:
    """Counters and gauges of these processes, of all without names, summed over processes and labels."""
    totals: dict[str, float] = {}
    for spec in stack.plan.processes:
        if spec.health_port is None or (names and spec.name not in names):
            continue
        text = httpx.get(f"http://127.0.0.1:{spec.health_port}/metrics", timeout=5, trust_env=False).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _has_ended(process: subprocess.Popen[Any]) -> bool:
    """Without reaping it: until then its pid, and so its group's, cannot be given to anybody else."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@contextlib.contextmanager
def process_group(
    command: Sequence[str], environment: Mapping[str, str], **streams: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Runs a command in a process group of its own, whose id is the pid, and ends all of the group with the block.

    vLLM's engine does not end with the server that started it. Should this very process be killed, a guardian ends
    them. `streams`: as of Popen.
    """
    guard = Guardian()
    try:
        with subprocess.Popen(command, cwd=ROOT, env=dict(environment), start_new_session=True, **streams) as process:  # noqa: S603
            guard.add(process.pid)
            try:
                yield process
            finally:
                guardian.send(process.pid, signal.SIGTERM)
                guardian.send(process.pid, signal.SIGCONT)  # a stopped one hears nothing else
                deadline_s = time.monotonic() + STOP_TIMEOUT_S
                while not _has_ended(process) and time.monotonic() < deadline_s:
                    time.sleep(0.05)
                guardian.send(process.pid, signal.SIGKILL)
                guard.remove(process.pid)
    finally:
        guard.close()


@contextlib.contextmanager
def baseline_server(command: list[str], url: str, environment: Mapping[str, str], path: str) -> Iterator[int]:
    """Runs a server until it answers on `path`, gives its process group, and ends it afterwards."""
    with process_group(command, environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url + path, timeout=2, trust_env=False).status_code < 500:
                    break
            if _has_ended(process) or time.monotonic() > deadline_s:
                raise RuntimeError(f"the baseline did not start: {command}")
            time.sleep(0.2)
        yield process.pid


@contextlib.contextmanager
def thin_server(engine_args: Mapping[str, bool | int | float | str]) -> Iterator[tuple[str, int]]:
    """The address and the process of a thin server before a simulated engine (`thin_server.py`)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [str(port), str(MODEL_PATH), json.dumps(dict(engine_args))]
    command = [sys.executable, "-m", "benchmarks.thin_server", *arguments]
    with baseline_server(command, url, os.environ, "/docs") as pid:
        yield url, pid


class Turns:
    """Of several baseline servers only the one whose turn it is runs; the others are stopped (SIGSTOP)."""

    def __init__(self, groups: Mapping[str, int]) -> None:
        """`groups`: each server's process group. They go on when this is left."""
        self._groups = groups

    def __enter__(self) -> Self:
        for group in self._groups.values():
            guardian.send(group, signal.SIGSTOP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for group in self._groups.values():
            guardian.send(group, signal.SIGCONT)

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        guardian.send(self._groups[name], signal.SIGCONT)
        try:
            time.sleep(WAKE_S)
            yield
        finally:
            guardian.send(self._groups[name], signal.SIGSTOP)
