"""Where the packages of others are installed, apart from ours and in exact versions, and how their scripts are run."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Any

from benchmarks.environments import NotInstalled, node_packages, python_with

CLIENTS = Path(__file__).parent / "clients"
REQUIREMENTS = Path(__file__).parent / "requirements"
NODE = "node"
DEADLINE_S = 120.0
"""Of all that a script does, with loading the package on a machine that has much else to do."""
_QUIET = {
    "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false",
    "AI_SDK_LOG_WARNINGS": "false",
}  # fmt: skip
"""Nothing is told to those who made the packages."""

Seen = Mapping[str, Mapping[str, Any]]
"""By ability: what its function returned (`seen`), or how it failed (`failed`)."""


def run_client(environment: str, script: str, settings: Mapping[str, str], home: Path) -> Seen:
    """What a script saw where the environment's packages are installed, and nothing of ours is.

    Raises NotInstalled.
    """
    command, text, folder = _node(script) if environment == NODE else _python(environment, script, home)
    done = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **_QUIET, **settings},
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


def _python(environment: str, script: str, home: Path) -> tuple[list[str], str, Path]:
    requirements = REQUIREMENTS / f"{environment}.txt"
    arguments = ["--require-hashes", "--only-binary", ":all:", "-r", str(requirements)]
    python = python_with(f"conformance/{environment}", arguments, locked=requirements.read_text())
    return [str(python), "-I", str(CLIENTS / "run.py"), script], "", home


def _node(script: str) -> tuple[list[str], str, Path]:
    """A script comes as standard input, because Node looks for packages beside what it runs."""
    if which("node") is None:
        raise NotInstalled("there is no node")
    folder = node_packages(f"conformance/{NODE}", REQUIREMENTS / NODE)
    text = (CLIENTS / f"{script}.mjs").read_text() + (CLIENTS / "run.mjs").read_text()
    return ["node", "--input-type=module"], text, folder
