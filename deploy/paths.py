"""Where relative paths start: at the checkout, or for an installed package where it is run."""

import shlex
from pathlib import Path

_PACKAGE_PARENT = Path(__file__).resolve().parents[1]
ROOT = _PACKAGE_PARENT if (_PACKAGE_PARENT / "pyproject.toml").exists() else Path.cwd()
DEFAULT_DATA = ROOT / ".data"


def data_option(folder: Path, default: Path = DEFAULT_DATA) -> str:
    """What stands behind a command that is for this folder, with a blank before it; nothing for the default one."""
    return "" if str(folder) == str(default) else f" --data {shlex.quote(str(folder))}"
