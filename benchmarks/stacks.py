"""Starting what is measured: whole stacks in temporary folders, and baseline servers."""

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from deploy.plan import Options
from deploy.runner import Stack
from deploy.tenants_file import write_tenants
from streams.directory import Limits
from streams.toml_directory import read_tenants

ROOT = Path(__file__).resolve().parent.parent
MODEL = "sluice-tiny"
MODEL_PATH = ROOT / "models" / MODEL
READY_TIMEOUT_S = 300.0

BEYOND_REACH = Limits(
    requests_per_minute=10**9, tokens_per_minute=10**12, concurrent_responses=10**6, max_output_tokens=131_072
)
"""A benchmark measures the pipeline with quota switched on but never exhausted."""


@contextlib.contextmanager
def running_stack(options: Options) -> Iterator[Stack]:
    """A ready stack on free ports; its folder is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, Stack(Path(folder), options, seed=1) as stack:
        raise_limits(stack)
        stack.wait_ready(READY_TIMEOUT_S)
        yield stack


def raise_limits(stack: Stack) -> None:
    """Gives every tenant limits that no benchmark reaches, keeping its keys."""
    tenants = read_tenants(stack.data.tenants_file)
    write_tenants(stack.data.tenants_file, [tenant.model_copy(update={"limits": BEYOND_REACH}) for tenant in tenants])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def baseline_server(command: list[str], url: str, environment: Mapping[str, str], path: str) -> Iterator[int]:
    """Runs a server until it answers on `path`, gives its pid, and ends it afterwards."""
    process = subprocess.Popen(  # noqa: S603
        command, cwd=ROOT, env=dict(environment), stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    try:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(url + path, timeout=2).status_code < 500:
                    break
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the baseline did not start: {command}")
            time.sleep(0.2)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
