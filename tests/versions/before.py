"""Processes of the release before, from the wheel that lies here, beside a stack of this one."""

import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.local.plan import ProcessSpec, http_probe
from deploy.local.runner import Stack
from deploy.paths import ROOT
from tests.servers import free_ports, until

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
WHEELS = Path(__file__).parent
SET_SINCE = {"SLUICE_BILLING__ANALYSTS_PORT"}
"""What a plan sets and that release does not know: it would end at it."""

SET_OF_POOLS_SINCE = {"gpu_hour"}
"""What it sets of pools, likewise."""


@contextmanager
def release_before() -> Iterator[Path]:
    """The folder of its package, unpacked."""
    [wheel] = WHEELS.glob("*.whl")
    with TemporaryDirectory(prefix="sluice-before-") as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        yield Path(folder)


@dataclass(frozen=True)
class ProcessBefore:
    """`gateway_url`: where it is one."""

    process: "subprocess.Popen[bytes]"
    log: Path
    gateway_url: str

    def stop(self) -> None:
        """In order, as for an upgrade. What that release says of it is its own affair, but that it ends is not."""
        self.process.terminate()
        self.process.wait(timeout=STOP_TIMEOUT_S)


@contextmanager
def beside(stack: Stack, name: str, package: Path) -> Iterator[ProcessBefore]:
    """What the plan calls `name`, of the release before, under a name of its own; ready, and ended with the block."""
    [spec] = [spec for spec in stack.plan.processes if spec.name == name]
    health_port, gateway_port = free_ports(2)
    log = stack.data.logs / f"{name}-before.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            spec.command, cwd=ROOT, env=_environment(stack, spec, package, health_port, gateway_port),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        probe = http_probe("127.0.0.1", health_port)
        until(lambda: probe() is None or process.poll() is not None, f"{name} of the release before", START_TIMEOUT_S)
        assert process.poll() is None, log.read_text(errors="replace")[-2_000:]
        yield ProcessBefore(process, log, f"http://127.0.0.1:{gateway_port}")
    finally:
        process.kill()
        process.wait(timeout=STOP_TIMEOUT_S)


def _environment(stack: Stack, spec: ProcessSpec, package: Path, health_port: int, gateway_port: int) -> dict[str, str]:
    [settings] = package.glob("deploy/**/local.toml")
    identity = {
        # Its own: a release ends at settings that it does not know.
        "SLUICE_CONFIG": str(settings),
        "SLUICE_WORKER__WORKER_ID": "worker-before",
        "SLUICE_GATEWAY__GATEWAY_ID": "gateway-before",
        "SLUICE_GATEWAY__PORT": str(gateway_port),
        "SLUICE_HEALTH_PORT": str(health_port),
    }
    planned = {name: value for name, value in stack.plan.environment.items() if name not in SET_SINCE}
    pools = json.loads(planned["SLUICE_POOLS"])
    known = [{name: pool[name] for name in pool if name not in SET_OF_POOLS_SINCE} for pool in pools]
    planned["SLUICE_POOLS"] = json.dumps(known)
    return {
        **os.environ, **planned, **spec.environment, **identity,
        "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1", "TMPDIR": str(stack.data.scratch),
    }  # fmt: skip
