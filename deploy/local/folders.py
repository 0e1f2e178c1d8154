"""Folders on disk. Standard library only: the bootstrap needs it before anything is installed."""

import shutil
from pathlib import Path


def make_empty(folder: Path) -> None:
    """The folder, with nothing in it."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
