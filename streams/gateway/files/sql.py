"""Files in the database, in SQL that SQLite and Postgres both speak. Whoever opened the database closes it."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, or_, select, true, tuple_, update

from streams.gateway.files.port import CONDEMNED_KEPT_MS, UPLOADED_WITHIN_MS, Deletion, Page, Share, StoredFile
from streams.metadata.clock import database_now_ms
from streams.metadata.database import Database
from streams.metadata.insertion import insertion_into
from streams.metadata.tables import BATCHES, FILES
from streams.metadata.tenant_lock import lock_tenant

_F = FILES.c
_TOLD: Final = (
    _F.file_id, _F.tenant_id, _F.filename, _F.purpose, _F.size_bytes, _F.sha256, _F.created_at_ms, _F.expires_at_ms,
)  # fmt: skip
_IN_USE: Final = exists().where(BATCHES.c.needs_file_id == _F.file_id).correlate(FILES)


def is_there(now_ms: int) -> ColumnElement[bool]:
    """For its tenant. What a batch reads does not expire before that has ended."""
    lasts = or_(_F.expires_at_ms.is_(None), _F.expires_at_ms > now_ms, _IN_USE)
    return and_(_F.created_at_ms.is_not(None), _F.gone_at_ms.is_(None), lasts)


class SqlFiles:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, tenant_id: str, file_id: str) -> None:
        def work(connection: Connection) -> None:
            row = {"file_id": file_id, "tenant_id": tenant_id, "begun_at_ms": database_now_ms(connection)}
            insertion = insertion_into(connection, FILES)
            insertion = insertion.on_conflict_do_update(
                index_elements=[_F.file_id], set_={"begun_at_ms": insertion.excluded.begun_at_ms},
                where=and_(_F.created_at_ms.is_(None), _F.gone_at_ms.is_(None)),
            )  # fmt: skip
            connection.execute(insertion, [row])

        await self._database.write(work)

    async def complete(self, file: StoredFile, share: Share | None, lasts_ms: int | None) -> StoredFile | None:
        def work(connection: Connection) -> StoredFile | None:
            now_ms = database_now_ms(connection)
            own = _F.file_id == file.file_id
            found = connection.execute(select(*_TOLD, _F.gone_at_ms).where(own).with_for_update()).first()
            if found is None or found.gone_at_ms is not None:
                return None  # It took too long.
            if found.created_at_ms is not None:
                return StoredFile(*found[:-1])
            if share is not None and not has_room(connection, file.tenant_id, share, file.size_bytes):
                connection.execute(update(FILES).where(own).values(gone_at_ms=now_ms))
                return None
            values: dict[str, Any] = {
                "filename": file.filename, "purpose": file.purpose, "size_bytes": file.size_bytes,
                "sha256": file.sha256, "created_at_ms": now_ms,
                "expires_at_ms": None if lasts_ms is None else now_ms + lasts_ms,
            }  # fmt: skip
            connection.execute(update(FILES).where(own).values(**values))
            return StoredFile(*connection.execute(select(*_TOLD).where(own)).one())

        return await self._database.write(work)

    async def held_bytes(self, tenant_id: str) -> int:
        return (await self._database.read(lambda connection: _held(connection, _F.tenant_id == tenant_id))).size_bytes

    async def held(self) -> Share:
        return await self._database.read(lambda connection: _held(connection, true()))

    async def one(self, tenant_id: str, file_id: str) -> StoredFile | None:
        def work(connection: Connection) -> StoredFile | None:
            own = and_(_F.file_id == file_id, _F.tenant_id == tenant_id, is_there(database_now_ms(connection)))
            found = connection.execute(select(*_TOLD).where(own)).first()
            return None if found is None else StoredFile(*found)

        return await self._database.read(work)

    async def page(self, tenant_id: str, page: Page) -> Sequence[StoredFile] | None:
        def work(connection: Connection) -> list[StoredFile] | None:
            own = and_(_F.tenant_id == tenant_id, is_there(database_now_ms(connection)))
            by_age = (_F.created_at_ms, _F.file_id)
            query = select(*_TOLD).where(own)
            if page.purpose is not None:
                query = query.where(_F.purpose == page.purpose)
            if page.after is not None:
                last = connection.execute(select(*by_age).where(own, _F.file_id == page.after)).first()
                if last is None:
                    return None
                behind = tuple_(*by_age) > tuple(last) if page.order == "asc" else tuple_(*by_age) < tuple(last)
                query = query.where(behind)
            query = query.order_by(*(each if page.order == "asc" else each.desc() for each in by_age))
            return [StoredFile(*row) for row in connection.execute(query.limit(page.limit + 1))]

        return await self._database.read(work)

    async def delete(self, tenant_id: str, file_id: str) -> Deletion:
        def work(connection: Connection) -> Deletion:
            now_ms = database_now_ms(connection)
            own = and_(_F.file_id == file_id, _F.tenant_id == tenant_id)
            # Who makes a batch of it has the same lock on its row.
            query = select(_F.file_id).where(own, is_there(now_ms)).with_for_update()
            if connection.execute(query).first() is None:
                return Deletion.UNKNOWN
            gone = connection.execute(update(FILES).where(own, ~_IN_USE).values(gone_at_ms=now_ms))
            return Deletion.DONE if gone.rowcount else Deletion.IN_USE

        return await self._database.write(work)

    async def due(self, limit: int) -> list[str]:
        def work(connection: Connection) -> list[str]:
            now_ms = database_now_ms(connection)
            late = and_(
                _F.created_at_ms.is_(None), _F.gone_at_ms.is_(None), _F.begun_at_ms <= now_ms - UPLOADED_WITHIN_MS
            )
            expired = and_(_F.expires_at_ms <= now_ms, ~_IN_USE)
            query = select(_F.file_id).where(or_(_F.gone_at_ms <= now_ms, late, expired)).limit(limit)
            found = list(connection.execute(query.with_for_update(skip_locked=True)).scalars())
            if found:
                gone = update(FILES).where(_F.file_id.in_(found), _F.gone_at_ms.is_(None))
                connection.execute(gone.values(gone_at_ms=now_ms))
            return found

        return await self._database.write(work)

    async def drop(self, file_ids: Sequence[str]) -> None:
        is_not_there = or_(_F.gone_at_ms.is_not(None), _F.created_at_ms.is_(None))
        deletion = delete(FILES).where(_F.file_id.in_(file_ids), is_not_there)
        if file_ids:
            await self._database.write(lambda connection: connection.execute(deletion))

    async def unknown(self, file_ids: Sequence[str]) -> list[str]:
        query = select(_F.file_id).where(_F.file_id.in_(file_ids))
        known = await self._database.read(lambda connection: {*connection.execute(query).scalars()})
        return [each for each in file_ids if each not in known]

    async def condemn(self, file_ids: Sequence[str]) -> None:
        def work(connection: Connection) -> None:
            now_ms = database_now_ms(connection)
            gone = {"tenant_id": "", "begun_at_ms": now_ms, "gone_at_ms": now_ms + CONDEMNED_KEPT_MS}
            rows = [{"file_id": each, **gone} for each in sorted(file_ids)]
            connection.execute(insertion_into(connection, FILES).on_conflict_do_nothing(), rows)

        if file_ids:
            await self._database.write(work)


def _held(connection: Connection, whose: ColumnElement[bool]) -> Share:
    """Expired ones among them, until they are deleted."""
    own = and_(whose, _F.gone_at_ms.is_(None), _F.created_at_ms.is_not(None))
    files, size_bytes = connection.execute(select(func.count(), func.sum(_F.size_bytes)).where(own)).one()
    return Share(files, int(size_bytes or 0))


def has_room(connection: Connection, tenant_id: str, share: Share, size_bytes: int = 1) -> bool:
    """For one more file, of so many bytes. Nobody else of the tenant takes it before the transaction ends."""
    lock_tenant(connection, "files", tenant_id)
    held = _held(connection, _F.tenant_id == tenant_id)
    return held.files < share.files and held.size_bytes + size_bytes <= share.size_bytes
