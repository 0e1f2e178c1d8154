"""Conversations in the database, in SQL that SQLite and Postgres both speak. Whoever opened the database closes it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, func, insert, or_, select, update

from streams.gateway.conversations.port import (
    DELETED_KEPT_MS,
    Conversation,
    Head,
    NewConversation,
    Turns,
    metadata_text,
    size_bytes_of,
)
from streams.gateway.idempotency.port import Claim, KeyUnknown
from streams.gateway.idempotency.sql import claimed_before
from streams.gateway.stored.port import Bounds
from streams.gateway.stored.sql import EMPTIED
from streams.metadata.clock import database_now_ms
from streams.metadata.database import Database
from streams.metadata.tables import CONVERSATIONS, STORED_RESPONSES

_C = CONVERSATIONS.c
_R = STORED_RESPONSES.c
_TOLD: Final = (_C.conversation_id, _C.owner, _C.title, _C.metadata, _C.created_at_ms, _C.updated_at_ms)
_LIVING: Final = _C.deleted_at_ms.is_(None)


def _of(tenant_id: str, owner: str | None) -> ColumnElement[bool]:
    own = and_(_C.tenant_id == tenant_id, _LIVING)
    return own if owner is None else and_(own, _C.owner == owner)


def _one(tenant_id: str, owner: str | None, conversation_id: str) -> Select[Any]:
    return select(*_TOLD).where(_C.conversation_id == conversation_id, _of(tenant_id, owner))


def _turns_of(tenant_id: str, conversation_id: str) -> ColumnElement[bool]:
    return and_(_R.conversation_id == conversation_id, _R.tenant_id == tenant_id, _R.deleted_at_ms.is_(None))


class SqlConversations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, new: NewConversation, claim: Claim | None = None) -> Conversation:
        row = {
            "conversation_id": new.conversation_id, "tenant_id": new.tenant_id, "owner": new.owner,
            "title": new.title, "metadata": metadata_text(new.metadata), "created_at_ms": new.created_at_ms,
            "updated_at_ms": new.created_at_ms, "turns": 0, "opening": new.opening,
            "size_bytes": size_bytes_of(new.opening, new.title, new.metadata),
        }  # fmt: skip

        def work(connection: Connection) -> Conversation:
            made = None if claim is None else claimed_before(connection, claim)
            if made is None:
                connection.execute(insert(CONVERSATIONS), row)
                return new.begun()
            found = _first(connection, _one(new.tenant_id, new.owner, made))
            if found is None:
                raise KeyUnknown
            return found

        return await self._database.write(work)

    async def one(self, tenant_id: str, owner: str | None, conversation_id: str) -> Conversation | None:
        query = _one(tenant_id, owner, conversation_id)
        return await self._database.read(lambda connection: _first(connection, query))

    async def opening(self, tenant_id: str, conversation_id: str) -> bytes:
        query = select(_C.opening).where(_C.conversation_id == conversation_id, _of(tenant_id, None))
        return await self._database.read(lambda connection: bytes(connection.execute(query).scalar() or b""))

    async def listed(self, tenant_id: str, owner: str | None, after: str | None, limit: int) -> list[Conversation]:
        def work(connection: Connection) -> list[Conversation]:
            query = select(*_TOLD).where(_of(tenant_id, owner))
            if after is not None:
                begin = select(_C.updated_at_ms).where(_C.conversation_id == after, _of(tenant_id, owner))
                at_ms = connection.execute(begin).scalar()
                if at_ms is None:
                    return []
                same = and_(_C.updated_at_ms == at_ms, _C.conversation_id < after)
                query = query.where(or_(_C.updated_at_ms < at_ms, same))
            query = query.order_by(_C.updated_at_ms.desc(), _C.conversation_id.desc()).limit(limit)
            return [_told(row) for row in connection.execute(query)]

        return await self._database.read(work)

    async def change(
        self, tenant_id: str, owner: str | None, conversation_id: str, at_ms: int, *, title: str | None,
        metadata: Mapping[str, str] | None,
    ) -> Conversation | None:  # fmt: skip
        own = and_(_C.conversation_id == conversation_id, _of(tenant_id, owner))
        named = {"title": title, "metadata": None if metadata is None else metadata_text(metadata)}
        values: dict[str, Any] = {name: value for name, value in named.items() if value is not None}

        def work(connection: Connection) -> Conversation | None:
            row = connection.execute(select(_C.title, _C.metadata, _C.updated_at_ms, _C.size_bytes).where(own)).first()
            if row is None:
                return None
            grown = sum(len(value) - len(getattr(row, name)) for name, value in values.items())
            sized = {"size_bytes": row.size_bytes + grown, "updated_at_ms": max(row.updated_at_ms, at_ms)}
            connection.execute(update(CONVERSATIONS).where(own).values(**values, **sized))
            return _first(connection, select(*_TOLD).where(own))

        return await self._database.write(work)

    async def delete(self, tenant_id: str, owner: str | None, conversation_id: str) -> bool:
        own = and_(_C.conversation_id == conversation_id, _of(tenant_id, owner))

        def work(connection: Connection) -> bool:
            at_ms = database_now_ms(connection)
            deleted = {"deleted_at_ms": at_ms, "expires_at_ms": at_ms + DELETED_KEPT_MS}
            return connection.execute(update(CONVERSATIONS).where(own).values(**deleted)).rowcount > 0

        return await self._database.write(work)

    async def head(self, tenant_id: str, conversation_id: str, own_id: str) -> Head:
        turns = _turns_of(tenant_id, conversation_id)
        own = select(_R.previous_response_id).where(_R.response_id == own_id, turns)
        newest = select(_R.response_id).where(turns).order_by(_R.turn.desc()).limit(1)
        begun = select(_C.turns).where(_C.conversation_id == conversation_id, _of(tenant_id, None))

        def work(connection: Connection) -> Head:
            if own_id and (found := connection.execute(own).first()) is not None:
                return Head(found[0], None)
            # Counted first: what is begun in between is found, and then counts as one more.
            turns_begun = connection.execute(begun).scalar()
            return Head(connection.execute(newest).scalar(), turns_begun)

        return await self._database.read(work)

    async def is_turn(self, tenant_id: str, conversation_id: str, response_id: str) -> bool:
        return await self.conversation_of(tenant_id, response_id) == conversation_id

    async def conversation_of(self, tenant_id: str, response_id: str) -> str | None:
        query = select(_R.conversation_id).where(
            _R.response_id == response_id, _R.tenant_id == tenant_id, _R.deleted_at_ms.is_(None)
        )
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def turns(self, tenant_id: str, conversation_id: str, limit: int) -> Turns:
        own = _turns_of(tenant_id, conversation_id)
        newest = select(_R.response_id, _R.previous_response_id).where(own).order_by(_R.turn.desc()).limit(limit)
        used = select(func.sum(_R.tokens)).where(own)

        def work(connection: Connection) -> Turns:
            parents = {row.response_id: row.previous_response_id for row in connection.execute(newest)}
            return Turns(parents, int(connection.execute(used).scalar() or 0))

        return await self._database.read(work)

    async def purge(self, at_once: Bounds, replayed_ms: int) -> int:
        def work(connection: Connection) -> int:
            at_ms = database_now_ms(connection)
            expired = (
                select(_C.conversation_id)
                .where(_C.expires_at_ms <= at_ms)
                .order_by(_C.expires_at_ms, _C.conversation_id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            conversation_id = connection.execute(expired).scalar()
            if conversation_id is None:
                return 0
            is_told = _R.created_at_ms > at_ms - replayed_ms
            own = and_(_R.conversation_id == conversation_id, or_(~is_told, _R.deleted_at_ms.is_(None)))
            in_order = (func.coalesce(_R.turn, 0), _R.response_id)
            oldest = select(_R.response_id, _R.size_bytes).where(own).order_by(*in_order).limit(at_once.rows)
            turns = connection.execute(oldest)
            if ids := at_once.first(tuple(row) for row in turns):
                chosen = _R.response_id.in_(ids)
                deleted = {"deleted_at_ms": at_ms, "expires_at_ms": at_ms + replayed_ms}
                connection.execute(delete(STORED_RESPONSES).where(chosen, ~is_told))
                connection.execute(update(STORED_RESPONSES).where(chosen).values(**EMPTIED, **deleted))
                return len(ids)
            gone = delete(CONVERSATIONS).where(_C.conversation_id == conversation_id)
            return int(connection.execute(gone).rowcount)

        return await self._database.write(work)

    async def shed(self, tenant_id: str, kept: Bounds, limit: int) -> int:
        # Looked for without the writers' lock: a tenant seldom has too many.
        gone = await self._database.read(lambda connection: _beyond(connection, tenant_id, kept, limit))
        if not gone:
            return 0

        def work(connection: Connection) -> int:
            at_ms = database_now_ms(connection)
            due = update(CONVERSATIONS).where(_C.conversation_id.in_(gone), _C.expires_at_ms.is_distinct_from(0))
            left = due.values(deleted_at_ms=func.coalesce(_C.deleted_at_ms, at_ms), expires_at_ms=0)
            return int(connection.execute(left).rowcount)

        return await self._database.write(work)


def _beyond(connection: Connection, tenant_id: str, kept: Bounds, limit: int) -> list[str]:
    """Ids of those that must go, as `ConversationStore.shed` says."""
    own = and_(_C.tenant_id == tenant_id, _C.expires_at_ms.is_distinct_from(0))
    rows, size_bytes = connection.execute(select(func.count(), func.sum(_C.size_bytes)).where(own)).one()
    oldest: list[tuple[str, int]] = []
    by_age = (_C.deleted_at_ms, _C.updated_at_ms, _C.conversation_id)  # as in the index
    # Empty ones cost nothing to make: they never take the place of what somebody has said.
    for kind in (_C.deleted_at_ms.is_not(None), and_(_LIVING, _C.turns == 0), and_(_LIVING, _C.turns > 0)):
        of_kind = select(_C.conversation_id, _C.size_bytes).where(own, kind).order_by(*by_age).limit(limit)
        oldest += [tuple(row) for row in connection.execute(of_kind)]
    return [name for name, _ in kept.beyond(rows, int(size_bytes or 0), oldest)][:limit]


def _first(connection: Connection, query: Any) -> Conversation | None:
    row = connection.execute(query).first()
    return None if row is None else _told(row)


def _told(row: Any) -> Conversation:
    conversation_id, owner, title, metadata, created_at_ms, updated_at_ms = row
    return Conversation(conversation_id, owner, title, json.loads(metadata), created_at_ms, updated_at_ms)
