"""Stored responses in the database, in SQL that SQLite and Postgres both speak."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    LargeBinary,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)

from streams.gateway.conversations.placing import Placed, placed
from streams.gateway.stored.port import Answer, Bounds, NewTurn, NotNewest, OpenTurn, StoredTurn
from streams.metadata.clock import database_now_ms
from streams.metadata.database import Database
from streams.metadata.insertion import insertion_into
from streams.metadata.tables import CONVERSATIONS, STORED_RESPONSES
from streams.metadata.together import Together

OPENED_TOGETHER: Final = 128
OPENED_TOGETHER_BYTES: Final = 8 * 1024 * 1024

_R = STORED_RESPONSES.c
_COMPLETE: Final = (
    update(STORED_RESPONSES)
    .where(
        _R.response_id == bindparam("of_response"), _R.tenant_id == bindparam("of_tenant"),
        _R.told.is_(None), _R.deleted_at_ms.is_(None),
    )
    .values(
        told=bindparam("answer"), look_at_ms=None, carried_bytes=_R.carried_bytes + bindparam("said_bytes"),
        size_bytes=_R.size_bytes + bindparam("answer_bytes"), tokens=bindparam("used_tokens"),
    )
)  # fmt: skip
EMPTIED: Final[dict[str, Any]] = {
    "input": b"", "told": None, "look_at_ms": None, "carried_bytes": 0, "size_bytes": 0,
}  # fmt: skip
"""What is left of a row that is deleted."""
_SHOWN: Final = (_R.response_id, _R.previous_response_id, _R.input, _R.told, _R.carried_bytes, _R.created_at_ms)


def _live(table: FromClause, tenant_id: str, now_ms: int) -> ColumnElement[bool]:
    return and_(
        table.c.tenant_id == tenant_id, table.c.deleted_at_ms.is_(None), table.c.expires_at_ms > now_ms,
        ~_with_its_conversation(table),
    )  # fmt: skip


def _with_its_conversation(table: FromClause) -> ColumnElement[bool]:
    """Whether it is a turn of a deleted one."""
    conversations = CONVERSATIONS.c
    return exists().where(
        conversations.conversation_id == table.c.conversation_id, conversations.deleted_at_ms.is_not(None)
    )


@dataclass(slots=True)
class _Opening:
    """Others are opened in its transaction, which one without a place does not keep from anything."""

    turn: NewTurn
    has_place: bool = True


class SqlStoredResponses:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._opening = Together(
            self._open,
            lambda opening: len(opening.turn.input),
            max_rows=OPENED_TOGETHER,
            max_bytes=OPENED_TOGETHER_BYTES,
        )

    async def now_ms(self) -> int:
        return await self._database.read(database_now_ms)

    async def open(self, turn: NewTurn) -> None:
        opening = _Opening(turn)
        await self._opening.add(opening)
        if not opening.has_place:
            raise NotNewest

    async def _open(self, together: Sequence[_Opening]) -> None:
        in_order = sorted(together, key=lambda opening: opening.turn.response_id)

        def work(connection: Connection) -> None:
            places = placed(connection, [opening.turn for opening in in_order])
            rows = []
            for opening in in_order:
                place = places.get(opening.turn.response_id, Placed(None))
                opening.has_place = place is not None
                if place is not None:
                    rows.append(_row(opening.turn, place))
            if rows:
                connection.execute(insertion_into(connection, STORED_RESPONSES).on_conflict_do_nothing(), rows)

        await self._database.write(work)

    async def complete(self, answers: Sequence[Answer]) -> None:
        # By id, as every writer of several rows does it: none waits for one that waits for it.
        values = [
            {
                "of_response": answer.response_id, "of_tenant": answer.tenant_id, "answer": answer.told,
                "said_bytes": answer.said_bytes, "answer_bytes": len(answer.told), "used_tokens": answer.tokens,
            }
            for answer in sorted(answers, key=lambda answer: answer.response_id)
        ]  # fmt: skip

        def work(connection: Connection) -> None:
            connection.execute(_COMPLETE, values)

        if values:
            await self._database.write(work)

    async def one(self, tenant_id: str, response_id: str, now_ms: int) -> StoredTurn | None:
        found = await self.chain(tenant_id, response_id, now_ms, max_turns=0, max_bytes=0, max_read_bytes=0)
        return found[0] if found else None

    async def told(self, tenant_id: str, response_id: str, now_ms: int, begin: int, size_bytes: int) -> bytes | None:
        query = select(func.substr(_R.told, begin + 1, size_bytes, type_=LargeBinary)).where(
            _R.response_id == response_id, _live(STORED_RESPONSES, tenant_id, now_ms)
        )

        def work(connection: Connection) -> bytes | None:
            told = connection.execute(query).scalar()
            return None if told is None else bytes(told)

        return await self._database.read(work)

    async def chain(
        self, tenant_id: str, response_id: str, now_ms: int, *, max_turns: int, max_bytes: int, max_read_bytes: int
    ) -> list[StoredTurn]:
        newest = (
            select(
                _R.response_id,
                _R.previous_response_id,
                literal(1).label("turns"),
                _R.carried_bytes.label("carried_bytes"),
                _R.size_bytes.label("read_bytes"),
            )
            .where(_R.response_id == response_id, _live(STORED_RESPONSES, tenant_id, now_ms))
            .cte("chain", recursive=True)
        )
        older = STORED_RESPONSES.alias("older")
        chain = newest.union_all(
            select(
                older.c.response_id, older.c.previous_response_id, newest.c.turns + 1,
                newest.c.carried_bytes + older.c.carried_bytes, newest.c.read_bytes + older.c.size_bytes,
            ).where(
                older.c.response_id == newest.c.previous_response_id, _live(older, tenant_id, now_ms),
                newest.c.turns <= max_turns, newest.c.carried_bytes <= max_bytes, newest.c.read_bytes <= max_read_bytes,
            )
        )  # fmt: skip
        query = select(*_SHOWN).join(chain, _R.response_id == chain.c.response_id).order_by(chain.c.turns)

        def work(connection: Connection) -> list[StoredTurn]:
            return [_stored(row) for row in connection.execute(query)]

        return await self._database.read(work)

    async def delete(self, tenant_id: str, response_id: str, now_ms: int, known_until_ms: int) -> bool:
        deletion = (
            update(STORED_RESPONSES)
            .where(_R.response_id == response_id, _live(STORED_RESPONSES, tenant_id, now_ms))
            .values(deleted_at_ms=now_ms, expires_at_ms=known_until_ms, **EMPTIED)
        )
        return await self._database.write(lambda connection: connection.execute(deletion).rowcount > 0)

    async def is_deleted(self, tenant_id: str, response_id: str) -> bool:
        query = select(_R.response_id).where(
            _R.response_id == response_id, _R.tenant_id == tenant_id,
            or_(_R.deleted_at_ms.is_not(None), _with_its_conversation(STORED_RESPONSES)),
        )  # fmt: skip
        return await self._database.read(lambda connection: connection.execute(query).first() is not None)

    async def due(self, now_ms: int, again_at_ms: int, limit: int) -> list[OpenTurn]:
        query = (
            select(_R.response_id, _R.tenant_id, _R.created_at_ms)
            .where(_R.look_at_ms <= now_ms)
            .order_by(_R.look_at_ms, _R.response_id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> list[OpenTurn]:
            found = [OpenTurn(*row) for row in connection.execute(query)]
            if found:
                ids = [turn.response_id for turn in found]
                later = again_at_ms + now_ms - _R.created_at_ms
                claim = update(STORED_RESPONSES).where(_R.response_id.in_(ids)).values(look_at_ms=later)
                connection.execute(claim)
            return found

        return await self._database.write(work)

    async def drop(self, response_ids: Sequence[str]) -> None:
        if response_ids:
            await self._forget(
                delete(STORED_RESPONSES).where(
                    _R.response_id.in_(response_ids), _R.told.is_(None), _R.deleted_at_ms.is_(None)
                )
            )

    async def purge(self, now_ms: int, at_once: Bounds) -> int:
        expired = (
            select(_R.response_id, _R.size_bytes)
            .where(_R.expires_at_ms <= now_ms)
            .order_by(_R.expires_at_ms, _R.response_id)
            .limit(at_once.rows)
            .with_for_update(skip_locked=True)
        )

        def work(connection: Connection) -> int:
            ids = at_once.first(tuple(row) for row in connection.execute(expired))
            connection.execute(delete(STORED_RESPONSES).where(_R.response_id.in_(ids)))
            return len(ids)

        return await self._database.write(work)

    async def shed(self, tenant_id: str, kept: Bounds, at_once: Bounds) -> int:
        # Looked for without the writers' lock: a tenant may have a million, and seldom has too many.
        if gone := await self._database.read(lambda connection: _beyond(connection, tenant_id, kept, at_once)):
            return await self._forget(delete(STORED_RESPONSES).where(_R.response_id.in_(gone)))
        return 0

    async def _forget(self, deletion: Any) -> int:
        return await self._database.write(lambda connection: int(connection.execute(deletion).rowcount))

    async def close(self) -> None:
        await self._database.close()


def _beyond(connection: Connection, tenant_id: str, kept: Bounds, at_once: Bounds) -> list[str]:
    """Ids of the oldest of what the tenant has beyond its bounds. An index holds all that is asked for."""
    own = and_(_R.tenant_id == tenant_id, _R.deleted_at_ms.is_(None))
    rows, size_bytes = connection.execute(select(func.count(), func.sum(_R.size_bytes)).where(own)).one()
    by_age = (_R.deleted_at_ms, _R.created_at_ms, _R.response_id)  # as in the index
    oldest = select(_R.response_id, _R.size_bytes).where(own).order_by(*by_age).limit(at_once.rows)
    return at_once.first(kept.beyond(rows, int(size_bytes or 0), (tuple(row) for row in connection.execute(oldest))))


def _row(turn: NewTurn, place: Placed) -> dict[str, Any]:
    is_deleted = place.deleted_at_ms is not None
    said = b"" if is_deleted else turn.input
    return {
        "response_id": turn.response_id, "tenant_id": turn.tenant_id,
        "previous_response_id": turn.previous_response_id, "created_at_ms": turn.created_at_ms,
        "expires_at_ms": place.expires_at_ms if is_deleted else turn.expires_at_ms,
        "look_at_ms": None if is_deleted else turn.look_at_ms, "deleted_at_ms": place.deleted_at_ms,
        "input": said, "carried_bytes": len(said), "size_bytes": len(said),
        "conversation_id": turn.conversation_id, "turn": place.turn,
    }  # fmt: skip


def _stored(row: Any) -> StoredTurn:
    return StoredTurn(
        row.response_id, row.previous_response_id, bytes(row.input), None if row.told is None else bytes(row.told),
        row.carried_bytes, row.created_at_ms,
    )  # fmt: skip
