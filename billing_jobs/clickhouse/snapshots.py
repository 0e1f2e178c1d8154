"""Copies of the tables as they are now, which another process may open: parts never change, so they are linked.

One process alone may own an embedded engine's folder. `ALTER TABLE … FREEZE` links a table's parts into `shadow`, from
where the folder of a snapshot takes them by a rename: milliseconds, and no bytes.
"""

import re
import secrets
import shutil
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from billing_jobs.clickhouse.access import Layout
from billing_jobs.embedded import EMBEDDED_DATABASE
from billing_jobs.store import Connection, StoreError

_UUID = re.compile(r"UUID '([0-9a-f-]{36})'")
_FORMAT_VERSION = "1"
"""Of a MergeTree's folder: what a table without a part has none of in its snapshot."""
_NAME = "snapshot_"
"""Of other characters than these a name is escaped in `shadow`."""
FREEZE_FIRST = ("billing_batches", "invoice_closings")
"""Their rows say that others are stored: what they name must be in the others' copies."""


class Snapshots:
    """Of the embedded engine in `path`, made below `folder`, which is this object's alone; for any thread."""

    def __init__(self, connection: Connection, path: Path, folder: Path) -> None:
        self._connection = connection
        self._path = path
        self.folder = folder
        # Not those of a process before this one, whose leavings the engine would add to.
        self._names = (f"{_NAME}{secrets.token_hex(4)}_{number}" for number in count(1))
        self._turn = Lock()
        for left in (folder, *(path / "shadow").glob(f"{_NAME}*")):
            shutil.rmtree(left, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def take(self, layout: Layout) -> Path:
        """The folder of a new one; whoever asked removes it. Raises StoreError."""
        name = next(self._names)
        made = self.folder / name
        shadow = self._path / "shadow" / name
        try:
            with self._turn, self._connection.client() as client:
                tables = self._tables(client, layout)
                for table in sorted(tables, key=lambda table: table not in FREEZE_FIRST):
                    client.command(f"ALTER TABLE `{table}` FREEZE WITH NAME '{name}'")
            self._lay_out(layout, tables, shadow, made)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            raise StoreError(f"no snapshot: {error}") from error
        finally:
            shutil.rmtree(shadow, ignore_errors=True)
        return made

    def close(self) -> None:
        self._connection.close()

    def _tables(self, client: Any, layout: Layout) -> list[str]:
        if layout.tables:
            return list(layout.tables)
        found = client.query(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree'"
        )
        return [row[0] for row in found.result_rows]

    def _lay_out(self, layout: Layout, tables: list[str], shadow: Path, made: Path) -> None:
        (made / "metadata").mkdir(mode=0o700, parents=True)
        if (shadow / "store").is_dir():
            (shadow / "store").rename(made / "store")
        statement = (self._path / "metadata" / f"{EMBEDDED_DATABASE}.sql").read_text()
        (made / "metadata" / f"{layout.database}.sql").write_text(statement)
        definitions = self._path / _store_of(statement)
        copies = made / _store_of(statement)
        copies.mkdir(parents=True)
        for definition in definitions.glob("*.sql"):
            if definition.stem in layout.left_out or (layout.tables and definition.stem not in tables):
                continue
            text = definition.read_text()
            (copies / definition.name).write_text(text)
            if definition.stem in tables:
                parts = made / _store_of(text)
                parts.mkdir(parents=True, exist_ok=True)
                (parts / "format_version.txt").write_text(_FORMAT_VERSION)


def _store_of(statement: str) -> Path:
    """Where a database or a table has its files, by the statement that attaches it."""
    found = _UUID.search(statement)
    if found is None:
        raise StoreError(f"an attached database or table without a UUID: {statement[:100]}")
    return Path("store") / found[1][:3] / found[1]
