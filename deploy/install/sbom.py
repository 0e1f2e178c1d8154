"""`python -m deploy.install.sbom`: what an installation may hold, as a bill of materials (CycloneDX 1.6, JSON).

It is made of the files that pin it, and asks nobody: the same pins give the same bytes. With `--check` it is held
against CycloneDX's schema, by their library in the environment of the audit. Standard library only.
"""

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.install.audit import environment
from deploy.install.bootstrap import PROFILES, REQUIREMENTS
from deploy.install.commands import BootstrapError, run
from deploy.install.kafka_jars import CHECKSUMS
from deploy.install.page_library import FILES, PACKAGE, VERSION
from deploy.paths import ROOT

SPEC_VERSION: Final = "1.6"
SETS: Final = ("server", "tracing", *PROFILES)
"""Of pinned packages, by the names of their files."""
WITHOUT_KAFKA: Final = ("server", "tracing")
ITSELF: Final = "sluice"
_CHECK: Final = (
    "import sys; from cyclonedx.schema import SchemaVersion\n"
    "from cyclonedx.validation.json import JsonStrictValidator\n"
    "wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())\n"
    "sys.exit(None if wrong is None else repr(wrong)[:2_000])"
)
_NAMESPACE: Final = uuid.UUID("6f1ae0f6-6d36-5d0f-8c0e-9b6f0a4c7f51")
_PIN: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA: Final = re.compile(r"    #(?: via|  ) (\S+)$")


@dataclass(frozen=True, slots=True)
class Pin:
    """A package as it is locked. `sha256`: of each file that may be installed; `via`: who asks for it, by name."""

    name: str
    version: str
    marker: str
    sha256: tuple[str, ...]
    via: tuple[str, ...]

    @property
    def purl(self) -> str:
        """https://github.com/package-url/purl-spec"""
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name.lower())}@{self.version.replace('+', '%2B')}"


def pins_of(text: str) -> Iterator[Pin]:
    """Of a requirements file as uv writes it. Raises ValueError for a package without a hash."""
    for block in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]:
        first, *rest = block.splitlines()
        found = _PIN.fullmatch(first)
        hashes = tuple(sorted(_HASH.findall(block)))
        if found is None or not hashes:
            raise ValueError(f"not pinned with hashes: {first}")
        via = tuple(match[1] for line in rest if (match := _VIA.match(line)))
        yield Pin(found["name"], found["version"], found["marker"] or "", hashes, via)


def bill(
    name: str, version: str, pins: Sequence[Pin], files: Mapping[str, str], library: Mapping[str, str]
) -> dict[str, Any]:
    """`files`: by name their SHA-256; `library`: those of the pages' one."""
    itself = {"type": "application", "bom-ref": ITSELF, "name": ITSELF, "version": version}
    parts = [*map(_package, pins), *map(_file, sorted(files.items())), _library(library)]
    told = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {"component": itself, "properties": [{"name": "sluice:set", "value": name}]},
        "components": parts,
        "dependencies": _dependencies(pins, [part["bom-ref"] for part in parts[len(pins) :]]),
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(told, sort_keys=True))
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "serialNumber": f"urn:uuid:{serial}",
        **told,
    }


def _hashes(digests: Iterable[str]) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest} for digest in digests]


def _package(pin: Pin) -> dict[str, Any]:
    markers = [{"name": "sluice:marker", "value": pin.marker}] if pin.marker else []
    return {
        "type": "library", "bom-ref": pin.purl, "name": pin.name, "version": pin.version, "purl": pin.purl,
        "hashes": _hashes(pin.sha256), **({"properties": markers} if markers else {}),
    }  # fmt: skip


def _file(named: tuple[str, str]) -> dict[str, Any]:
    name, digest = named
    return {"type": "file", "bom-ref": f"file:{name}", "name": name, "hashes": _hashes([digest])}


def _library(files: Mapping[str, str]) -> dict[str, Any]:
    purl = f"pkg:npm/{PACKAGE}@{VERSION}"
    return {
        "type": "library", "bom-ref": purl, "name": PACKAGE, "version": VERSION, "purl": purl,
        "components": [_file(each) for each in sorted(files.items())],
    }  # fmt: skip


def _dependencies(pins: Sequence[Pin], further: Sequence[str]) -> list[dict[str, Any]]:
    """Who brings what, as the files say it."""
    refs = defaultdict[str, list[str]](list)
    for pin in pins:
        refs[pin.name].append(pin.purl)
    brings: dict[str, set[str]] = {
        ITSELF: {*further},
        **{pin.purl: set() for pin in pins},
        **{ref: set() for ref in further},
    }
    for pin in pins:
        for name in pin.via:
            for parent in [ITSELF] if name == ITSELF else refs[name]:
                brings[parent].add(pin.purl)
    return [{"ref": ref, "dependsOn": sorted(brings[ref])} for ref in sorted(brings)]


def bill_of(name: str) -> dict[str, Any]:
    """Of one of `SETS`."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pins = sorted(pins_of((REQUIREMENTS / f"{name}.txt").read_text()), key=lambda pin: (pin.name, pin.version))
    jars = {} if name in WITHOUT_KAFKA else {file: digest for digest, file in map(str.split, _lines(CHECKSUMS))}
    return bill(name, version, pins, jars, dict(FILES.values()))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def check(file: Path) -> None:
    """Against CycloneDX's own schema. Raises BootstrapError."""
    run([environment(), "-c", _CHECK, file], quiet=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes a bill of materials: CycloneDX, JSON.")
    parser.add_argument("--set", choices=SETS, default="cpu", dest="name", help="which packages; default: %(default)s")
    parser.add_argument("--output", type=Path, help="a file; default: standard output")
    parser.add_argument("--check", action="store_true", help="whether the file is as the schema says")
    options = parser.parse_args()
    text = json.dumps(bill_of(options.name), indent=1) + "\n"
    if options.check and options.output is None:
        parser.error("--check needs --output")
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text)
    if options.check:
        check(options.output)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BootstrapError as failure:
        print(f"sbom: {failure}", file=sys.stderr)
        sys.exit(1)
