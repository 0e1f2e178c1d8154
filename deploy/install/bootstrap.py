"""Brings a bare machine to the point where `sluice up` can run: `python3 -m deploy.install.bootstrap`.

Standard library only, because it runs before anything is installed. Every step is skipped when what it would produce is
there, so a second run fetches nothing. Linux; Python 3.11 to 3.13.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.install.commands import COMMAND_TIMEOUT_S, BootstrapError, Progress, run, works
from deploy.install.kafka_jars import WrongJars, fetch_jars, has_jars, kafka_libs
from deploy.install.prerequisites import (
    BROWSER,
    JAVA,
    MAVEN,
    NEEDED_DISK_BYTES,
    POSTGRES,
    PYTHON_VENV,
    REDIS,
    System,
    SystemPackage,
    too_little_disk,
)
from deploy.local.folders import write_atomically
from deploy.paths import ROOT

VENV = ROOT / ".venv"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
LOCK_TIMEOUT_S = 3_600
STAMP = VENV / "sluice-installed.json"
BUILD_TOOLS = REQUIREMENTS / "build.txt"
PROFILES = ("light", "cpu", "gpu")


def inputs_digest(files: Sequence[Path], python: str) -> str:
    """Changes when any of the files or the Python version does."""
    digest = hashlib.sha256(python.encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def effective_profile(requested: str, stamp: Mapping[str, str]) -> str:
    """`cpu` and `gpu` hold all of `light`: where one of them is installed, it is kept up to date instead."""
    heavier = [name for name in ("gpu", "cpu") if name in stamp]
    return heavier[0] if requested == "light" and heavier else requested


def stamped(stamp: Mapping[str, str], installed: Mapping[str, str]) -> dict[str, str]:
    """The stamp (set of packages to digest) after `installed`; one profile replaces another, `dev` stands beside it."""
    profile = any(name in PROFILES for name in installed)
    return {**{name: digest for name, digest in stamp.items() if not (profile and name in PROFILES)}, **installed}


def default_profile() -> str:
    """`gpu` where an NVIDIA driver answers, else `cpu`."""
    return "gpu" if works(["nvidia-smi", "-L"]) else "cpu"


def need_virtualenv(progress: Progress) -> Path:
    """The environment's Python."""
    python = VENV / "bin" / "python"
    if python.exists() and works([str(python), "-c", ""]):
        return python
    with progress.step("Python environment .venv"):
        run([sys.executable, "-m", "venv", "--clear", VENV], quiet=True)
    return python


def need_uv(progress: Progress, python: Path) -> Path:
    """uv of the pinned version, inside the environment."""
    uv = VENV / "bin" / "uv"
    pinned = re.search(r"^uv==(\S+)", (REQUIREMENTS / "uv.txt").read_text(), re.MULTILINE)
    assert pinned is not None, "uv.txt pins uv"
    if uv.exists() and run([uv, "--version"], quiet=True).split()[1:2] == [pinned[1]]:
        return uv
    with progress.step(f"uv {pinned[1]}"):
        if not works([str(python), "-m", "pip", "--version"]):
            run([python, "-m", "ensurepip"], quiet=True)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps",
             "-r", REQUIREMENTS / "uv.txt"], quiet=True)  # fmt: skip
    return uv


@dataclass(frozen=True)
class Packages:
    """The sets of locked packages that are not installed as they are wanted, and the stamp that says what is."""

    profile: str
    stamp: Mapping[str, str]
    wanted: Mapping[str, str]

    @property
    def missing(self) -> list[str]:
        return [name for name, digest in self.wanted.items() if self.stamp.get(name) != digest]


