"""Kafka's jars, fetched from the `pom.xml` beside this file."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

POM = Path(__file__).parent / "kafka" / "pom.xml"


def kafka_libs(environment: Path) -> Path:
    """Where Kafka's jars lie: one folder per content of the `pom.xml`, so a new version never mixes with an old one."""
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()
    return environment / "share" / f"kafka-{digest[:12]}"


def has_jars(libs: Path) -> bool:
    """`fetch_jars` leaves either all jars or no directory."""
    return libs.is_dir()


def fetch_command(destination: Path) -> list[str]:
    """Fetches the jars named in `deploy/install/kafka/pom.xml` through the user's own Maven."""
    return [
        "mvn", "--batch-mode", "--quiet", "--file", str(POM), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={destination}",
    ]  # fmt: skip


def fetch_jars(libs: Path, timeout_s: float = 600) -> None:
    """Fills `libs`, all or nothing; safe when several processes do it at once.

    Raises subprocess.CalledProcessError (Maven's output is in it), subprocess.TimeoutExpired, FileNotFoundError
    when Maven is missing.
    """
    libs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libs.parent, prefix="libs-") as scratch:
        fetched = Path(scratch) / "libs"
        subprocess.run(  # noqa: S603
            fetch_command(fetched), check=True, timeout=timeout_s, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            os.rename(fetched, libs)
        except OSError:
            if not has_jars(libs):  # else another process was faster
                raise
            shutil.rmtree(fetched)
