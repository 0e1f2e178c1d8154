"""The engine within a process. One process alone may have a folder open, and one folder at a time."""

import re
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

EMBEDDED_DATABASE = "sluice"
_OWNER = (
    "<clickhouse><profiles><default/></profiles><quotas><default/></quotas><users><default><password></password>"
    "<networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>"
    "<grants><query>GRANT ALL ON *.*</query></grants></default></users></clickhouse>"
)
"""Of itself the engine's one user may not freeze tables."""


class EngineMissing(Exception):
    """chDB is not installed."""


class EngineFailed(Exception):
    """It did not start."""


def load_engine() -> Any:
    """Half a second. Raises EngineMissing."""
    try:
        return import_module("chdb._chdb")
    except ImportError:
        raise EngineMissing(
            "the embedded ClickHouse is not installed: install Sluice with its extra `embedded` ("
            "clickhouse-connect[chdb]), or name a server of your own in billing.clickhouse_url"
        ) from None


def connect(place: str) -> Any:
    """A connection of the engine that runs; `place` is its path, with settings behind a `?`. Nothing there is
    unescaped, and the last of two settings of one name counts. Raises EngineMissing, RuntimeError.
    """
    return load_engine().connect(place)


def start_engine(path: Path, users: str = _OWNER, options: str = "", server: str = "") -> Any:
    """A connection with which the engine over `path` starts; it stops with its last one. `users` are in its own XML,
    `server` are elements of its configuration, `options` of this connection. Raises EngineMissing, EngineFailed.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-engine-") as folder:
        (Path(folder) / "users.xml").write_text(users)
        config = Path(folder) / "config.xml"
        config.write_text(
            f"<clickhouse><users_config>{escape(str(Path(folder) / 'users.xml'))}</users_config>{server}</clickhouse>"
        )
        try:
            return connect(f"{path}?config-file={config}{options}")
        except RuntimeError as error:
            raise EngineFailed(str(error)) from None


def statements_of(sql: str) -> list[str]:
    """Of a file of this package: these hold no `;` and no `--` inside literals."""
    bare = re.sub(r"--[^\n]*", "", sql)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
