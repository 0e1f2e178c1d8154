"""Where relative paths start: at the checkout, or for an installed package where it is run."""

from pathlib import Path

_PACKAGE_PARENT = Path(__file__).resolve().parents[1]
ROOT = _PACKAGE_PARENT if (_PACKAGE_PARENT / "pyproject.toml").exists() else Path.cwd()
DEFAULT_DATA = ROOT / ".data"
