"""Stored responses in memory: what the contract's suite holds against the database, and gateways are tested on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from streams.clocks import now_ms
from streams.gateway.conversations.port import DELETED_KEPT_MS, Conversation, size_bytes_of
from streams.gateway.stored.port import Answer, Bounds, NewTurn, NotNewest, OpenTurn, StoredTurn
from streams.metadata.unavailable import MetadataUnavailable


@dataclass(slots=True)
class Kept:
    """Of a conversation. `expires_at_ms`: of one that is deleted."""

    tenant_id: str
    opening: bytes
    shown: Conversation
    turns: int = 0
    deleted_at_ms: int | None = None
    expires_at_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return size_bytes_of(self.opening, self.shown.title, self.shown.metadata)


@dataclass(slots=True)
class Row:
    turn: NewTurn
    input: bytes
    look_at_ms: int | None
    carried_bytes: int
    told: bytes | None = None
    deleted_at_ms: int | None = None
    number: int = 0
    """Of a turn in its conversation."""
    tokens: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.input) + len(self.told or b"")

    def empty(self, at_ms: int, known_until_ms: int) -> None:
        """It is deleted."""
        self.deleted_at_ms, self.look_at_ms = at_ms, None
        self.input, self.told, self.carried_bytes = b"", None, 0
        self.turn = replace(self.turn, expires_at_ms=known_until_ms)


class MemoryStoredResponses:
    """`is_away`: every call fails."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self.conversations: dict[str, Kept] = {}
        """What `MemoryConversations` shows of it."""
        self.is_away = False

    def __len__(self) -> int:
        return len(self._rows)

    def open_ids(self) -> list[str]:
        """Of rows that wait for their answer."""
        return [response_id for response_id, row in self._rows.items() if row.look_at_ms is not None]

    def at_hand(self) -> dict[str, Row]:
        """Raises MetadataUnavailable."""
        if self.is_away:
            raise MetadataUnavailable("away")
        return self._rows

    def _live(self, tenant_id: str, response_id: str | None, now_ms: int) -> Row | None:
        row = self.at_hand().get(response_id or "")
        if row is None or row.turn.tenant_id != tenant_id:
            return None
        return row if not self._is_deleted(row) and row.turn.expires_at_ms > now_ms else None

    def _is_deleted(self, row: Row) -> bool:
        """By itself, or with its conversation."""
        kept = self.conversations.get(row.turn.conversation_id or "")
        return row.deleted_at_ms is not None or (kept is not None and kept.deleted_at_ms is not None)

    async def now_ms(self) -> int:
        self.at_hand()
        return now_ms()

    async def open(self, turn: NewTurn) -> None:
        rows = self.at_hand()
        kept = self.conversations.get(turn.conversation_id or "")
        is_placed = kept is not None and kept.tenant_id == turn.tenant_id and kept.deleted_at_ms is None
        if kept is not None and is_placed:
            if turn.turns_begun not in (None, kept.turns):
                raise NotNewest
            kept.turns += 1
            at_ms = max(kept.shown.updated_at_ms, turn.created_at_ms)
            kept.shown = replace(kept.shown, updated_at_ms=at_ms, title=kept.shown.title or turn.title)
        if turn.response_id in rows:
            return
        row = rows[turn.response_id] = Row(turn, turn.input, turn.look_at_ms, len(turn.input))
        if kept is not None and is_placed:
            row.number = kept.turns
        elif turn.conversation_id is not None:
            row.deleted_at_ms, row.look_at_ms = turn.created_at_ms, None
            row.input, row.carried_bytes = b"", 0
            row.turn = replace(turn, expires_at_ms=turn.created_at_ms + DELETED_KEPT_MS)

    async def complete(self, answers: Sequence[Answer]) -> None:
        rows = self.at_hand()
        for answer in answers:
            row = rows.get(answer.response_id)
            if row is None or row.turn.tenant_id != answer.tenant_id:
                continue
            if row.told is None and row.deleted_at_ms is None:
                row.told, row.look_at_ms, row.tokens = answer.told, None, answer.tokens
                row.carried_bytes += answer.said_bytes

    async def one(self, tenant_id: str, response_id: str, now_ms: int) -> StoredTurn | None:
        row = self._live(tenant_id, response_id, now_ms)
        return None if row is None else _stored(row)

    async def told(self, tenant_id: str, response_id: str, now_ms: int, begin: int, size_bytes: int) -> bytes | None:
        row = self._live(tenant_id, response_id, now_ms)
        return None if row is None or row.told is None else row.told[begin : begin + size_bytes]

    async def chain(
        self, tenant_id: str, response_id: str, now_ms: int, *, max_turns: int, max_bytes: int, max_read_bytes: int
    ) -> list[StoredTurn]:
        found: list[StoredTurn] = []
        carried_bytes = read_bytes = 0
        row = self._live(tenant_id, response_id, now_ms)
        while row is not None:
            found.append(_stored(row))
            carried_bytes += row.carried_bytes
            read_bytes += row.size_bytes
            if len(found) > max_turns or carried_bytes > max_bytes or read_bytes > max_read_bytes:
                break
            row = self._live(tenant_id, row.turn.previous_response_id, now_ms)
        return found

    async def delete(self, tenant_id: str, response_id: str, now_ms: int, known_until_ms: int) -> bool:
        row = self._live(tenant_id, response_id, now_ms)
        if row is None:
            return False
        row.empty(now_ms, known_until_ms)
        return True

    async def is_deleted(self, tenant_id: str, response_id: str) -> bool:
        row = self.at_hand().get(response_id)
        return row is not None and row.turn.tenant_id == tenant_id and self._is_deleted(row)

    async def due(self, now_ms: int, again_at_ms: int, limit: int) -> list[OpenTurn]:
        waiting = [row for row in self.at_hand().values() if row.look_at_ms is not None and row.look_at_ms <= now_ms]
        waiting.sort(key=lambda row: (row.look_at_ms or 0, row.turn.response_id))
        for row in waiting[:limit]:
            row.look_at_ms = again_at_ms + now_ms - row.turn.created_at_ms
        return [OpenTurn(row.turn.response_id, row.turn.tenant_id, row.turn.created_at_ms) for row in waiting[:limit]]

    async def drop(self, response_ids: Sequence[str]) -> None:
        rows = self.at_hand()
        for response_id in response_ids:
            row = rows.get(response_id)
            if row is not None and row.told is None and row.deleted_at_ms is None:
                del rows[response_id]

    async def purge(self, now_ms: int, at_once: Bounds) -> int:
        rows = self.at_hand()
        gone = sorted((row.turn.expires_at_ms, name) for name, row in rows.items() if row.turn.expires_at_ms <= now_ms)
        return self._forget(at_once.first((name, rows[name].size_bytes) for _, name in gone))

    async def shed(self, tenant_id: str, kept: Bounds, at_once: Bounds) -> int:
        own = [
            (row.turn.created_at_ms, name, row.size_bytes)
            for name, row in self.at_hand().items()
            if row.turn.tenant_id == tenant_id and row.deleted_at_ms is None
        ]
        oldest = [(name, size_bytes) for _, name, size_bytes in sorted(own)]
        return self._forget(at_once.first(kept.beyond(len(own), sum(size for _, size in oldest), oldest)))

    def _forget(self, response_ids: Sequence[str]) -> int:
        for response_id in response_ids:
            del self._rows[response_id]
        return len(response_ids)

    async def close(self) -> None: ...


def _stored(row: Row) -> StoredTurn:
    turn = row.turn
    return StoredTurn(
        turn.response_id, turn.previous_response_id, row.input, row.told, row.carried_bytes, turn.created_at_ms
    )
