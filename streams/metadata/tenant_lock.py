"""A tenant's rows are counted by one transaction at a time, where that decides whether it may have one more."""

import hashlib

from sqlalchemy import Connection, func, select


def lock_tenant(connection: Connection, what: str, tenant_id: str) -> None:
    """Until the transaction ends. SQLite has one writer at a time anyway; transactions of Postgres see nothing of each
    other before they are committed.
    """
    if connection.dialect.name == "postgresql":
        digest = hashlib.sha256(f"{what}/{tenant_id}".encode()).digest()
        connection.execute(select(func.pg_advisory_xact_lock(int.from_bytes(digest[:8], "big", signed=True))))
