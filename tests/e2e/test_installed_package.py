"""Sluice as somebody has it who installed the package and has no checkout: started beside itself, asked, stopped."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.data_folder import DataFolder

ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 300
COMMAND_TIMEOUT_S = 120

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(INSTALL_TIMEOUT_S + 5 * COMMAND_TIMEOUT_S)]

Sluice = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package alone; what it depends on comes from this environment."""
    folder = tmp_path_factory.mktemp("site")
    tools = ROOT / "deploy" / "install" / "requirements" / "build.txt"
    environment = dict(os.environ)
    if "PIP_INDEX_URL" in environment:  # uv does not read pip's variable
        environment.setdefault("UV_DEFAULT_INDEX", environment["PIP_INDEX_URL"])
    subprocess.run(
        [Path(sys.prefix) / "bin" / "uv", "pip", "install", "--no-config", "--quiet", "--no-deps", "--target", folder,
         "--build-constraints", tools, ROOT],
        env=environment, timeout=INSTALL_TIMEOUT_S, check=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def sluice(installed: Path, tmp_path: Path) -> Iterator[Sluice]:
    settings = (installed / "deploy" / "local" / "local.toml").read_text()
    (tmp_path / "settings.toml").write_text(settings.replace('"models/', f'"{ROOT}/models/'))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    environment |= {"PYTHONPATH": str(installed), "SLUICE_CONFIG": "settings.toml"}

    def run(*words: str, timeout_s: float = COMMAND_TIMEOUT_S) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "deploy.cli", *words, "--data", str(tmp_path / "data")]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    yield run
    run("down")


def test_it_runs_where_there_is_no_checkout_and_leaves_no_key_in_a_log(sluice: Sluice, tmp_path: Path) -> None:
    started = sluice("up", "--engine", "sim", "--free-ports", "--detach")
    assert started.returncode == 0, started.stderr
    data = DataFolder(tmp_path / "data")
    keys = [*data.keys().api_keys.values(), data.keys().deployment_secret]
    assert data.keys().api_keys["demo"] in started.stdout, "whoever starts it is shown the key"
    logs = "".join(log.read_text(errors="replace") for log in data.logs.iterdir())
    assert [key for key in keys if key in logs or key in started.stderr] == []

    asked = sluice("chat", "What is the capital of France?", "--max-tokens", "8")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.strip()
    shown = sluice("status", "--json")
    assert shown.returncode == 0, shown.stderr
    assert {process["state"] for process in json.loads(shown.stdout)["processes"]} == {"ready"}

    stopped = sluice("down")
    assert stopped.returncode == 0, stopped.stderr
    assert sluice("status").returncode == 1
