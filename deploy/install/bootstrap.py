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

from deploy.install.kafka_jars import WrongJars, fetch_jars, has_jars, kafka_libs

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST_JAVA = 17
COMMAND_TIMEOUT_S = 3_600
PROFILES = ("light", "cpu", "gpu")


class BootstrapError(Exception):
    """What is missing and what to do about it, in one line."""


@dataclass(frozen=True)
class SystemPackage:
    """A program of the operating system, and the Debian packages that may bring it, best first."""

    program: str
    debian: tuple[str, ...]
    what: str


JAVA = SystemPackage("java", ("openjdk-21-jre-headless", "openjdk-17-jre-headless", "default-jre-headless"), "Java 17+")
MAVEN = SystemPackage("mvn", ("maven",), "Maven")
REDIS = SystemPackage("redis-server", ("redis-server",), "Redis server")
# The driver comes first: it brings the browser of its own version along.
BROWSER = SystemPackage(
    "chromedriver", ("chromium-driver",), "Chromium with its driver (for the test of the chat page)"
)


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


def java_major(version_output: str) -> int | None:
    """`17` from what `java -version` prints; also understands the old `1.8`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


class Progress:
    """Says what is being done and how long it took."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        print(f"[{time.monotonic() - self._began:6.1f} s] {text} …", flush=True)
        began = time.monotonic()
        yield
        print(f"[{time.monotonic() - self._began:6.1f} s]   done in {time.monotonic() - began:.1f} s", flush=True)


def run(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, quiet: bool = False) -> str:
    """Runs to the end; raises BootstrapError with the last lines of its output when it fails."""
    words = [str(word) for word in command]
    pipe = subprocess.PIPE if quiet else None
    try:
        done = subprocess.run(  # noqa: S603
            words,
            cwd=ROOT,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=subprocess.STDOUT if quiet else None,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise BootstrapError(f"{words[0]}: no such program") from None
    except subprocess.TimeoutExpired:
        raise BootstrapError(f"{' '.join(words[:4])} …: not finished after {COMMAND_TIMEOUT_S} s") from None
    output = done.stdout or ""
    if done.returncode != 0:
        tail = "\n".join(output.strip().splitlines()[-15:])
        raise BootstrapError(f"`{' '.join(words)}` ended with code {done.returncode}" + (f":\n{tail}" if tail else ""))
    return output


def _works(command: Sequence[str]) -> bool:
    try:
        null = subprocess.DEVNULL
        done = subprocess.run(command, stdin=null, stdout=null, stderr=null, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def default_profile() -> str:
    """`gpu` where an NVIDIA driver answers, else `cpu`."""
    return "gpu" if _works(["nvidia-smi", "-L"]) else "cpu"


class System:
    """Programs of the operating system, installed through apt where that is allowed without asking for a password."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._updated = False

    def _prefix(self) -> list[str] | None:
        if shutil.which("apt-get") is None:
            return None
        if os.geteuid() == 0:
            return []
        return ["sudo", "-n"] if _works(["sudo", "-n", "true"]) else None

    def _candidate(self, package: SystemPackage) -> str | None:
        for name in package.debian:
            output = run(["apt-cache", "policy", name], env={**os.environ, "LC_ALL": "C"}, quiet=True)
            match = re.search(r"Candidate: (\S+)", output)
            if match is not None and match[1] != "(none)":
                return name
        return None

    def install(self, package: SystemPackage) -> None:
        """Raises BootstrapError saying what to install by hand."""
        prefix = self._prefix()
        by_hand = f"{package.what} is missing; install it, for instance: sudo apt-get install {package.debian[-1]}"
        if prefix is None:
            raise BootstrapError(by_hand)
        name = self._candidate(package)
        if name is None or not self._get(prefix, name):
            self._update(prefix)
            name = self._candidate(package)
            if name is None or not self._get(prefix, name):
                raise BootstrapError(by_hand)

    def _get(self, prefix: list[str], name: str) -> bool:
        with self._progress.step(f"System package {name}"):
            try:
                self._apt(prefix, "install", "-y", "--no-install-recommends", name)
            except BootstrapError as error:
                if self._updated:
                    raise
                print(f"  not with the present package index ({str(error).splitlines()[-1]})", flush=True)
                return False
        return True

    def _update(self, prefix: list[str]) -> None:
        if self._updated:
            return
        with self._progress.step("System package index"):
            self._apt(prefix, "update")
        self._updated = True

    def _apt(self, prefix: list[str], *words: str) -> None:
        run(
            [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-o", "Dpkg::Use-Pty=0", *words],
            quiet=True,
        )

    def need(self, package: SystemPackage) -> None:
        if shutil.which(package.program) is None:
            self.install(package)

    def want(self, package: SystemPackage) -> None:
        """As `need`, for what one can do without: then it says what is left out."""
        try:
            self.need(package)
        except BootstrapError as error:
            print(f"bootstrap: {error} (going on without it)", file=sys.stderr, flush=True)

    def need_java(self) -> None:
        if self._java() < OLDEST_JAVA:
            self.install(JAVA)
            found = self._java()
            if found < OLDEST_JAVA:
                raise BootstrapError(
                    f"Kafka needs Java {OLDEST_JAVA} or newer, but `java` is {found}; see update-alternatives"
                )

    @staticmethod
    def _java() -> int:
        if shutil.which("java") is None:
            return 0
        return java_major(run(["java", "-version"], quiet=True)) or 0


def need_virtualenv(progress: Progress, system: System) -> Path:
    """The environment's Python."""
    python = VENV / "bin" / "python"
    if python.exists() and _works([str(python), "-c", ""]):
        return python
    with progress.step("Python environment .venv"):
        if not _works([sys.executable, "-c", "import ensurepip, venv"]):
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            system.install(SystemPackage("", (f"{version}-venv", "python3-venv"), "Python's venv module"))
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
        if not _works([str(python), "-m", "pip", "--version"]):
            run([python, "-m", "ensurepip"], quiet=True)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps",
             "-r", REQUIREMENTS / "uv.txt"], quiet=True)  # fmt: skip
    return uv


