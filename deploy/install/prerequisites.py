"""What a machine must have before anything is fetched: looked at all at once, and told in one list.

Programs of the operating system come through apt where that is allowed without a password. Standard library only.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.install.commands import BootstrapError, Progress, run, works

OLDEST_JAVA = 17
GIB = 2**30
NEEDED_DISK_BYTES = {"light": 3 * GIB, "cpu": 9 * GIB, "gpu": 14 * GIB}
"""Of what is installed, what it is unpacked from, and a first run's data."""


@dataclass(frozen=True)
class SystemPackage:
    """A program of the operating system, and the Debian packages that may bring it, best first."""

    program: str
    debian: tuple[str, ...]
    what: str
    is_there: Callable[[], bool] | None = None

    def missing(self) -> bool:
        return not (shutil.which(self.program) is not None if self.is_there is None else self.is_there())


def java_major(version_output: str) -> int | None:
    """`17` from what `java -version` prints; also understands the old `1.8`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _has_java() -> bool:
    if shutil.which("java") is None:
        return False
    return (java_major(run(["java", "-version"], quiet=True)) or 0) >= OLDEST_JAVA


def _has_venv() -> bool:
    return works([sys.executable, "-c", "import ensurepip, venv"])


JAVA = SystemPackage(
    "java",
    ("openjdk-21-jre-headless", "openjdk-17-jre-headless", "default-jre-headless"),
    f"Java {OLDEST_JAVA} or newer",
    _has_java,
)
MAVEN = SystemPackage("mvn", ("maven",), "Maven")
REDIS = SystemPackage("redis-server", ("redis-server",), "Redis server")
PYTHON_VENV = SystemPackage(
    "",
    (f"python{sys.version_info.major}.{sys.version_info.minor}-venv", "python3-venv"),
    "Python's venv module",
    _has_venv,
)
# The driver comes first: it brings the browser of its own version along.
BROWSER = SystemPackage(
    "chromedriver", ("chromium-driver",), "Chromium with its driver, for the tests of the chat page"
)


POSTGRES = SystemPackage(
    "postgres", ("postgresql",), "Postgres, for the tests of the tables in it", lambda: postgres_programs() is not None
)
"""The tests start a server of their own; one that the package starts they leave alone."""


def postgres_programs(debians: Path = Path("/usr/lib/postgresql")) -> Path | None:
    """The folder of `initdb` and `postgres`, of the newest version: Debian has them outside of the path. None where
    they are not installed.
    """
    versions = [folder for folder in debians.glob("*/bin") if folder.parent.name.isdecimal()]
    found = sorted(versions, key=lambda folder: int(folder.parent.name), reverse=True)
    if (on_path := shutil.which("initdb")) is not None:
        found.append(Path(on_path).resolve().parent)
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def too_little_disk(folder: Path, needed_bytes: int, free_bytes: int) -> str | None:
    if free_bytes >= needed_bytes:
        return None
    return f"{needed_bytes / GIB:.0f} GB of free disk at {folder}, of which there are {free_bytes / GIB:.1f}"


class System:
    """Programs of the operating system, installed through apt where that is allowed."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._updated = False

    def need(self, packages: Sequence[SystemPackage], other: Sequence[str] = ()) -> None:
        """All of them, or a BootstrapError that lists all that is missing, `other` included, and how to get it."""
        missing = [package for package in packages if package.missing()]
        prefix = self._prefix()
        if missing and not other and prefix is not None:
            self._install(prefix, missing)
            missing = [package for package in missing if package.missing()]
        if missing or other:
            raise BootstrapError(_list_of(missing, other))

    def want(self, package: SystemPackage) -> None:
        """As `need`, for what one can do without: then it says what is left out."""
        try:
            self.need([package])
        except BootstrapError as error:
            print(f"bootstrap: {error}\n(going on without it)", file=sys.stderr, flush=True)

    def _prefix(self) -> list[str] | None:
        if shutil.which("apt-get") is None:
            return None
        if os.geteuid() == 0:
            return []
        return ["sudo", "-n"] if works(["sudo", "-n", "true"]) else None

    def _install(self, prefix: list[str], packages: Sequence[SystemPackage]) -> None:
        for attempt in ("with the present package index", "with a new one"):
            names = [name for package in packages if (name := self._candidate(package)) is not None]
            if len(names) == len(packages):
                try:
                    with self._progress.step(f"System packages {', '.join(names)}"):
                        self._apt(prefix, "install", "-y", "--no-install-recommends", *names)
                except BootstrapError as error:
                    print(f"  not {attempt} ({str(error).splitlines()[-1]})", flush=True)
                else:
                    return
            if not self._updated:
                with self._progress.step("System package index"):
                    self._apt(prefix, "update")
                self._updated = True

    def _candidate(self, package: SystemPackage) -> str | None:
        for name in package.debian:
            output = run(["apt-cache", "policy", name], env={**os.environ, "LC_ALL": "C"}, quiet=True)
            match = re.search(r"Candidate: (\S+)", output)
            if match is not None and match[1] != "(none)":
                return name
        return None

    def _apt(self, prefix: list[str], *words: str) -> None:
        run(
            [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "Dpkg::Use-Pty=0", *words],
            quiet=True,
        )


def _list_of(missing: Sequence[SystemPackage], other: Sequence[str]) -> str:
    lines = ["this is missing:", *(f"  - {package.what}" for package in missing), *(f"  - {each}" for each in other)]
    if missing:
        names = " ".join(package.debian[-1] for package in missing)
        lines.append(f"install it, for instance: sudo apt-get install {names}")
    return "\n".join(lines)
