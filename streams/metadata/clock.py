"""The database's clock, which is the same for all who use it."""

from typing import Final

from sqlalchemy import Connection, extract, func, select

_NOW: Final = select(extract("epoch", func.current_timestamp()))


def database_now_ms(connection: Connection) -> int:
    """Unix time; SQLite knows whole seconds alone."""
    return int(connection.execute(_NOW).scalar_one() * 1_000)
