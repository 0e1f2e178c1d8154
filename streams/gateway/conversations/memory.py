"""Conversations in memory: what the contract's suite holds against the database, and gateways are tested on."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from streams.clocks import now_ms
from streams.gateway.conversations.port import DELETED_KEPT_MS, Conversation, Head, NewConversation, Turns
from streams.gateway.idempotency.decision import made_before
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import Claim, KeyUnknown
from streams.gateway.stored.memory import Kept, MemoryStoredResponses, Row
from streams.gateway.stored.port import Bounds


class MemoryConversations:
    """Beside stored responses in memory, and away when they are. `skew_ms`: by so much its clock is ahead."""

    def __init__(self, stored: MemoryStoredResponses, keys: MemoryIdempotencyKeys | None = None) -> None:
        self._stored = stored
        self._keys = MemoryIdempotencyKeys() if keys is None else keys
        self.skew_ms = 0

    def _kept(self) -> dict[str, Kept]:
        self._stored.at_hand()
        return self._stored.conversations

    def _of(self, tenant_id: str, owner: str | None, conversation_id: str) -> Kept | None:
        kept = self._kept().get(conversation_id)
        if kept is None or kept.tenant_id != tenant_id or kept.deleted_at_ms is not None:
            return None
        return kept if owner in (None, kept.shown.owner) else None

    def _turns_of(self, tenant_id: str, *conversation_ids: str) -> Iterator[Row]:
        for row in self._stored.at_hand().values():
            turn = row.turn
            if turn.conversation_id in conversation_ids and turn.tenant_id == tenant_id and row.deleted_at_ms is None:
                yield row

    async def create(self, new: NewConversation, claim: Claim | None = None) -> Conversation:
        conversations = self._kept()
        made = None if claim is None else made_before(claim, await self._keys.claim(claim))
        if made is None:
            shown = new.begun()
            conversations[new.conversation_id] = Kept(new.tenant_id, new.opening, shown)
            return shown
        kept = self._of(new.tenant_id, new.owner, made)
        if kept is None:
            raise KeyUnknown
        return kept.shown

    async def one(self, tenant_id: str, owner: str | None, conversation_id: str) -> Conversation | None:
        kept = self._of(tenant_id, owner, conversation_id)
        return None if kept is None else kept.shown

    async def opening(self, tenant_id: str, conversation_id: str) -> bytes:
        kept = self._of(tenant_id, None, conversation_id)
        return b"" if kept is None else kept.opening

    async def listed(self, tenant_id: str, owner: str | None, after: str | None, limit: int) -> list[Conversation]:
        own = [kept.shown for name in self._kept() if (kept := self._of(tenant_id, owner, name)) is not None]
        own.sort(key=_by_use, reverse=True)
        if after is not None:
            begin = self._of(tenant_id, owner, after)
            own = [] if begin is None else [each for each in own if _by_use(each) < _by_use(begin.shown)]
        return own[:limit]

    async def change(
        self, tenant_id: str, owner: str | None, conversation_id: str, at_ms: int, *, title: str | None,
        metadata: Mapping[str, str] | None,
    ) -> Conversation | None:  # fmt: skip
        kept = self._of(tenant_id, owner, conversation_id)
        if kept is None:
            return None
        shown = kept.shown
        kept.shown = replace(
            shown, title=shown.title if title is None else title, updated_at_ms=max(shown.updated_at_ms, at_ms),
            metadata=shown.metadata if metadata is None else dict(metadata),
        )  # fmt: skip
        return kept.shown

    async def delete(self, tenant_id: str, owner: str | None, conversation_id: str) -> bool:
        kept = self._of(tenant_id, owner, conversation_id)
        if kept is None:
            return False
        kept.deleted_at_ms = now_ms() + self.skew_ms
        kept.expires_at_ms = kept.deleted_at_ms + DELETED_KEPT_MS
        return True

    async def head(self, tenant_id: str, conversation_id: str, own_id: str) -> Head:
        by_number = {row.number: row.turn for row in self._turns_of(tenant_id, conversation_id)}
        for turn in by_number.values():
            if turn.response_id == own_id:
                return Head(turn.previous_response_id, None)
        kept = self._of(tenant_id, None, conversation_id)
        turns_begun = None if kept is None else kept.turns
        return Head(by_number[max(by_number)].response_id if by_number else None, turns_begun)

    async def is_turn(self, tenant_id: str, conversation_id: str, response_id: str) -> bool:
        return await self.conversation_of(tenant_id, response_id) == conversation_id

    async def conversation_of(self, tenant_id: str, response_id: str) -> str | None:
        row = self._stored.at_hand().get(response_id)
        if row is None or row.turn.tenant_id != tenant_id or row.deleted_at_ms is not None:
            return None
        return row.turn.conversation_id

    async def turns(self, tenant_id: str, conversation_id: str, limit: int) -> Turns:
        own = sorted(self._turns_of(tenant_id, conversation_id), key=lambda row: row.number, reverse=True)
        parents = {row.turn.response_id: row.turn.previous_response_id for row in own[:limit]}
        return Turns(parents, sum(row.tokens for row in own))

    async def purge(self, at_once: Bounds, replayed_ms: int) -> int:
        at_ms = now_ms() + self.skew_ms
        kept = self._kept()
        due = [(each.expires_at_ms, name) for name, each in kept.items() if each.deleted_at_ms is not None]
        gone = [name for expires_at_ms, name in sorted(due) if expires_at_ms <= at_ms]
        if not gone:
            return 0
        rows, since_ms = self._stored.at_hand(), at_ms - replayed_ms
        own = [row for row in rows.values() if row.turn.conversation_id == gone[0]]
        own = [row for row in own if row.turn.created_at_ms <= since_ms or row.deleted_at_ms is None]
        own.sort(key=lambda row: (row.number, row.turn.response_id))
        turns = [(row.turn.response_id, row.size_bytes) for row in own]
        if turns:
            ids = at_once.first(turns[: at_once.rows])
            for name in ids:
                if rows[name].turn.created_at_ms <= since_ms:
                    del rows[name]
                else:
                    rows[name].empty(at_ms, at_ms + replayed_ms)
            return len(ids)
        del kept[gone[0]]
        return 1

    async def shed(self, tenant_id: str, kept: Bounds, limit: int) -> int:
        own = {
            name: each for name, each in self._kept().items()
            if each.tenant_id == tenant_id and (each.deleted_at_ms is None or each.expires_at_ms)
        }  # fmt: skip
        oldest = sorted(own, key=lambda name: (
            own[name].deleted_at_ms is None, own[name].deleted_at_ms is None and own[name].turns > 0,
            own[name].deleted_at_ms or 0, _by_use(own[name].shown),
        ))  # fmt: skip
        sized = [(name, own[name].size_bytes) for name in oldest]
        gone = [name for name, _ in kept.beyond(len(own), sum(size for _, size in sized), sized)][:limit]
        for name in gone:
            own[name].deleted_at_ms = own[name].deleted_at_ms or now_ms()
            own[name].expires_at_ms = 0
        return len(gone)


def _by_use(conversation: Conversation) -> tuple[int, str]:
    return conversation.updated_at_ms, conversation.conversation_id
