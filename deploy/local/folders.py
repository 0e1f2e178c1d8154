"""Folders and files on disk. Standard library only: the bootstrap needs it before anything is installed."""

import os
import shutil
import stat
import tempfile
from pathlib import Path


def make_empty(folder: Path) -> None:
    """The folder, with nothing in it."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def write_atomically(path: Path, text: str, *, mode: int = 0o644, keep_access: bool = False) -> None:
    """A reader sees the old content or the new, also across a crash.

    `keep_access`: who could read the file that is replaced can read it still; `mode` is of a new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            if keep_access and path.exists():
                replaced, ours = path.stat(), os.fstat(file.fileno())
                if (replaced.st_uid, replaced.st_gid) != (ours.st_uid, ours.st_gid):
                    os.fchown(file.fileno(), replaced.st_uid, replaced.st_gid)
                mode = stat.S_IMODE(replaced.st_mode)
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_to_disk(folder: Path) -> None:
    """The files in it, and the folder itself: a crash takes none of them back."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
