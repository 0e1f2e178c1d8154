"""Conversations as things of their own: created, shown, listed, named, deleted, and where a new turn stands in one."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from schemas.request import Message
from streams.at_once import AtOnce
from streams.clocks import now_ms
from streams.dialects.continuation import CONVERSATION, FIELD
from streams.dialects.neutral import NeutralRequest
from streams.gateway.conversations.port import Conversation, NewConversation, Turns
from streams.gateway.conversations.tending import TendedConversations
from streams.gateway.errors import ApiError
from streams.gateway.idempotency.keyed import Keyed
from streams.gateway.idempotency.port import Claim, KeyReused, KeyUnknown
from streams.gateway.idempotency.tending import TendedKeys
from streams.gateway.service.keys import Principal, permission_denied
from streams.gateway.service.refusals import conversation_not_found, key_reused, key_unknown, previous_not_found
from streams.gateway.service.stored_turns import in_turn
from streams.gateway.stored.port import StoredTurn
from streams.gateway.stored.replays import MAX_READS_OF_TENANT, StoredReplays
from streams.gateway.stored.turns import written
from streams.ids import is_conversation_id, mint_conversation_id

WRITTEN_AT_ONCE: Final = 4
"""In all, and one of each tenant: each takes the writer, and the rows of whoever asks next wait for that."""
MAX_BRANCHES_OF: Final = 4_096
"""Turns, the newest of a conversation, among which those are looked for that stand beside one."""


class Place(NamedTuple):
    """Where a new turn stands. `is_newest`: nobody has named what it goes on with, which is the newest turn."""

    conversation_id: str
    parent: str | None
    is_newest: bool
    opening: bytes
    """What the conversation begins with."""
    turns_begun: int | None = None
    """See `NewTurn`."""

    @property
    def field(self) -> str:
        """By which its client says what it goes on with."""
        return CONVERSATION if self.is_newest else FIELD


class Part(NamedTuple):
    """Which turns of a conversation: at most `limit`, the last ones of its newest branch; or of the one that ends with
    `branch`; or of the newest that goes `through` a turn; or those `before` one. One of the three at most.
    """

    limit: int
    branch: str | None = None
    before: str | None = None
    through: str | None = None

    @property
    def named(self) -> list[str]:
        """The fields that say so."""
        return [name for name in ("branch", "before", "through") if getattr(self, name) is not None]


class ShownTurns(NamedTuple):
    """Some of one branch of a conversation, oldest first, and what is known of all. `opening` is its first messages,
    None where there are older turns: then `has_more`.
    """

    conversation: Conversation
    opening: bytes | None
    turns: list[StoredTurn]
    has_more: bool
    all_turns: Turns


class Conversations:
    """A conversation with an owner is there for that end user's tokens and for API keys, one without for all of its
    tenant. Every method raises ApiError: 404 for what is not there or somebody else's, 503 while the database is away.
    """

    def __init__(self, tended: TendedConversations, kept: StoredReplays, keys: TendedKeys) -> None:
        self._tended = tended
        self._keys = keys
        self._store = tended.store
        self._kept = kept
        self._writes = AtOnce(
            "conversations are being written", WRITTEN_AT_ONCE, at_once_per_tenant=1,
            present_per_tenant=MAX_READS_OF_TENANT,
        )  # fmt: skip

    async def create(
        self, principal: Principal, title: str, metadata: Mapping[str, str], opening: Sequence[Message], owner: str,
        keyed: Keyed | None = None,
    ) -> Conversation:  # fmt: skip
        """`owner` is of whom an API key creates it; what a token creates is that token's user's. With a key what was
        created with it before, as it is now.

        Raises ApiError 409 for a key of another request, or of what is gone or another user's.
        """
        tenant_id, at_ms = principal.tenant.tenant_id, now_ms()
        new = NewConversation(
            mint_conversation_id(), tenant_id, principal.end_user if principal.token else owner, title, metadata,
            at_ms, written(opening) if opening else b"",
        )  # fmt: skip
        claim = None if keyed is None else Claim(tenant_id, keyed.key, keyed.digest, new.conversation_id)
        try:
            created = await in_turn(self._writes, tenant_id, partial(self._store.create, new, claim))
        except KeyReused:
            raise key_reused() from None
        except KeyUnknown:
            raise key_unknown() from None
        self._tended.grew(tenant_id)
        if claim is not None:
            self._keys.grew(tenant_id)
        return created

    async def one(self, principal: Principal, conversation_id: str) -> Conversation:
        if is_conversation_id(conversation_id):
            tenant_id = principal.tenant.tenant_id
            ask = partial(self._store.one, tenant_id, principal.owner, conversation_id)
            if (found := await in_turn(self._kept.reads, tenant_id, ask)) is not None:
                return found
        raise conversation_not_found(conversation_id)

    async def listed(
        self, principal: Principal, owner: str | None, after: str | None, limit: int
    ) -> tuple[list[Conversation], bool]:
        """And whether there are more. `owner`: whose alone, where an API key asks.

        Raises ApiError 403 for a token of no user: it would see those of everybody else who has such a one.
        """
        if principal.token is not None:
            if not principal.end_user:
                raise permission_denied("The token names no user, whose conversations it could list: mint it with one.")
            owner = principal.end_user
        tenant_id = principal.tenant.tenant_id
        if after is not None:
            await self.one(principal, after)
        ask = partial(self._store.listed, tenant_id, owner, after, limit + 1)
        found = await in_turn(self._kept.reads, tenant_id, ask)
        return found[:limit], len(found) > limit

    async def change(
        self, principal: Principal, conversation_id: str, title: str | None, metadata: Mapping[str, str] | None
    ) -> Conversation:
        """What is None stays."""
        if is_conversation_id(conversation_id):
            tenant_id = principal.tenant.tenant_id
            ask = partial(
                self._store.change, tenant_id, principal.owner, conversation_id, now_ms(), title=title,
                metadata=metadata,
            )  # fmt: skip
            if (found := await in_turn(self._writes, tenant_id, ask)) is not None:
                return found
        raise conversation_not_found(conversation_id)

    async def delete(self, principal: Principal, conversation_id: str) -> None:
        """It is nobody's from now on, nor are its turns; a month later they leave the database."""
        tenant_id = principal.tenant.tenant_id
        ask = partial(self._store.delete, tenant_id, principal.owner, conversation_id)
        if not is_conversation_id(conversation_id) or not await in_turn(self._writes, tenant_id, ask):
            raise conversation_not_found(conversation_id)

    async def conversation_of(self, principal: Principal, response_id: str) -> str | None:
        """The one that a stored response is a turn of, if it is the principal's."""
        tenant_id = principal.tenant.tenant_id
        found = await in_turn(
            self._kept.reads, tenant_id, partial(self._store.conversation_of, tenant_id, response_id)
        )  # fmt: skip
        if found is None:
            return None
        try:
            return (await self.one(principal, found)).conversation_id
        except ApiError as refusal:
            if refusal.status != 404:
                raise
            return None

    async def place(self, principal: Principal, asked: NeutralRequest, response_id: str) -> Place:
        """Of a new turn: behind the one that it names, which must be a turn of its conversation, else the newest one.

        `response_id`: its own, if it has one; it may be a turn already.
        """
        conversation_id = asked.conversation_id or ""
        await self.one(principal, conversation_id)
        tenant_id, parent = principal.tenant.tenant_id, asked.previous_response_id
        reads = self._kept.reads
        opening = await in_turn(reads, tenant_id, partial(self._store.opening, tenant_id, conversation_id))
        if asked.begins:
            return Place(conversation_id, None, False, opening)
        if parent is None:
            ask = partial(self._store.head, tenant_id, conversation_id, response_id)
            head = await in_turn(reads, tenant_id, ask)
            return Place(conversation_id, head.response_id, True, opening, head.turns_begun)
        is_turn = partial(self._store.is_turn, tenant_id, conversation_id, parent)
        if not await in_turn(reads, tenant_id, is_turn):
            raise previous_not_found(parent)
        return Place(conversation_id, parent, False, opening)

    async def shown(self, principal: Principal, conversation_id: str, part: Part, max_read_bytes: int) -> ShownTurns:
        """Of that part as many turns as fit, the last ones."""
        conversation = await self.one(principal, conversation_id)
        tenant_id, reads = principal.tenant.tenant_id, self._kept.reads
        all_turns = await in_turn(
            reads, tenant_id, partial(self._store.turns, tenant_id, conversation_id, MAX_BRANCHES_OF)
        )  # fmt: skip
        last = _last_of(part, all_turns.parents)
        chain: list[StoredTurn] = []
        if last is not None:
            ask = partial(
                self._kept.stored.chain, tenant_id, last, now_ms(), max_turns=part.limit - 1, max_bytes=max_read_bytes,
                max_read_bytes=max_read_bytes,
            )  # fmt: skip
            chain = await in_turn(reads, tenant_id, ask)
        has_more = bool(chain) and chain[-1].previous_response_id is not None
        opening = None
        if not has_more:
            opening = await in_turn(reads, tenant_id, partial(self._store.opening, tenant_id, conversation_id))
        return ShownTurns(conversation, opening, chain[::-1], has_more, all_turns)


def _last_of(part: Part, parents: dict[str, str | None]) -> str | None:
    """The turn that the part ends with; None where it has none. `parents`: newest first.

    Raises ApiError 404 for a turn that is none of them.
    """
    named = next((getattr(part, name) for name in part.named), None)
    if named is None:
        return next(iter(parents), None)
    if named not in parents:
        raise previous_not_found(named)
    if part.before is not None:
        return parents[named]
    return named if part.through is None else _newest_through(named, parents)


def _newest_through(response_id: str, parents: dict[str, str | None]) -> str:
    """Of that turn and all that go on with it the newest. None is older than what it goes on with."""
    within, newest = {response_id}, response_id
    for turn, parent in reversed(parents.items()):
        if parent in within:
            within.add(turn)
            newest = turn
    return newest
