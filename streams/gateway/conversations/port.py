"""What is kept of a conversation, and who may have it. Every method raises `MetadataUnavailable`.

Its turns are stored responses that name it (`NewTurn.conversation_id`): they are opened, completed and forgotten as all
stored responses are, and stay as long as it does. `owner`: the pseudonym of an end user to whom it belongs, empty for
one that is its tenant's; where it is asked for, None stands for whoever's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from streams.gateway.idempotency.port import Claim
from streams.gateway.stored.port import Bounds
from streams.topics import DAY_MS

DELETED_KEPT_MS: Final = 30 * DAY_MS
"""What is deleted is nobody's from then on, and leaves the database so much later."""
KEPT_FOR_GOOD_MS: Final = 2**53
"""When a turn expires: with its conversation alone."""


@dataclass(frozen=True, slots=True)
class NewConversation:
    """`opening`: JSON of the messages that it begins with, as `stored.turns.written` makes it."""

    conversation_id: str
    tenant_id: str
    owner: str
    title: str
    metadata: Mapping[str, str]
    created_at_ms: int
    opening: bytes

    def begun(self) -> "Conversation":
        """As it is before anything has happened in it."""
        return Conversation(
            self.conversation_id, self.owner, self.title, dict(self.metadata), self.created_at_ms, self.created_at_ms
        )


@dataclass(frozen=True, slots=True)
class Conversation:
    """`updated_at_ms`: when its last turn began, or it was changed."""

    conversation_id: str
    owner: str
    title: str
    metadata: Mapping[str, str]
    created_at_ms: int
    updated_at_ms: int


def size_bytes_of(opening: bytes, title: str, metadata: Mapping[str, str]) -> int:
    """What it counts for among its tenant's."""
    return len(opening) + len(title) + len(metadata_text(metadata))


def metadata_text(metadata: Mapping[str, str]) -> str:
    return json.dumps(dict(metadata), ensure_ascii=False, separators=(",", ":"))


class Turns(NamedTuple):
    """`parents`: of its newest turns, newest first, the one that each went on with. `tokens`: of all its turns."""

    parents: dict[str, str | None]
    tokens: int


class Head(NamedTuple):
    """Behind which a new turn stands, and how many were begun when that was so, as `NewTurn.turns_begun` takes it."""

    response_id: str | None
    turns_begun: int | None


class ConversationStore(Protocol):
    """Of one region. Nothing of a tenant's is there for another; when something is deleted, its own clock says."""

    async def create(self, new: NewConversation, claim: Claim | None = None) -> Conversation:
        """On disk when it returns. `claim`: of a key that is to stand for it from then on; where it stands for one of
        the same owner already, that is told as it is now, and none is made.

        Raises KeyReused, and KeyUnknown where that one is gone or somebody else's.
        """

    async def one(self, tenant_id: str, owner: str | None, conversation_id: str) -> Conversation | None:
        """None: not there, deleted, or somebody else's."""

    async def opening(self, tenant_id: str, conversation_id: str) -> bytes:
        """What it begins with; empty also where it is not there."""

    async def listed(self, tenant_id: str, owner: str | None, after: str | None, limit: int) -> list[Conversation]:
        """Those that were used last come first; those behind `after`, as it stands now, where that is named."""

    async def change(
        self, tenant_id: str, owner: str | None, conversation_id: str, at_ms: int, *, title: str | None,
        metadata: Mapping[str, str] | None,
    ) -> Conversation | None:  # fmt: skip
        """As it is then; what is None stays. None as `one`."""

    async def delete(self, tenant_id: str, owner: str | None, conversation_id: str) -> bool:
        """With all its turns, also those that have not ended. Whether it was there."""

    async def head(self, tenant_id: str, conversation_id: str, own_id: str) -> Head:
        """Its newest turn that is there, whether it has ended or not; what `own_id` went on with if that is a turn,
        which has its place.
        """

    async def is_turn(self, tenant_id: str, conversation_id: str, response_id: str) -> bool: ...

    async def conversation_of(self, tenant_id: str, response_id: str) -> str | None:
        """The one that a stored response is a turn of."""

    async def turns(self, tenant_id: str, conversation_id: str, limit: int) -> Turns: ...

    async def purge(self, at_once: Bounds, replayed_ms: int) -> int:
        """Forgets what was deleted long enough ago, so many turns of one or at last itself; how many rows that were.
        Of a turn that is younger than `replayed_ms` it stays known for so long that it is deleted.
        """

    async def shed(self, tenant_id: str, kept: Bounds, limit: int) -> int:
        """Of a tenant that has more than is `kept` those that were deleted, then those in which nobody ever asked
        anything, and then those that were used longest ago, are deleted and due to be purged, so many at once; how many
        that were.
        """
