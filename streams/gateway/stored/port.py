"""What is kept of a response, and who may have it. Every method raises `MetadataUnavailable`.

A row is opened before its request is accepted, so what its answer lacks is always written down: as an open row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class NewTurn:
    """One request. `input`: JSON of what its client said in it, not of the turns before it."""

    response_id: str
    tenant_id: str
    previous_response_id: str | None
    created_at_ms: int
    expires_at_ms: int
    look_at_ms: int
    """When to look for its end, should nobody have told it by then."""
    input: bytes
    conversation_id: str | None = None
    """Of which it is a turn, the newest. If that is not there any more, all that is kept is that it is deleted."""
    title: str = ""
    """What the conversation is called by this turn, should it have no name."""
    turns_begun: int | None = None
    """In its conversation, when the newest of them was found that it goes on with. None: it goes on with one that its
    client has named, whatever was begun since.
    """


class NotNewest(Exception):
    """Another turn was begun in the conversation since the one was found that this goes on with."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one. `told`: all of it, as `entries_of` writes it."""

    response_id: str
    tenant_id: str
    told: bytes
    said_bytes: int
    """How much of it a later turn repeats."""
    tokens: int = 0
    """As they were used, of prompt and answer."""


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """`told` is None while nobody has written how it ended."""

    response_id: str
    previous_response_id: str | None
    input: bytes
    told: bytes | None
    carried_bytes: int
    """What a later turn repeats of it."""
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class OpenTurn:
    response_id: str
    tenant_id: str
    created_at_ms: int


class Bounds(NamedTuple):
    """Of rows together. Rows are told as their ids and bytes."""

    rows: int
    size_bytes: int

    def beyond(self, rows: int, size_bytes: int, oldest: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Of so many rows, told from the oldest on, those that must go."""
        for row in oldest:
            if rows <= self.rows and size_bytes <= self.size_bytes:
                return
            yield row
            rows, size_bytes = rows - 1, size_bytes - row[1]

    def first(self, rows: Iterable[tuple[str, int]]) -> list[str]:
        """The ids of as many as it holds, and in any case of one."""
        taken: list[str] = []
        size_bytes = 0
        for response_id, row_bytes in rows:
            size_bytes += row_bytes
            if taken and (len(taken) >= self.rows or size_bytes > self.size_bytes):
                break
            taken.append(response_id)
        return taken


class StoredResponses(Protocol):
    """Of one region. Nothing of a tenant's is there for another; times are Unix times, given by who calls."""

    async def now_ms(self) -> int:
        """By the clock of the store, which is the same for all gateways."""

    async def open(self, turn: NewTurn) -> None:
        """On disk when it returns. One that is there already stays as it is.

        Raises NotNewest, with nothing written: of several that were to be the next turn of a conversation one is.
        """

    async def complete(self, answers: Sequence[Answer]) -> None:
        """Together. Of one that is complete, deleted or not there, nothing changes."""

    async def one(self, tenant_id: str, response_id: str, now_ms: int) -> StoredTurn | None:
        """None: not there, deleted, by itself or with its conversation, or expired."""

    async def told(self, tenant_id: str, response_id: str, now_ms: int, begin: int, size_bytes: int) -> bytes | None:
        """So much of what it told, or all there is of it, from that byte on. None as `one`, and while it is open."""

    async def chain(
        self, tenant_id: str, response_id: str, now_ms: int, *, max_turns: int, max_bytes: int, max_read_bytes: int
    ) -> list[StoredTurn]:
        """That one and those before it, newest first, as far as they are there.

        At most one beyond `max_turns`; none beyond the first with which they carry more than `max_bytes`, or take more
        than `max_read_bytes` with all that they told.
        """

    async def delete(self, tenant_id: str, response_id: str, now_ms: int, known_until_ms: int) -> bool:
        """Its content goes at once; that it is deleted is known until then, also where it would have expired before:
        replay may tell it for longer. Whether it was there.
        """

    async def is_deleted(self, tenant_id: str, response_id: str) -> bool: ...

    async def due(self, now_ms: int, again_at_ms: int, limit: int) -> list[OpenTurn]:
        """Open ones whose end is to be looked for; nobody else is told of them before `again_at_ms`.

        By so much later as they are old: each look may read a log that tells nothing of them.
        """

    async def drop(self, response_ids: Sequence[str]) -> None:
        """Open ones that never became responses."""

    async def purge(self, now_ms: int, at_once: Bounds) -> int:
        """Forgets what has expired, the first of it first; how many that were."""

    async def shed(self, tenant_id: str, kept: Bounds, at_once: Bounds) -> int:
        """Of a tenant that has more than is `kept` the oldest are forgotten; how many that were."""

    async def close(self) -> None: ...
