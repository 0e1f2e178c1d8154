"""Turns take their places in conversations, in the transaction that opens their rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, and_, bindparam, case, select, update

from streams.gateway.conversations.port import DELETED_KEPT_MS
from streams.gateway.stored.port import NewTurn
from streams.metadata.tables import CONVERSATIONS

_C = CONVERSATIONS.c
_AT: BindParameter[int] = bindparam("at_ms")
_ONE = and_(
    _C.conversation_id == bindparam("of_conversation"), _C.tenant_id == bindparam("of_tenant"),
    _C.deleted_at_ms.is_(None),
)  # fmt: skip
_PLACE = (
    update(CONVERSATIONS)
    .where(_ONE)
    .values(
        turns=_C.turns + 1,
        updated_at_ms=case((_C.updated_at_ms < _AT, _AT), else_=_C.updated_at_ms),
        title=case((_C.title == "", bindparam("first_title")), else_=_C.title),
        size_bytes=_C.size_bytes + case((_C.title == "", bindparam("first_title_size")), else_=0),
    )
    .returning(_C.turns)
)  # fmt: skip
_PLACE_NEXT = _PLACE.where(_C.turns == bindparam("turns_begun"))
"""The count stands in the row that the update locks: of several that have counted the same one takes the place."""
_IS_THERE = select(_C.conversation_id).where(_ONE)


class Placed(NamedTuple):
    """`turn` is None where the conversation was deleted meanwhile: the turn is deleted as well."""

    turn: int | None
    deleted_at_ms: int | None = None
    expires_at_ms: int | None = None


def placed(connection: Connection, turns: Sequence[NewTurn]) -> dict[str, Placed | None]:
    """Of those that are turns of conversations, by response id. One is None where another was begun before it.

    A row that is there already keeps the place that it has; the conversation has counted one more then, which tells
    nothing but an order.
    """
    # By conversation, as every writer of several does it: none waits for one that waits for it.
    own = sorted((turn for turn in turns if turn.conversation_id), key=_name)
    return {turn.response_id: _place(connection, turn) for turn in own}


def _name(turn: NewTurn) -> tuple[str, str]:
    return turn.conversation_id or "", turn.response_id


def _place(connection: Connection, turn: NewTurn) -> Placed | None:
    values: dict[str, Any] = {
        "of_conversation": turn.conversation_id, "of_tenant": turn.tenant_id, "at_ms": turn.created_at_ms,
        "first_title": turn.title, "first_title_size": len(turn.title),
    }  # fmt: skip
    if turn.turns_begun is None:
        number = connection.execute(_PLACE, values).scalar()
    else:
        number = connection.execute(_PLACE_NEXT, {**values, "turns_begun": turn.turns_begun}).scalar()
        if number is None and connection.execute(_IS_THERE, values).first() is not None:
            return None
    if number is None:
        return Placed(None, turn.created_at_ms, turn.created_at_ms + DELETED_KEPT_MS)
    return Placed(int(number))
