"""Stored responses read back: a few at a time, each told in pieces like any replay."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import structlog

from streams.at_once import AtOnce, TooManyAtOnce
from streams.clocks import now_ms
from streams.dialects.json_body import LARGE_CHARS
from streams.gateway.history.replay import Replay, Rest, UnreadableEntry
from streams.gateway.stored.entries import LENGTH_BYTES, entries, first_size_bytes
from streams.gateway.stored.port import StoredResponses, StoredTurn
from streams.metadata.unavailable import MetadataUnavailable

AT_ONCE: Final = 16
"""Each may hold as much as is kept of one."""
AT_ONCE_OF_TENANT: Final = 4
MAX_READS_OF_TENANT: Final = 1_000
TURN_TIMEOUT_S: Final = 5.0
PART_BYTES: Final = 131_072
"""Of what is stored, read at once for a further piece, which takes about as much or a few times that."""

_T = TypeVar("_T")

_log = structlog.get_logger()


class StoredReplays:
    """Every method raises MetadataUnavailable, also where too many are read."""

    def __init__(self, stored: StoredResponses) -> None:
        self.stored = stored
        self.reads = AtOnce(
            "stored responses are being read", AT_ONCE, at_once_per_tenant=AT_ONCE_OF_TENANT,
            present_per_tenant=MAX_READS_OF_TENANT,
        )  # fmt: skip

    async def one(self, tenant_id: str, response_id: str) -> StoredTurn | None:
        """None: not there, deleted, or expired."""
        async with self._turn(tenant_id):
            return await self.stored.one(tenant_id, response_id, now_ms())

    async def read(self, tenant_id: str, response_id: str, after: int, begin: int = 0) -> Replay | None:
        """What it told beyond `after`, or a first piece of it, and its end. None where that is not stored.

        From the `stored_byte` on that a piece's `rest` names the next one, whose end came with the first.
        """
        # Until it is folded: what waits for that holds all that is kept of it.
        async with self._turn(tenant_id):
            try:
                if begin:
                    return await self._read_on(tenant_id, response_id, after, begin)
                turn = await self.stored.one(tenant_id, response_id, now_ms())
                if turn is None or turn.told is None:
                    return None
                told = turn.told
                return await _beside(told, lambda: _folded(told, after))
            except UnreadableEntry as error:
                _log.error("stored_answer_unreadable", response_id=response_id, why=str(error))
                return None

    async def _read_on(self, tenant_id: str, response_id: str, after: int, begin: int) -> Replay | None:
        """Reads as much as a piece takes, and nothing before it. Raises UnreadableEntry."""
        replay = Replay(after)
        size_bytes = PART_BYTES
        while not replay.is_partial and replay.terminal is None:
            part = await self.stored.told(tenant_id, response_id, now_ms(), begin, size_bytes)
            if part is None:
                return None
            following = await _beside(part, partial(_fold, replay, part, begin))
            if following > begin or replay.is_partial:
                begin, size_bytes = following, PART_BYTES
            elif len(part) == size_bytes:
                # An entry may be larger, with a token that is.
                size_bytes = first_size_bytes(part)
            else:
                raise UnreadableEntry("it ends before its end")
        return replay

    @asynccontextmanager
    async def _turn(self, tenant_id: str) -> AsyncIterator[None]:
        try:
            async with self.reads.one(tenant_id, TURN_TIMEOUT_S):
                yield
        except TooManyAtOnce as error:
            raise MetadataUnavailable(str(error)) from None


async def _beside(told: bytes, work: Callable[[], _T]) -> _T:
    """Beside the loop, where it takes long."""
    return work() if len(told) <= LARGE_CHARS else await asyncio.to_thread(work)


def _folded(told: bytes, after: int) -> Replay:
    """Of all that it told. Raises UnreadableEntry."""
    replay = Replay(after)
    _fold(replay, told, 0)
    if replay.is_partial and replay.terminal is None:
        [(_, last)] = deque(entries(told), maxlen=1)
        replay.add_packed(last)
    if replay.terminal is None:
        raise UnreadableEntry("its end is not there")
    return replay


def _fold(replay: Replay, part: bytes, begin: int) -> int:
    """Until it is a piece. Where the entry begins that comes behind what was folded. Raises UnreadableEntry."""
    following = begin
    for at, entry in entries(part, begin):
        replay.add_packed(entry)
        if replay.is_partial:
            replay.rest = Rest(stored_byte=at)
            break
        following = at + LENGTH_BYTES + len(entry)
    return following
