"""Kafka's jars, fetched from the `pom.xml` beside this file."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.local.folders import write_to_disk

POM = Path(__file__).parent / "kafka" / "pom.xml"
CHECKSUMS = Path(__file__).parent / "kafka" / "checksums.txt"
"""SHA-256 of every jar, in the form of sha256sum; `python -m deploy.install.kafka_jars --lock` writes it anew."""


class WrongJars(Exception):
    """What came is not what was locked. One line."""


def kafka_libs(environment: Path) -> Path:
    """Where Kafka's jars lie: one folder per content of what names them, so no version mixes with another."""
    digest = hashlib.sha256(POM.read_bytes() + CHECKSUMS.read_bytes()).hexdigest()
    return environment / "share" / f"kafka-{digest[:12]}"


def has_jars(libs: Path) -> bool:
    """Whether all are there. What is in them `fetch_jars` held against the checksums before it put them there."""
    sizes = {jar.name: jar.stat().st_size for jar in libs.glob("*.jar")}
    return all(sizes.get(name) for name in locked())


def fetch_command(destination: Path, pom: Path = POM) -> list[str]:
    """Fetches the jars that `pom` names, Kafka's unless another is told, through the user's own Maven."""
    return [
        "mvn", "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies",
        "-DincludeScope=runtime", f"-DoutputDirectory={destination}",
    ]  # fmt: skip


def fetch_jars(libs: Path, timeout_s: float = 600) -> None:
    """Fills `libs`, all or nothing; safe when several processes do it at once.

    Raises WrongJars unless they are those of `CHECKSUMS`; subprocess.CalledProcessError (Maven's output is in it),
    subprocess.TimeoutExpired, FileNotFoundError when Maven is missing.
    """
    libs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libs.parent, prefix="libs-") as scratch:
        fetched = Path(scratch) / "libs"
        subprocess.run(  # noqa: S603
            fetch_command(fetched), check=True, timeout=timeout_s, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        check(fetched)
        write_to_disk(fetched)
        if libs.exists() and not has_jars(libs):
            os.rename(libs, Path(scratch) / "what was left of them")
        try:
            os.rename(fetched, libs)
        except OSError:
            if not has_jars(libs):  # else another process was faster
                raise
            shutil.rmtree(fetched)


def locked(checksums: str | None = None) -> dict[str, str]:
    """The checksum of every jar, by name."""
    lines = (CHECKSUMS.read_text() if checksums is None else checksums).splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def sums(folder: Path) -> dict[str, str]:
    """By name, of every jar."""
    return {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(folder.glob("*.jar"))}


def check(folder: Path, checksums: str | None = None) -> None:
    """Raises WrongJars, naming the jars that are missing, unknown or of other content."""
    wrong = sorted(name for name, _ in locked(checksums).items() ^ sums(folder).items())
    if wrong:
        raise WrongJars(f"these jars are not the ones that were locked: {', '.join(dict.fromkeys(wrong))}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches Kafka's jars into this Python environment.")
    parser.add_argument("--lock", action="store_true", help="writes down the checksums of what is there")
    libs = kafka_libs(Path(sys.prefix))
    if parser.parse_args().lock:
        CHECKSUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sums(libs).items()))
    elif not has_jars(libs):
        fetch_jars(libs)
    print(libs)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, subprocess.SubprocessError, WrongJars) as failure:
        sys.exit(f"kafka_jars: {failure}")
