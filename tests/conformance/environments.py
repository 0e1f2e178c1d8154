"""Where the packages of others are installed, apart from ours and in exact versions, and how their scripts are run."""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from benchmarks.environments import NotInstalled, go_main, jars, node_packages, python_with

CLIENTS = Path(__file__).parent / "clients"
REQUIREMENTS = Path(__file__).parent / "requirements"
NODE, OURS = "node", "ours"
"""Beside those of `requirements/`: Node's packages, and what Sluice is installed with itself."""
CLICKHOUSE_NODE, CLICKHOUSE_GO, CLICKHOUSE_JDBC = "clickhouse-node", "clickhouse-go", "clickhouse-jdbc"
"""ClickHouse's own clients, each for its language alone."""
WITHOUT_TORCH = ("guidellm",)
DEADLINE_S = 900.0
"""Of all that a script does, with loading the package on a machine that has much else to do."""
_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false",
    "AI_SDK_LOG_WARNINGS": "false", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
"""Nothing is told to those who made the packages, and nothing fetched of them."""

Seen = Mapping[str, Mapping[str, Any]]
"""By ability: what its function returned (`seen`), or how it failed (`failed`)."""


def run_client(
    environment: str, script: str, settings: Mapping[str, str], home: Path, abilities: Collection[str] = ()
) -> Seen:
    """What a script saw where the environment's packages are installed; but for `ours`, nothing of ours is.
    `abilities`: those of a Python script that are tried; none named: all.

    Raises NotInstalled.
    """
    if environment in (NODE, CLICKHOUSE_NODE):
        command, text, folder = _node(environment, script)
    elif environment == CLICKHOUSE_GO:
        command, text, folder = _go(environment, script), "", home
    elif environment == CLICKHOUSE_JDBC:
        command, text, folder = _java(environment, script), "", home
    else:
        command, text, folder = _python(environment, script, abilities, home)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    done = subprocess.run(
        command,
        env=environ | _QUIET | _lent(environment) | dict(settings),
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    seen: Seen = json.loads(done.stdout.splitlines()[-1])
    return seen


def _python(environment: str, script: str, abilities: Collection[str], home: Path) -> tuple[list[str], str, Path]:
    python = _ours() if environment == OURS else _installed(environment)
    return [str(python), "-I", str(CLIENTS / "run.py"), script, *abilities], "", home


def _ours() -> Path:
    if find_spec("vllm") is None:
        raise NotInstalled("Sluice is installed without vLLM")
    return Path(sys.executable)


def _lent(environment: str) -> dict[str, str]:
    """Where a package finds the torch that is installed beside Sluice: one of its own would be several GB.

    Raises NotInstalled.
    """
    if environment not in WITHOUT_TORCH:
        return {}
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        raise NotInstalled("Sluice is installed without torch")
    return {"TORCH_PATH": str(Path(torch.origin).parents[1])}


def _installed(environment: str) -> Path:
    requirements = REQUIREMENTS / f"{environment}.txt"
    arguments = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(requirements)]
    return python_with(f"conformance/{environment}", arguments, locked=requirements.read_text())


def _node(environment: str, script: str) -> tuple[list[str], str, Path]:
    """A script comes as standard input, because Node looks for packages beside what it runs."""
    if which("node") is None:
        raise NotInstalled("there is no node")
    folder = node_packages(f"conformance/{environment}", REQUIREMENTS / environment)
    text = (CLIENTS / f"{script}.mjs").read_text() + (CLIENTS / "run.mjs").read_text()
    return ["node", "--input-type=module"], text, folder


def _go(environment: str, script: str) -> list[str]:
    locked = [REQUIREMENTS / environment / file for file in ("go.mod", "go.sum")]
    return [str(go_main(f"conformance/{environment}", [*locked, CLIENTS / f"{script}.go"]))]


def _java(environment: str, script: str) -> list[str]:
    """Java compiles a program of one file as it starts it."""
    if which("java") is None:
        raise NotInstalled("there is no java")
    folder = jars(f"conformance/{environment}", REQUIREMENTS / environment)
    return ["java", "-cp", f"{folder}/*", str(CLIENTS / f"{script}.java")]