def need_packages(progress: Progress, python: Path, profile: str, *, dev: bool) -> None:
    """The locked packages of a profile and the project itself, in the environment."""
    version = run([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], quiet=True).strip()
    stamp_file = VENV / "sluice-installed.json"
    project = ROOT / "pyproject.toml"
    stamp: dict[str, str] = json.loads(stamp_file.read_text()) if stamp_file.exists() else {}
    names = [effective_profile(profile, stamp), *(["dev"] if dev else [])]
    wanted = {name: inputs_digest([REQUIREMENTS / f"{name}.txt", project], version) for name in names}
    missing = [name for name in names if stamp.get(name) != wanted[name]]
    if not missing:
        return
    uv = need_uv(progress, python)
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "VIRTUAL_ENV": str(VENV)}
    if "PIP_INDEX_URL" in env and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & env.keys():
        env["UV_DEFAULT_INDEX"] = env["PIP_INDEX_URL"]
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    for name in missing:
        requirements = REQUIREMENTS / f"{name}.txt"
        count = sum(1 for line in requirements.read_text().splitlines() if re.match(r"^[A-Za-z0-9]", line))
        size = "" if name not in ("cpu", "gpu") else ", several GB with torch"
        with progress.step(f"{count} Python packages of {requirements.relative_to(ROOT)}{size}"):
            # --no-config: the overrides in pyproject.toml cannot be combined with --require-hashes.
            run(
                [uv, "pip", "install", *quiet, "--no-config", "--no-deps", "--require-hashes", "-r", requirements],
                env=env,
            )
    with progress.step("Sluice itself"):
        run([uv, "pip", "install", "--no-config", "--quiet", "--no-deps", "-e", "."], env=env)
    stamp_file.write_text(json.dumps(stamped(stamp, {name: wanted[name] for name in missing})))


def need_kafka(progress: Progress, system: System) -> None:
    """Kafka's jars, whole or not at all."""
    libs = kafka_libs(VENV)
    if has_jars(libs):
        return
    system.need(MAVEN)
    with progress.step("Kafka's jars, 44 MB"):
        try:
            fetch_jars(libs, timeout_s=COMMAND_TIMEOUT_S)
        except subprocess.CalledProcessError as error:
            raise BootstrapError(f"Maven could not fetch Kafka:\n{error.stdout}") from None
        except WrongJars as error:
            raise BootstrapError(f"Maven fetched something else than Kafka: {error}") from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One bootstrap at a time; the kernel frees the lock when its process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


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
        need_packages(progress, need_virtualenv(progress, system), profile, dev=options.dev)
        if not options.no_services:
            system.need_java()
            need_kafka(progress, system)
            system.need(REDIS)
            if options.dev:
                system.want(BROWSER)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BootstrapError as failure:
        print(f"bootstrap: {failure}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
