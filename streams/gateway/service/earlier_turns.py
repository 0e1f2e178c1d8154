"""What was said before a request that goes on with an earlier response, or is a turn of a conversation."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import structlog

from schemas.endings import ENDINGS
from schemas.request import Message
from streams.at_once import TooManyAtOnce
from streams.clocks import monotonic_ms, now_ms
from streams.dialects.continuation import FIELD, EarlierTurn, continued, too_long
from streams.dialects.json_body import LARGE_CHARS
from streams.dialects.neutral import NeutralRequest
from streams.gateway.errors import ApiError
from streams.gateway.history.replay import UnreadableEntry
from streams.gateway.service.conversations import Conversations, Place
from streams.gateway.service.keys import Principal
from streams.gateway.service.large_work import LargeWork
from streams.gateway.service.lookup import Lookup
from streams.gateway.service.patience import Patience
from streams.gateway.service.refusals import (
    NOT_THERE,
    STILL_RUNS,
    conversation_in_progress,
    previous_in_progress,
    previous_not_found,
    too_many_at_once,
)
from streams.gateway.service.resumption import Resumption
from streams.gateway.service.stored_turns import away_is_refused
from streams.gateway.stored.port import StoredTurn
from streams.gateway.stored.replays import TURN_TIMEOUT_S, StoredReplays
from streams.gateway.stored.turns import AnsweredTurn, answered, earlier_turn, read
from streams.gateway.tenant_shares import Hold

MAX_TURNS: Final = 1_024
"""A request has room for as many, of a question and an answer each."""
FIRST_WAIT_MS: Final = 50
LONGEST_WAIT_MS: Final = 400
READ_PER_BYTE: Final = 4
"""Of what is stored, for a byte of the largest request: answers stand there with their reasoning."""
HELD_PER_BYTE: Final = 4
"""Of memory, for a stored byte: as it was read, as messages, and in the request's record."""
MOST_OF_NOTHING_BYTES: Final = 262_144
"""Of what is stored of a turn that has said nothing: its beginning and its end."""

_Asked = TypeVar("_Asked", bound=NeutralRequest)
_Turn = StoredTurn | AnsweredTurn

_log = structlog.get_logger()


class _NothingTold(Exception):
    """Of a stored turn nobody knows what became of it; `refusal` says so to who goes on with it."""

    def __init__(self, response_id: str, refusal: ApiError) -> None:
        super().__init__(refusal.message)
        self.response_id = response_id
        self.refusal = refusal


class _CameToNothing(Exception):
    """The newest turn of a conversation was refused, or never written."""

    def __init__(self, previous_response_id: str | None) -> None:
        super().__init__("nothing came of it")
        self.previous_response_id = previous_response_id


