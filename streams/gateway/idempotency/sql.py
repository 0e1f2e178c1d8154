"""Keys in the database, in SQL that SQLite and Postgres both speak. Whoever opened the database closes it."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, func, select, tuple_, update

from streams.gateway.idempotency.decision import made_before
from streams.gateway.idempotency.port import KEPT_MS, Claim, Held
from streams.metadata.clock import database_now_ms
from streams.metadata.database import Database
from streams.metadata.insertion import insertion_into
from streams.metadata.tables import IDEMPOTENCY_KEYS
from streams.metadata.together import Together
from streams.metadata.unavailable import MetadataUnavailable

CLAIMED_TOGETHER: Final = 128
ROW_BYTES: Final = 1_024
"""At most, of a claim with the longest key."""

_K = IDEMPOTENCY_KEYS.c
_NAME: Final = (_K.tenant_id, _K.idempotency_key)
_CLAIM: Final = (*_NAME, _K.began_at_ms)
_CLAIMED: Final = ("digest", "response_id", "began_at_ms", "tried_at_ms", "expires_at_ms")


class _Claiming:
    """A claim on its way, and what its key stands for afterwards; None: somebody has forgotten it since."""

    __slots__ = ("claim", "held")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.held: Held | None = None


class SqlIdempotencyKeys:
    def __init__(self, database: Database, *, kept_ms: int = KEPT_MS) -> None:
        self._database = database
        self._kept_ms = kept_ms
        self._claiming = Together(
            self._claim, lambda _: ROW_BYTES, max_rows=CLAIMED_TOGETHER, max_bytes=CLAIMED_TOGETHER * ROW_BYTES
        )

    async def claim(self, claim: Claim) -> Held:
        claiming = _Claiming(claim)
        await self._claiming.add(claiming)
        if claiming.held is None:
            raise MetadataUnavailable("a key was forgotten while it was claimed")
        return claiming.held

    async def _claim(self, claimings: Sequence[_Claiming]) -> None:
        claims = [claiming.claim for claiming in claimings]
        found = await self._database.write(lambda connection: claimed(connection, claims, self._kept_ms))
        for claiming in claimings:
            claiming.held = found.get((claiming.claim.tenant_id, claiming.claim.key))

    async def take(self, claim: Claim, held: Held) -> bool:
        def work(connection: Connection) -> bool:
            at_ms = database_now_ms(connection)
            values: dict[str, Any] = {"tried_at_ms": at_ms}
            if claim.response_id != held.response_id:
                values |= {"response_id": claim.response_id, "began_at_ms": at_ms}
                values["expires_at_ms"] = at_ms + self._kept_ms
            taking = (
                update(IDEMPOTENCY_KEYS)
                .where(_stands_for(claim, held.response_id), _K.tried_at_ms == held.tried_at_ms)
                .values(**values)
            )
            return connection.execute(taking).rowcount > 0

        return await self._database.write(work)

    async def let_go(self, claim: Claim) -> None:
        letting_go = update(IDEMPOTENCY_KEYS).where(_stands_for(claim, claim.response_id)).values(tried_at_ms=0)
        await self._change(letting_go)

    async def drop(self, claim: Claim, held: Held) -> None:
        untried_since = _K.tried_at_ms == held.tried_at_ms
        await self._change(delete(IDEMPOTENCY_KEYS).where(_stands_for(claim, claim.response_id), untried_since))

    async def purge(self, limit: int) -> int:
        def work(connection: Connection) -> int:
            expired = (
                select(*_NAME)
                .where(_K.expires_at_ms <= database_now_ms(connection))
                .order_by(_K.expires_at_ms, *_NAME)
                .limit(limit)
                .with_for_update(skip_locked=True)
            )
            return _forget(connection, [tuple(row) for row in connection.execute(expired)])

        return await self._database.write(work)

    async def shed(self, tenant_id: str, kept: int, limit: int) -> int:
        own = _K.tenant_id == tenant_id

        def beyond(connection: Connection) -> list[tuple[str, str, int]]:
            """An index holds all that is asked for."""
            count = connection.execute(select(func.count()).where(own).select_from(IDEMPOTENCY_KEYS)).scalar_one()
            if count <= kept:
                return []
            by_age = select(*_CLAIM).where(own).order_by(_K.began_at_ms, _K.idempotency_key)
            return [tuple(row) for row in connection.execute(by_age.limit(min(limit, count - kept)))]

        # Looked for without the writers' lock: a tenant may have a million, and seldom has too many.
        claims = await self._database.read(beyond)
        # One that is claimed anew meanwhile is another claim.
        return await self._database.write(lambda connection: _forget(connection, claims, _CLAIM)) if claims else 0

    async def _change(self, change: Any) -> None:
        def work(connection: Connection) -> None:
            connection.execute(change)

        await self._database.write(work)


def claimed(connection: Connection, claims: Sequence[Claim], kept_ms: int) -> dict[tuple[str, str], Held]:
    """What each key stands for, by tenant and key, in a transaction of whoever makes what it is to stand for."""
    # By name, as every writer of several rows does it: none waits for one that waits for it.
    claims = sorted(claims, key=lambda claim: claim[:2])
    at_ms = database_now_ms(connection)
    insertion = insertion_into(connection, IDEMPOTENCY_KEYS)
    insertion = insertion.on_conflict_do_update(
        index_elements=list(_NAME),
        set_={name: insertion.excluded[name] for name in _CLAIMED},
        where=_K.expires_at_ms <= insertion.excluded.began_at_ms,
    )
    connection.execute(insertion, [_row(claim, at_ms, kept_ms) for claim in claims])
    held = select(*_NAME, _K.digest, _K.response_id, _K.began_at_ms, _K.tried_at_ms).where(
        tuple_(*_NAME).in_([claim[:2] for claim in claims])
    )
    return {
        (row.tenant_id, row.idempotency_key): Held(
            bytes(row.digest), row.response_id, row.began_at_ms, row.tried_at_ms, at_ms
        )
        for row in connection.execute(held)
    }


def claimed_before(connection: Connection, claim: Claim) -> str | None:
    """See `made_before`, in the transaction of whoever makes it."""
    held = claimed(connection, [claim], KEPT_MS).get((claim.tenant_id, claim.key))
    if held is None:
        raise MetadataUnavailable("a key was forgotten while it was claimed")
    return made_before(claim, held)


def _row(claim: Claim, at_ms: int, kept_ms: int) -> dict[str, Any]:
    return {
        "tenant_id": claim.tenant_id, "idempotency_key": claim.key, "digest": claim.digest,
        "response_id": claim.response_id, "began_at_ms": at_ms, "tried_at_ms": at_ms,
        "expires_at_ms": at_ms + kept_ms,
    }  # fmt: skip


def _stands_for(claim: Claim, response_id: str) -> ColumnElement[bool]:
    return and_(
        _K.tenant_id == claim.tenant_id, _K.idempotency_key == claim.key, _K.response_id == response_id
    )  # fmt: skip


def _forget(connection: Connection, found: Sequence[tuple[Any, ...]], columns: Sequence[Column[Any]] = _NAME) -> int:
    if not found:
        return 0
    return int(connection.execute(delete(IDEMPOTENCY_KEYS).where(tuple_(*columns).in_(list(found)))).rowcount)
