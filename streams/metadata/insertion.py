"""Insertions that say what becomes of a row that is there already: SQLite and Postgres write them alike."""

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

_BY_DIALECT: Final[dict[str, Callable[[Table], Any]]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insertion_into(connection: Connection, table: Table) -> Any:
    """With `on_conflict_do_nothing`, `on_conflict_do_update` and `excluded`, as both dialects of SQLAlchemy have it."""
    return _BY_DIALECT[connection.dialect.name](table)