def read_stamp() -> dict[str, str]:
    """Empty where nothing is known of what is installed: then it is installed again, which costs time alone."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def packages_of(profile: str, *, dev: bool) -> Packages:
    stamp = read_stamp()
    # The environment has this Python's version: it is made by it.
    version = ".".join(map(str, sys.version_info[:2]))
    profile = effective_profile(profile, stamp)
    names = [profile, *(["dev"] if dev else [])]
    files = {name: [REQUIREMENTS / f"{name}.txt", BUILD_TOOLS, ROOT / "pyproject.toml"] for name in names}
    return Packages(profile, stamp, {name: inputs_digest(files[name], version) for name in names})


def need_packages(progress: Progress, python: Path, packages: Packages) -> None:
    """The locked packages of a profile and the project itself, in the environment."""
    if not packages.missing:
        return
    uv = need_uv(progress, python)
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": str(VENV)}
    if "PIP_INDEX_URL" in env and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & env.keys():
        env["UV_DEFAULT_INDEX"] = env["PIP_INDEX_URL"]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    for name in packages.missing:
        requirements = REQUIREMENTS / f"{name}.txt"
        count = sum(1 for line in requirements.read_text().splitlines() if re.match(r"^[A-Za-z0-9]", line))
        size = "" if name not in ("cpu", "gpu") else ", several GB with torch"
        with progress.step(f"{count} Python packages of {requirements.relative_to(ROOT)}{size}"):
            # --no-config: the overrides in pyproject.toml cannot be combined with --require-hashes.
            # What has no wheel for this machine is built, by tools that are locked like all else.
            run(
                [uv, "pip", "install", *quiet, "--no-config", "--no-deps", "--require-hashes",
                 "--build-constraints", BUILD_TOOLS, "-r", requirements],
                env=env,
            )  # fmt: skip
    with progress.step("Sluice itself"):
        run([uv, "pip", "install", "--no-config", "--quiet", "--no-deps", "-e", "."], env=env)
    installed = {name: packages.wanted[name] for name in packages.missing}
    write_atomically(STAMP, json.dumps(stamped(packages.stamp, installed)))


def need_kafka(progress: Progress) -> None:
    """Kafka's jars, whole or not at all."""
    libs = kafka_libs(VENV)
    if has_jars(libs):
        return
    with progress.step("Kafka's jars, 44 MB"):
        try:
            fetch_jars(libs, timeout_s=COMMAND_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            raise BootstrapError(f"Maven could not fetch Kafka:\n{error.stdout}") from None
        except WrongJars as error:
            raise BootstrapError(f"Maven fetched something else than Kafka: {error}") from None


@contextmanager
def locked(folder: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """One bootstrap at a time; the kernel frees the lock when its process ends. Raises BootstrapError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    deadline_s = time.monotonic() + timeout_s
    told = False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    print(f"bootstrap: waiting for another one in {folder}", file=sys.stderr, flush=True)
                told = True
                if time.monotonic() > deadline_s:
                    raise BootstrapError(f"another one in {folder} has not ended after {timeout_s:g} s") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def prerequisites(packages: Packages, *, services: bool) -> tuple[list[SystemPackage], list[str]]:
    """What must be there before anything is fetched: programs of the system, and what no package brings."""
    programs = [] if (VENV / "bin" / "python").exists() else [PYTHON_VENV]
    if services:
        programs += [JAVA, REDIS, *([] if has_jars(kafka_libs(VENV)) else [MAVEN])]
    disk = too_little_disk(ROOT, NEEDED_DISK_BYTES[packages.profile], shutil.disk_usage(ROOT).free)
    is_first = packages.profile not in packages.stamp
    return programs, [disk] if is_first and disk is not None else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Installs what Sluice needs on this machine; skips what is there.")
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm", help="sim: no torch, no vLLM")
    parser.add_argument("--profile", choices=PROFILES, help="of Python packages; default: by engine and GPU")
    parser.add_argument("--dev", action="store_true", help="also what tests and checks need")
    parser.add_argument("--no-services", action="store_true", help="without Kafka, Java and Redis")
    options = parser.parse_args()
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        raise BootstrapError("Sluice needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=python3.12 …")
    progress = Progress()
    system = System(progress)
    with locked(ROOT):
        profile = options.profile or ("light" if options.engine == "sim" else default_profile())
        packages = packages_of(profile, dev=options.dev)
        system.need(*prerequisites(packages, services=not options.no_services))
        need_packages(progress, need_virtualenv(progress), packages)
        if not options.no_services:
            need_kafka(progress)
            if options.dev:
                system.want(BROWSER)
                system.want(POSTGRES)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BootstrapError as failure:
        print(f"bootstrap: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
