"""Batches in the database, in SQL that SQLite and Postgres both speak. Whoever opened the database closes it."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, func, select, tuple_, update

from streams.gateway.batches.core import FINAL, Batch, Held, Progress
from streams.gateway.batches.port import LEASE_MS, Event, NoRoom, NoSuchFile, TooManyBatches
from streams.gateway.files.port import Page, Share
from streams.gateway.files.sql import has_room, is_there
from streams.gateway.idempotency.port import Claim, KeyUnknown
from streams.gateway.idempotency.sql import claimed_before
from streams.metadata.clock import database_now_ms
from streams.metadata.database import Database
from streams.metadata.tables import BATCHES, FILES
from streams.metadata.tenant_lock import lock_tenant

_B = BATCHES.c
_BY_AGE: Final = (_B.created_at_ms, _B.batch_id)
_BY_WAIT: Final = (_B.leased_until_ms, *_BY_AGE)
CLAIMED_AMONG: Final = 100
"""Tenants, of whom each has its oldest batch looked at."""


class SqlBatches:
    def __init__(self, database: Database, *, lease_ms: int = LEASE_MS) -> None:
        self._database = database
        self._lease_ms = lease_ms

    async def create(
        self, batch: Batch, window_ms: int, *, most_open: int, most_kept: int, share: Share | None = None,
        claim: Claim | None = None,
    ) -> Batch:  # fmt: skip
        def work(connection: Connection) -> Batch:
            if claim is not None and (made := _made_before(connection, claim)) is not None:
                return made
            now_ms = database_now_ms(connection)
            of_tenant = _B.tenant_id == batch.tenant_id
            file = (
                select(FILES.c.file_id)
                .where(
                    FILES.c.file_id == batch.input_file_id, FILES.c.tenant_id == batch.tenant_id,
                    FILES.c.purpose == "batch", is_there(now_ms),
                )
                .with_for_update()
            )  # fmt: skip
            if connection.execute(file).first() is None:
                raise NoSuchFile
            if share is not None and not has_room(connection, batch.tenant_id, share):
                raise NoRoom
            lock_tenant(connection, "batches", batch.tenant_id)
            kept, opened = connection.execute(
                select(func.count(), func.coalesce(func.sum(_B.is_open), 0)).where(of_tenant)
            ).one()
            if opened >= most_open:
                raise TooManyBatches
            if kept >= most_kept:
                oldest = select(_B.batch_id).where(of_tenant, _B.is_open == 0).order_by(*_BY_AGE).limit(1)
                if not connection.execute(delete(BATCHES).where(_B.batch_id.in_(oldest.scalar_subquery()))).rowcount:
                    raise TooManyBatches
            made = batch.model_copy(update={"created_at_ms": now_ms, "expires_at_ms": now_ms + window_ms})
            row = {"batch_id": made.batch_id, "tenant_id": made.tenant_id, "created_at_ms": now_ms}
            row |= {"epoch": 0, "leased_until_ms": 0, **_told(Held(batch=made), now_ms)}
            connection.execute(BATCHES.insert(), [row])
            return made

        return await self._database.write(work)

    async def one(self, tenant_id: str, batch_id: str) -> Batch | None:
        query = select(_B.batch).where(_B.batch_id == batch_id, _B.tenant_id == tenant_id)

        def work(connection: Connection) -> Batch | None:
            found = connection.execute(query).scalar()
            return None if found is None else Batch.model_validate_json(bytes(found))

        return await self._database.read(work)

    async def page(self, tenant_id: str, page: Page) -> Sequence[Batch] | None:
        def work(connection: Connection) -> list[Batch] | None:
            query = select(_B.batch).where(_B.tenant_id == tenant_id)
            if page.after is not None:
                own = and_(_B.tenant_id == tenant_id, _B.batch_id == page.after)
                last = connection.execute(select(*_BY_AGE).where(own)).first()
                if last is None:
                    return None
                query = query.where(tuple_(*_BY_AGE) < tuple(last))
            query = query.order_by(*(each.desc() for each in _BY_AGE)).limit(page.limit + 1)
            return [Batch.model_validate_json(bytes(told)) for told in connection.execute(query).scalars()]

        return await self._database.read(work)

    async def tell(self, tenant_id: str, batch_id: str, event: Event) -> Batch | None:
        def work(connection: Connection) -> Batch | None:
            now_ms = database_now_ms(connection)
            held = _locked(connection, batch_id)
            if held is None or held.batch.tenant_id != tenant_id:
                return None
            if (after := event(held, now_ms)) is not held:
                connection.execute(update(BATCHES).where(_B.batch_id == batch_id).values(**_told(after, now_ms)))
            return after.batch

        return await self._database.write(work)

    async def claim(self, owner: str, most: int, but: Collection[str] = ()) -> list[Held]:
        # Looked for without the writers' lock: most of the time there is none.
        wanted = await self._database.read(lambda connection: _free(connection, most, but))
        if not wanted:
            return []

        def work(connection: Connection) -> list[Held]:
            now_ms = database_now_ms(connection)
            lease = {"epoch": _B.epoch + 1, "leased_until_ms": now_ms + self._lease_ms}
            found = []
            for batch_id in sorted(wanted):
                free = and_(_B.batch_id == batch_id, _B.is_open == 1, _B.leased_until_ms <= now_ms)
                if connection.execute(update(BATCHES).where(free).values(**lease)).rowcount:
                    held = _locked(connection, batch_id)
                    assert held is not None, "it was there a moment ago, in this transaction"
                    found.append(held)
            return found

        return await self._database.write(work)

    async def is_any_free(self) -> bool:
        def work(connection: Connection) -> bool:
            is_free = and_(_B.is_open == 1, _B.leased_until_ms <= database_now_ms(connection))
            return connection.execute(select(_B.batch_id).where(is_free).limit(1)).first() is not None

        return await self._database.read(work)

    async def change(self, held: Held, event: Event) -> Held | None:
        def work(connection: Connection) -> Held | None:
            now_ms = database_now_ms(connection)
            stands = _locked(connection, held.batch.batch_id)
            if stands is None or stands.epoch != held.epoch:
                return None
            after = event(stands, now_ms)
            values = {**_told(after, now_ms), "leased_until_ms": now_ms + self._lease_ms}
            connection.execute(update(BATCHES).where(_B.batch_id == held.batch.batch_id).values(**values))
            return after

        return await self._database.write(work)

    async def renew(self, held: Held) -> Held | None:
        return await self._lease(held, self._lease_ms)

    async def renumber(self, held: Held) -> Held | None:
        return await self._lease(held, self._lease_ms, held.epoch + 1)

    async def release(self, held: Held) -> None:
        await self._lease(held, 0)

    async def _lease(self, held: Held, lasts_ms: int, epoch: int | None = None) -> Held | None:
        def work(connection: Connection) -> Held | None:
            own = and_(_B.batch_id == held.batch.batch_id, _B.epoch == held.epoch)
            until_ms = database_now_ms(connection) + lasts_ms
            lease = {"leased_until_ms": until_ms, "epoch": held.epoch if epoch is None else epoch}
            if not connection.execute(update(BATCHES).where(own).values(**lease)).rowcount:
                return None
            return _locked(connection, held.batch.batch_id)

        return await self._database.write(work)

    async def over_among(self, batch_ids: Sequence[str]) -> list[str]:
        query = select(_B.batch_id).where(_B.batch_id.in_(batch_ids), _B.is_open == 1)
        opened = await self._database.read(lambda connection: {*connection.execute(query).scalars()})
        return [each for each in batch_ids if each not in opened]

    async def purge(self, ended_before_ms: int, limit: int) -> int:
        def work(connection: Connection) -> int:
            before_ms = database_now_ms(connection) - ended_before_ms
            gone = select(_B.batch_id).where(_B.ended_at_ms <= before_ms).order_by(_B.ended_at_ms).limit(limit)
            ids = list(connection.execute(gone).scalars())
            return connection.execute(delete(BATCHES).where(_B.batch_id.in_(ids))).rowcount if ids else 0

        return await self._database.write(work)


def _made_before(connection: Connection, claim: Claim) -> Batch | None:
    """What the key stands for; None where it is free: what the claim says, from now on.

    Raises KeyReused, KeyUnknown.
    """
    if (batch_id := claimed_before(connection, claim)) is None:
        return None
    query = select(_B.batch).where(_B.batch_id == batch_id, _B.tenant_id == claim.tenant_id)
    if (found := connection.execute(query).scalar()) is None:
        raise KeyUnknown
    return Batch.model_validate_json(bytes(found))


def _locked(connection: Connection, batch_id: str) -> Held | None:
    query = select(_B.batch, _B.progress, _B.epoch).where(_B.batch_id == batch_id).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        return None
    batch, progress = Batch.model_validate_json(bytes(row.batch)), Progress.model_validate_json(bytes(row.progress))
    return Held(batch=batch, progress=progress, epoch=row.epoch)


def _told(held: Held, now_ms: int) -> dict[str, Any]:
    """What of a row follows from the batch."""
    batch = held.batch
    return {
        "needs_file_id": None if batch.status in FINAL else batch.input_file_id,
        "is_open": int(batch.is_open), "ended_at_ms": None if batch.is_open else func.coalesce(_B.ended_at_ms, now_ms),
        "batch": batch.model_dump_json().encode(), "progress": held.progress.model_dump_json().encode(),
    }  # fmt: skip


def _free(connection: Connection, most: int, but: Collection[str]) -> list[str]:
    """Of each tenant the one that nobody has held for longest; first of whom fewer are held."""
    now_ms = database_now_ms(connection)
    is_held = and_(_B.is_open == 1, _B.leased_until_ms > now_ms)
    counts = select(_B.tenant_id, func.count().label("held")).where(is_held).group_by(_B.tenant_id)
    held_of = {row.tenant_id: row.held for row in connection.execute(counts)}
    place = func.row_number().over(partition_by=_B.tenant_id, order_by=_BY_WAIT).label("place")
    is_free = and_(_B.is_open == 1, _B.leased_until_ms <= now_ms, _B.batch_id.not_in(but))
    free = select(_B.tenant_id, *_BY_WAIT, place).where(is_free).subquery()
    query = select(free.c.tenant_id, free.c.batch_id).where(free.c.place == 1)
    found = list(connection.execute(query.order_by(*(free.c[each.name] for each in _BY_WAIT)).limit(CLAIMED_AMONG)))
    found.sort(key=lambda row: held_of.get(row.tenant_id, 0))
    return [row.batch_id for row in found[:most]]
