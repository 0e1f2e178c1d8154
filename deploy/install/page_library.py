"""`python -m deploy.install.page_library`: fetches by npm what the pages take from others, and checks it.

The files are committed as they are in the package, with its license: no page is built. For whoever raises the version.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from deploy.paths import ROOT

PACKAGE: Final = "marked"
VERSION: Final = "18.2.1"
FILES: Final = {
    "lib/marked.esm.js": ("marked.esm.js", "5371fea86fd0656b4fc7bea7c94c663109d82789b69433eeee78d42895aa44de"),
    "LICENSE": ("marked.LICENSE.txt", "8e3a3f82f59a60958f56ca08f445647c32a4733dc7ca6c2c46f6eb898471ab9c"),
}
"""Of the package's files: by which name they stand here, and their SHA-256."""
FOLDER: Final = ROOT / "streams" / "gateway" / "http" / "pages" / "assets" / "vendor"
NPM_TIMEOUT_S: Final = 120


class NotThatFile(Exception):
    """The package has another file than the one that was looked at."""


def checked(name: str, content: bytes) -> bytes:
    """Raises NotThatFile."""
    _, sha256 = FILES[name]
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise NotThatFile(f"{name} of {PACKAGE} {VERSION} has the SHA-256 {found}, not {sha256}")
    return content


def unpacked(archive: Path) -> dict[str, bytes]:
    """The files that are wanted, checked. Raises NotThatFile, KeyError for one that is not there."""
    with tarfile.open(archive) as package:
        contents = {}
        for name in FILES:
            member = package.extractfile(f"package/{name}")
            if member is None:
                raise NotThatFile(f"{name} of {PACKAGE} {VERSION} is no file")
            contents[name] = checked(name, member.read())
        return contents


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--ignore-scripts", "--pack-destination", folder, f"{PACKAGE}@{VERSION}"]
        subprocess.run(command, check=True, cwd=folder, timeout=NPM_TIMEOUT_S)  # noqa: S603
        [archive] = Path(folder).glob("*.tgz")
        for name, content in unpacked(archive).items():
            (FOLDER / FILES[name][0]).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
