"""What the service does with single stored responses: opens their rows, tells them, deletes them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import structlog

from schemas.request import Request
from schemas.responses import Started, Terminal
from streams.at_once import AtOnce, TooManyAtOnce
from streams.clocks import monotonic_ms, now_ms
from streams.dialects.neutral import NeutralRequest
from streams.gateway.conversations.port import KEPT_FOR_GOOD_MS
from streams.gateway.conversations.titles import title_of
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.stream import Stream
from streams.gateway.history.replay import Replay
from streams.gateway.service.background import Background
from streams.gateway.service.refusals import conversation_in_progress, not_found, store_away, too_many_at_once
from streams.gateway.stored.keeper import Keeper, replayed_ms
from streams.gateway.stored.port import NewTurn, NotNewest, StoredTurn
from streams.gateway.stored.replays import MAX_READS_OF_TENANT, TURN_TIMEOUT_S
from streams.gateway.stored.turns import may_be_stored, written
from streams.ids import parse_response_id
from streams.metadata.together import Together
from streams.metadata.unavailable import MetadataUnavailable, TooManyWait
from streams.settings import Settings
from streams.topics import DAY_MS, HOUR_MS

LOOK_AFTER_DEADLINE_MS: Final = 60_000
"""Every response has ended by then, and nearly every row is completed."""
LOOK_AT_LATEST_AFTER_MS: Final = HOUR_MS
"""Of one that may run for a day the log would have forgotten the beginning."""
AWAY_MS: Final = 1_000
"""So long nothing is asked of a database that has just failed: each request would go to the log in vain."""
DELETED_AT_ONCE: Final = 4
"""In all, and one of each tenant: each takes the writer, and the rows of whoever asks next wait for that."""
DROPPED_TOGETHER: Final = 128
DROPPED_TOGETHER_BYTES: Final = 65_536

_log = structlog.get_logger()
_Done = TypeVar("_Done")


@contextmanager
def away_is_refused() -> Iterator[None]:
    """What the database cannot tell now is an ApiError 503."""
    try:
        yield
    except MetadataUnavailable as error:
        _log.warning("stored_responses_away", why=str(error), repeats=True)
        raise store_away() from None


async def in_turn(turns: AtOnce, tenant_id: str, ask: Callable[[], Awaitable[_Done]]) -> _Done:
    """However much a tenant asks, the others find room at the database. Who leaves keeps the turn until it answers.

    Raises ApiError 503.
    """
    try:
        async with turns.one(tenant_id, TURN_TIMEOUT_S):
            with away_is_refused():
                asked = asyncio.ensure_future(ask())
                try:
                    return await asyncio.shield(asked)
                except asyncio.CancelledError:
                    await asyncio.wait((asked,))
                    raise
    except TooManyAtOnce as error:
        raise too_many_at_once(error) from None


class StoredTurns:
    """Every method that reads or writes raises ApiError 503 while the database is away, unless it says otherwise."""

    def __init__(self, keeper: Keeper, settings: Settings, background: Background) -> None:
        self._keeper = keeper
        self._kept = keeper.kept
        self._stored = keeper.stored
        self._lasts_ms = settings.gateway.request_timeout_ms + LOOK_AFTER_DEADLINE_MS
        self._kept_ms = settings.metadata.responses_kept_days * DAY_MS
        self._replayed_ms = replayed_ms(settings)
        self._background = background
        self._deletions = AtOnce(
            "stored responses are being deleted", DELETED_AT_ONCE, at_once_per_tenant=1,
            present_per_tenant=MAX_READS_OF_TENANT,
        )  # fmt: skip
        self._dropping = Together(self._stored.drop, len, max_rows=DROPPED_TOGETHER, max_bytes=DROPPED_TOGETHER_BYTES)
        self._opening: dict[str, asyncio.Future[None]] = {}
        self._away_until_ms = 0

    # Writing

    def refuse_while_away(self) -> None:
        """Before a request that is to be stored goes to the log. Raises ApiError 503."""
        if monotonic_ms() < self._away_until_ms:
            raise store_away()

    async def open(self, request: Request, chat: NeutralRequest) -> None:
        """Of this turn alone: neither those before it nor its instructions.

        Raises MetadataUnavailable, and ApiError 409 where another one became the next turn of its conversation.
        """
        accepted_at_ms = request.accepted_at_ms
        messages = chat.messages if chat.turn is None else chat.turn.messages
        in_conversation = chat.conversation_id is not None
        turn = NewTurn(
            response_id=request.response_id, tenant_id=request.scope.tenant_id,
            previous_response_id=chat.previous_response_id, created_at_ms=accepted_at_ms,
            expires_at_ms=KEPT_FOR_GOOD_MS if in_conversation else accepted_at_ms + self._kept_ms,
            look_at_ms=min(request.deadline_ms + LOOK_AFTER_DEADLINE_MS, accepted_at_ms + LOOK_AT_LATEST_AFTER_MS),
            input=written(messages), conversation_id=chat.conversation_id,
            title=title_of(messages) if in_conversation else "", turns_begun=chat.turns_begun,
        )  # fmt: skip
        opening = self._opening[turn.response_id] = asyncio.ensure_future(self._stored.open(turn))
        opening.add_done_callback(lambda _: self._opening.pop(turn.response_id))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.cancel()
            raise
        except NotNewest:
            raise conversation_in_progress(turn.conversation_id or "") from None
        except TooManyWait:
            raise
        except MetadataUnavailable:
            self._away_until_ms = monotonic_ms() + AWAY_MS
            raise

    def accepted(self, stream: Stream) -> None:
        """Its row is there."""
        self._keeper.accepted(stream)

    def drop_soon(self, response_id: str) -> None:
        """It was not accepted after all."""
        self._background.run(self._drop(response_id))

    async def _drop(self, response_id: str) -> None:
        if (opening := self._opening.get(response_id)) is not None:
            await asyncio.wait((opening,))  # Dropped before it is there, it would stay.
        try:
            await self._dropping.add(response_id)
        except MetadataUnavailable as error:
            # No response belongs to it, so it is dropped when the log has forgotten that time.
            _log.warning("stored_turn_not_dropped", response_id=response_id, why=str(error), repeats=True)

    # Reading

    async def one(self, tenant_id: str, response_id: str) -> StoredTurn | None:
        with away_is_refused():
            return await self._kept.one(tenant_id, response_id)

    async def told_instead(
        self, refusal: ApiError, tenant_id: str, response_id: str, after: int = 0
    ) -> tuple[Replay, Terminal]:
        """What the store tells beyond `after` of what was refused because replay does not tell it, and its end.

        Raises the refusal where the store does not tell it either.
        """
        if refusal.status not in (404, 409):
            raise refusal
        with away_is_refused():
            replay = await self._kept.read(tenant_id, response_id, after)
        if replay is None or replay.terminal is None:
            raise refusal
        return replay, replay.terminal

    async def is_open(self, tenant_id: str, response_id: str) -> bool:
        """Whether it is stored, and nobody has written yet how it ended."""
        turn = await self.one(tenant_id, response_id)
        return turn is not None and turn.told is None

    def is_past_deadline(self, response_id: str) -> bool:
        """Whether a response with this id, which a gateway has minted, has ended by now, whatever is known of it."""
        minted_at_ms = parse_response_id(response_id).minted_at_ms
        return minted_at_ms is not None and minted_at_ms + self._lasts_ms <= now_ms()

    async def input_of(self, tenant_id: str, response_id: str) -> bytes:
        """What its client said in its turn, as `stored.turns.read` takes it. Raises ApiError 404."""
        turn = await self.one(tenant_id, response_id)
        if turn is None:
            raise not_found(response_id)
        return turn.input

    async def previous_of(self, tenant_id: str, response_id: str) -> str | None:
        """What it went on with, whether it has ended or not. Raises ApiError 404, also for what is not stored."""
        turn = await self.one(tenant_id, response_id)
        if turn is None:
            raise not_found(response_id)
        return turn.previous_response_id

    async def refuse_deleted(
        self, tenant_id: str, response_id: str, started: Started | None, end: Terminal | None
    ) -> None:
        """Of one that replay still tells, so far as it has met its beginning and end. Raises ApiError 404."""
        if end is None or not may_be_stored(started, end):
            return
        if await self.is_deleted(tenant_id, response_id):
            raise not_found(response_id)

    # Deleting

    async def is_deleted(self, tenant_id: str, response_id: str) -> bool:
        """Whether it was stored until its client deleted it, for as long as that is kept."""
        ask = partial(self._stored.is_deleted, tenant_id, response_id)
        return await in_turn(self._kept.reads, tenant_id, ask)

    async def delete(self, tenant_id: str, response_id: str) -> None:
        """Raises ApiError 404."""
        at_ms = now_ms()
        ask = partial(self._stored.delete, tenant_id, response_id, at_ms, at_ms + self._replayed_ms)
        if not await in_turn(self._deletions, tenant_id, ask):
            raise not_found(response_id)
