"""`python -m deploy.install.audit`: whether any locked package has a known vulnerability, as an advisory service tells.

pip-audit asks it, in an environment of its own under `.data/`. Exit codes: 0 every package was looked up and none has
one; 1 some have; 2 not all could be looked up, whatever the rest came to. pip-audit itself calls a package that its
service does not know, or does not answer for, "no known vulnerabilities". Standard library only.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.install.bootstrap import PROFILES, REQUIREMENTS
from deploy.install.commands import BootstrapError, run
from deploy.paths import ROOT

LOCKED: Final = REQUIREMENTS / "audit.txt"
FOLDER: Final = ROOT / ".data" / "audit"
FILES: Final = (*PROFILES[1:], "dev", "build")
"""What is looked up where nothing else is named: `cpu` and `gpu` have all of the other profiles."""
TIMEOUT_S: Final = 900
SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Findings:
    """`vulnerable`: a line for each; `unknown`: why packages were not looked up, by their names."""

    asked: int
    vulnerable: tuple[str, ...]
    unknown: dict[str, str]

    @property
    def exit_code(self) -> int:
        return 1 if self.vulnerable else 2 if self.unknown or not self.asked else 0


def findings_of(report: dict[str, Any]) -> Findings:
    """Of pip-audit's JSON."""
    packages = report["dependencies"]
    vulnerable = tuple(
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", ())
    )
    unknown = {package["name"]: package["skip_reason"] for package in packages if "skip_reason" in package}
    return Findings(len(packages), vulnerable, unknown)


def told(name: str, found: Findings) -> list[str]:
    lines = [f"{name}: {found.asked - len(found.unknown)} of {found.asked} packages were looked up"]
    lines += [f"  VULNERABLE {each}" for each in found.vulnerable]
    if found.unknown:
        named = ", ".join(sorted(found.unknown)[:SHOWN])
        lines.append(f"  NOT LOOKED UP: {named}{' and others' if len(found.unknown) > SHOWN else ''}")
        lines += [f"    {why}" for why in sorted(set(found.unknown.values()))[:1]]
    return lines


def environment() -> Path:
    """The Python of one that has pip-audit. Raises BootstrapError."""
    python, stamp = FOLDER / "bin" / "python", FOLDER / "installed"
    digest = hashlib.sha256(LOCKED.read_bytes() + sys.version.encode()).hexdigest()
    if not (stamp.is_file() and stamp.read_text() == digest):
        shutil.rmtree(FOLDER, ignore_errors=True)
        run([sys.executable, "-m", "venv", FOLDER], quiet=True)
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps",
             "--only-binary", ":all:", "-r", LOCKED], quiet=True)  # fmt: skip
        stamp.write_text(digest)
    return python


def look_up(python: Path, file: Path, service: str) -> Findings:
    command = [
        str(python), "-m", "pip_audit", "--requirement", str(file), "--require-hashes", "--disable-pip", "--format",
        "json", "--progress-spinner", "off", "--vulnerability-service", service,
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603
            command, env={**os.environ, "PYTHONWARNINGS": "ignore"}, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        return findings_of(json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return Findings(1, (), {"all": f"the advisory service did not answer within {TIMEOUT_S} s"})
    except ValueError:
        why = done.stderr.strip().splitlines() or ["pip-audit said nothing"]
        return Findings(1, (), {"all": f"the advisory service did not answer: {why[-1][:300]}"})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Looks up known vulnerabilities of the locked packages.")
    parser.add_argument("names", nargs="*", default=FILES, help="of files of pins; default: %(default)s")
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi", help="default: %(default)s")
    options = parser.parse_args(arguments)
    python, codes = environment(), []
    for name in options.names:
        found = look_up(python, REQUIREMENTS / f"{name}.txt", options.service)
        print("\n".join(told(name, found)), flush=True)
        codes.append(found.exit_code)
    if 2 in codes:
        print("Not everything was looked up: this says nothing of what was not.", file=sys.stderr)
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BootstrapError as failure:
        print(f"audit: {failure}", file=sys.stderr)
        sys.exit(2)
