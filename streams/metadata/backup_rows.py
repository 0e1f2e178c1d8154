"""The rows of a backup's file: read one after the other, in batches of bounded memory, and what proves them."""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 8 * 1024 * 1024
_NO_DATA: Final = ("alembic_version", "sqlite_%")

Row = tuple[Any, ...]


class Digest(NamedTuple):
    """Of a table: how many rows, and the SHA-256 of all their values in their order."""

    rows: int
    sha256: str


class Rows:
    """Of a file with the tables of this release."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def of(self, table: str, columns: Sequence[str]) -> Iterator[Row]:
        return _select(self._connection, table, columns)


def tables_of(connection: sqlite3.Connection, *, beside: str = "") -> dict[str, list[str]]:
    """The columns of each that holds data of ours, but for the one named."""
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> ? AND name NOT LIKE ? AND name <> ?"
        " ORDER BY name",
        [*_NO_DATA, beside],
    ).fetchall()
    return {
        name: [column for _, column, *_ in connection.execute(f'PRAGMA table_info("{name}")').fetchall()]
        for (name,) in names
    }


def digest_of(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Digest:
    digest = hashlib.sha256(repr(list(columns)).encode())
    rows = 0
    for row in _select(connection, table, columns):
        rows += 1
        for value in row:
            kind, raw = _framed(value)
            digest.update(b"%b%d:" % (kind, len(raw)))
            digest.update(raw)
    return Digest(rows, digest.hexdigest())


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Never more than so many rows, nor more bytes unless one row alone has more."""
    batch: list[Row] = []
    size_bytes = 0
    for row in rows:
        row_bytes = sum(len(value) for value in row if isinstance(value, bytes | str))
        if batch and (len(batch) == BATCH_ROWS or size_bytes + row_bytes > BATCH_BYTES):
            yield batch
            batch, size_bytes = [], 0
        batch.append(row)
        size_bytes += row_bytes
    if batch:
        yield batch


def _select(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[Row]:
    quoted = ", ".join(f'"{column}"' for column in columns)
    with_rows = connection.execute(f'SELECT {quoted} FROM "{table}" ORDER BY rowid')  # noqa: S608 - names of our tables
    yield from with_rows


def _framed(value: Any) -> tuple[bytes, bytes]:
    """A value's kind and its bytes: no two different ones have the same."""
    if value is None:
        return b"n", b""
    if isinstance(value, bytes):
        return b"b", value
    if isinstance(value, str):
        return b"t", value.encode()
    return b"i", repr(value).encode()
