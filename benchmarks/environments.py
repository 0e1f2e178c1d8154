"""What benchmarks and tests need of others beside Sluice, apart from it under `.data/`: none of it is a dependency.

It is installed once, and anew when something else is asked for; its folder can be deleted at any time.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.install.kafka_jars import WrongJars, check, fetch_command
from deploy.paths import ROOT

FOLDER = ROOT / ".data"
INSTALL_TIMEOUT_S = 1_200


class NotInstalled(Exception):
    """Why it could not be."""


def python_with(name: str, pip_arguments: Sequence[str], *, locked: str = "") -> Path:
    """The Python of a virtual environment that has what `pip install` is asked for. Raises NotInstalled.

    `locked`: the text of the requirements files among the arguments.
    """
    folder = FOLDER / name
    python = folder / "bin" / "python"

    def install() -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *pip_arguments])

    _once(folder, [sys.version, *pip_arguments, locked], install)
    return python


def go_program(name: str, module: str, version: str) -> Path:
    """The program in the top folder of a module, built there: `go install` wants a list of all versions, which not
    every proxy has. Raises NotInstalled.
    """
    folder = FOLDER / name
    program = folder / "program"

    def install() -> None:
        settings = _go_settings(folder)
        downloaded = json.loads(_run(["go", "mod", "download", "-json", f"{module}@{version}"], settings))
        _run(["go", "-C", downloaded["Dir"], "build", "-o", str(program), "."], settings)
        _forget_caches(settings)

    _once(folder, [module, version], install)
    return program


def go_main(name: str, sources: Sequence[Path]) -> Path:
    """The program of a module of ours: its go.mod, go.sum and files. Raises NotInstalled."""
    folder = FOLDER / name
    program = folder / "program"

    def install() -> None:
        for source in sources:
            shutil.copy(source, folder)
        settings = _go_settings(folder)
        _run(["go", "-C", str(folder), "build", "-mod=readonly", "-o", str(program), "."], settings)
        _forget_caches(settings)

    _once(folder, [source.read_text() for source in sources], install)
    return program


def jars(name: str, locked: Path) -> Path:
    """The folder with the jars that `locked` names, a folder with pom.xml and checksums.txt. Raises NotInstalled."""
    folder = FOLDER / name
    pom, checksums = locked / "pom.xml", (locked / "checksums.txt").read_text()

    def install() -> None:
        _run(fetch_command(folder, pom))
        try:
            check(folder, checksums)
        except WrongJars as error:
            raise NotInstalled(str(error)) from None

    _once(folder, [pom.read_text(), checksums], install)
    return folder


def node_packages(name: str, locked: Path) -> Path:
    """A folder in which Node finds what `locked` names, a folder with package.json and package-lock.json.

    Raises NotInstalled.
    """
    folder = FOLDER / name
    files = [locked / file for file in ("package.json", "package-lock.json")]

    def install() -> None:
        for file in files:
            shutil.copy(file, folder)
        _run(["npm", "--prefix", str(folder), "ci", "--ignore-scripts", "--no-audit", "--no-fund"])

    _once(folder, [file.read_text() for file in files], install)
    return folder


def _go_settings(folder: Path) -> dict[str, str]:
    # What Go downloads is read-only otherwise, and could not be deleted.
    flags = f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip()
    caches = {"GOMODCACHE": str(folder / "modules"), "GOCACHE": str(folder / "build")}
    return {**caches, "GOFLAGS": flags, "GOTOOLCHAIN": "local"}


def _forget_caches(settings: Mapping[str, str]) -> None:
    for name in ("GOMODCACHE", "GOCACHE"):
        shutil.rmtree(settings[name], ignore_errors=True)


def _once(folder: Path, asked_for: Sequence[str], install: Callable[[], None]) -> None:
    stamp = folder / "installed.json"
    content = json.dumps(asked_for)
    if stamp.is_file() and stamp.read_text() == content:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    install()
    stamp.write_text(content)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What it prints. Raises NotInstalled."""
    try:
        done = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, **(environment or {})},
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if done.returncode:
        why = done.stderr.strip().splitlines() or ["no word of why"]
        raise NotInstalled(f"{' '.join(command[:4])}: {why[-1]}")
    return done.stdout