class EarlierTurns:
    def __init__(
        self, kept: StoredReplays, lookup: Lookup, resumption: Resumption, patience: Patience, large_work: LargeWork,
        max_bytes: int, places: Conversations,
    ) -> None:  # fmt: skip
        self._kept = kept
        self._lookup = lookup
        self._resumption = resumption
        self._patience = patience
        self._large_work = large_work
        self._max_bytes = max_bytes
        self._places = places

    async def continued(
        self, principal: Principal, asked: _Asked, held: Hold, own_bytes: int, response_id: str = ""
    ) -> _Asked:
        """The request with all turns before its own. `own_bytes`: how large its body is. `response_id`: its own, where
        it has one already.

        Raises ApiError: 404 where one of them is not there, 409 where the previous one has not ended, 429 where they
        take more memory than the tenant may, 503 where they cannot be had now; and RequestError.
        """
        previous = asked.previous_response_id
        if previous is not None:
            try:
                self._lookup.partition(previous)
            except ApiError:
                raise previous_not_found(previous) from None
        max_bytes = max(0, self._max_bytes - own_bytes)
        if asked.conversation_id is None:
            assert previous is not None, "it goes on with one"
            return await self._with(principal, asked, [], await self._ended(principal, previous, max_bytes, held))
        place = await self._places.place(principal, asked, response_id)
        held.grow(HELD_PER_BYTE * len(place.opening))
        while True:
            try:
                turns = await self._newest(principal, place, max(0, max_bytes - len(place.opening)), held)
                break
            except ApiError as refusal:
                gone, place = place, await self._places.place(principal, asked, response_id)
                # A turn that was refused is the newest until its row is dropped, which may be now.
                if refusal.code != NOT_THERE or not gone.is_newest or gone.parent == place.parent:
                    raise
        opening = read(place.opening) if place.opening else []
        whole = await self._with(principal, asked, opening, turns)
        goes_on_with = turns[-1].response_id if turns else None
        return whole.model_copy(update={"previous_response_id": goes_on_with, "turns_begun": place.turns_begun})

    async def _with(
        self, principal: Principal, asked: _Asked, opening: Sequence[Message], turns: Sequence[_Turn]
    ) -> _Asked:
        size_bytes = sum(_size_bytes(turn) for turn in turns)
        return await self._large_work.in_turn(
            principal.tenant.tenant_id, lambda: _continued(asked, opening, turns), is_large=size_bytes > LARGE_CHARS
        )

    async def _newest(self, principal: Principal, place: Place, max_bytes: int, held: Hold) -> list[_Turn]:
        """What its conversation has said, oldest first: of a newest turn that came to nothing, what was before it."""
        parent, held_before_bytes = place.parent, held.size_bytes
        while parent is not None:
            try:
                return await self._ended(principal, parent, max_bytes, held, place)
            except _CameToNothing as nothing:
                held.become(held_before_bytes)
                parent = nothing.previous_response_id
        return []

    async def _ended(
        self, principal: Principal, response_id: str, max_bytes: int, held: Hold, place: Place | None = None
    ) -> list[_Turn]:
        """Oldest first. Waits until all have ended, here or elsewhere, for as long as for whatever is young.

        Raises _CameToNothing where that is the newest turn of a conversation, and was refused or never written.
        """
        tenant_id = principal.tenant.tenant_id
        deadline_ms, wait_ms = self._patience.begin(), FIRST_WAIT_MS
        while True:
            held_before_bytes = held.size_bytes
            async with self._reading(tenant_id):
                chain = await self._chain(tenant_id, response_id, max_bytes, FIELD if place is None else place.field)
                held.grow(HELD_PER_BYTE * sum(_size_bytes(turn) for turn in chain))
            try:
                told = [await self._told(principal, turn, held) for turn in reversed(chain)]
            except _NothingTold as nothing:
                if place is not None and place.is_newest and nothing.response_id == response_id:
                    raise _CameToNothing(chain[0].previous_response_id) from None
                raise nothing.refusal from None
            except ApiError as refusal:
                if place is not None and place.is_newest and refusal.code == STILL_RUNS:
                    raise conversation_in_progress(place.conversation_id) from None
                raise
            turns = [turn for turn in told if turn is not None]
            if len(turns) == len(told):
                if place is not None and place.is_newest and _said_nothing(turns[-1]):
                    raise _CameToNothing(chain[0].previous_response_id)
                return turns
            del chain, told, turns
            held.become(held_before_bytes)
            if not await self._patience.until(tenant_id, _is_past(monotonic_ms() + wait_ms), deadline_ms):
                raise (
                    previous_in_progress(response_id)
                    if place is None
                    else conversation_in_progress(place.conversation_id)
                )
            wait_ms = min(2 * wait_ms, LONGEST_WAIT_MS)

    @asynccontextmanager
    async def _reading(self, tenant_id: str) -> AsyncIterator[None]:
        """What is read is counted as held by its tenant only afterwards: so few do it at once. Raises ApiError 503."""
        try:
            async with self._kept.reads.one(tenant_id, TURN_TIMEOUT_S):
                yield
        except TooManyAtOnce as error:
            raise too_many_at_once(error) from None

    async def _chain(self, tenant_id: str, response_id: str, max_bytes: int, field: str) -> list[StoredTurn]:
        """Newest first, complete. Raises ApiError and RequestError."""
        max_read_bytes = READ_PER_BYTE * self._max_bytes
        with away_is_refused():
            chain = await self._kept.stored.chain(
                tenant_id, response_id, now_ms(), max_turns=MAX_TURNS, max_bytes=max_bytes,
                max_read_bytes=max_read_bytes,
            )  # fmt: skip
        check_chain(chain, response_id, MAX_TURNS, max_bytes, max_read_bytes, field)
        return chain

    async def _told(self, principal: Principal, turn: StoredTurn, held: Hold) -> _Turn | None:
        """With its answer. None while it cannot be told here whether it has ended. Raises ApiError, and _NothingTold
        for one of which nothing is known.
        """
        if turn.told is not None:
            return turn
        try:
            snapshot = await self._resumption.retrieve(principal, turn.response_id, held, waits=False)
        except ApiError as refusal:
            if refusal.resumable:
                return None
            if refusal.status in (404, 409):
                raise _NothingTold(turn.response_id, previous_not_found(turn.response_id)) from None
            raise
        if snapshot.terminal is None:
            raise previous_in_progress(turn.response_id)
        return AnsweredTurn(turn.response_id, turn.input, snapshot.spans or [], snapshot.terminal)


def check_chain(
    chain: Sequence[StoredTurn], response_id: str, max_turns: int, max_bytes: int, max_read_bytes: int,
    field: str = FIELD,
) -> None:  # fmt: skip
    """Of turns, newest first, that were read within these bounds and one beyond. Raises ApiError and RequestError."""
    if not chain:
        raise previous_not_found(response_id)
    if len(chain) > max_turns:
        raise too_long(f"it has more than {max_turns} turns", field)
    if sum(turn.carried_bytes for turn in chain) > max_bytes:
        raise too_long("with the new input it is larger than a request may be", field)
    if sum(_size_bytes(turn) for turn in chain) > max_read_bytes:
        raise too_long(f"with its reasoning it takes more than {max_read_bytes} bytes", field)
    if (gone := chain[-1].previous_response_id) is not None:
        raise previous_not_found(gone)


def _continued(asked: _Asked, opening: Sequence[Message], turns: Sequence[_Turn]) -> _Asked:
    earlier = [EarlierTurn([*opening], None)] if opening else []
    for turn in turns:
        try:
            whole = turn if isinstance(turn, AnsweredTurn) else answered(turn, turn.told or b"")
        except UnreadableEntry as error:
            _log.error("stored_answer_unreadable", response_id=turn.response_id, why=str(error))
            raise previous_not_found(turn.response_id) from None
        earlier.append(earlier_turn(whole))
    return continued(asked, earlier)


def _size_bytes(turn: _Turn) -> int:
    told = sum(len(span.text) for span in turn.spans) if isinstance(turn, AnsweredTurn) else len(turn.told or b"")
    return len(turn.input) + told


def _said_nothing(turn: _Turn) -> bool:
    """Whether it ended in an error before its first word."""
    if isinstance(turn, StoredTurn):
        if len(turn.told or b"") > MOST_OF_NOTHING_BYTES:
            return False
        try:
            turn = answered(turn, turn.told or b"")
        except UnreadableEntry:
            return False  # Whoever goes on with it is told so.
    return not turn.spans and ENDINGS[turn.terminal.code].is_error


def _is_past(at_ms: int) -> Callable[[], bool]:
    return lambda: monotonic_ms() >= at_ms
