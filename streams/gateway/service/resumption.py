"""Clients that come back: to what memory follows, what history holds, and what is about to be known here."""

import asyncio

from schemas.base import Scope
from schemas.responses import Terminal
from streams.gateway.closing import CLOSINGS
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Behind, Closed, Stream
from streams.gateway.history.store import History, HistoryUnavailable
from streams.gateway.service.clocks import monotonic_ms, now_ms
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup, Snapshot, texts_of
from streams.gateway.service.ports import Ownership
from streams.gateway.service.refusals import from_the_future, not_found, replay_unavailable
from streams.gateway.service.viewing import Viewing
from streams.ids import parse_response_id
from streams.settings import GatewaySettings

OVERDUE_MS = 60_000
YOUNG_MS = 60_000
APPEARS_TIMEOUT_MS = 2_000
APPEARS_EVERY_S = 0.05


class Resumption:
    def __init__(
        self, settings: GatewaySettings, hub: Hub, history: History, viewing: Viewing, lookup: Lookup,
        ownership: Ownership,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._hub = hub
        self._history = history
        self._viewing = viewing
        self._lookup = lookup
        self._ownership = ownership
        self.stopping = False

    async def resume(
        self, principal: Principal, response_id: str, after: int, *, stays: bool = True, waits: bool = True
    ) -> Follower:
        """A viewer that has seen tokens up to `after`. Release it. One that does not stay keeps nothing alive.

        `waits`: for what is young, or about to be served here. Raises ApiError: 404 for an id that is not the tenant's,
        400 for a position that does not exist yet, 409 `replay_unavailable` when the position is no longer (or not
        here) to be had.
        """
        partition = self._lookup.partition(response_id)
        try:
            return await self._resume_known(principal, response_id, partition, after, stays)
        except ApiError as error:
            if not waits:
                raise
            if error.status == 400 and error.resumable:
                if not await self._is_reached(principal, response_id, after):
                    raise
            elif error.status not in (404, 409) or not await self.appears(
                principal, response_id, partition, in_history=error.status == 409
            ):
                raise
        return await self._resume_known(principal, response_id, partition, after, stays)

    async def appears(self, principal: Principal, response_id: str, partition: int, in_history: bool) -> bool:
        """Whether a response can soon be followed here that cannot yet.

        A client may come back before the first record of its response, or before a restarted gateway owns its partition
        again. Does not wait at all for an id that is too old for either.
        """
        patience_ms = self._settings.admission_timeout_ms if in_history else APPEARS_TIMEOUT_MS
        minted_at_ms = parse_response_id(response_id).minted_at_ms
        young = minted_at_ms is not None and now_ms() - minted_at_ms <= YOUNG_MS
        if not young and not (in_history and not self._ownership.owned):
            return False
        deadline_ms = monotonic_ms() + patience_ms
        while not self.stopping and monotonic_ms() < deadline_ms:
            if partition in self._ownership.owned and (
                in_history or self._lookup.in_memory(principal, response_id) is not None
            ):
                return True
            await asyncio.sleep(APPEARS_EVERY_S)
        return False

    async def _is_reached(self, principal: Principal, response_id: str, after: int) -> bool:
        """Whether token `after` is soon known here, or the response has ended.

        What viewers saw before a restart is read again from where history ends; they may be back before that.
        """
        deadline_ms = monotonic_ms() + APPEARS_TIMEOUT_MS
        while not self.stopping and monotonic_ms() < deadline_ms:
            stream = self._lookup.in_memory(principal, response_id)
            if self._hub.has_ended(response_id) or (stream is not None and (stream.next_sequence or 0) > after):
                return True
            await asyncio.sleep(APPEARS_EVERY_S)
        return False

    async def _resume_known(
        self, principal: Principal, response_id: str, partition: int, after: int, stays: bool
    ) -> Follower:
        tenant_id = principal.tenant.tenant_id
        stream = self._lookup.in_memory(principal, response_id)
        is_placed = stream is not None and (not after or stream.terminal or stream.next_sequence is not None)
        if stream is not None and is_placed and (stream.terminal or partition in self._ownership.owned):
            _refuse_future(stream, after)
            return self._viewing.follow(response_id, partition, stream.scope, after, stays=stays)
        try:
            replay = await self._history.read(tenant_id, response_id, after, ended=self._hub.has_ended(response_id))
            overdue = replay is not None and replay.terminal is None and replay.started is not None and (
                now_ms() > replay.started.deadline_ms + OVERDUE_MS
            )  # fmt: skip
            if overdue:
                replay = await self._history.read(tenant_id, response_id, after, ended=True)
        except HistoryUnavailable as error:
            why = f"The response cannot be replayed: {error}."
            raise replay_unavailable(why, is_transient=error.is_transient) from None
        if replay is None and stream is None:
            raise not_found(response_id)
        if replay is not None and replay.terminal is not None:
            if after > replay.terminal.sequence_number:
                raise from_the_future(after)
            follower = Follower(self._history, tenant_id)
            follower.show(replay)
            return follower
        if partition not in self._ownership.owned:
            raise replay_unavailable("Another gateway serves the response while it runs.", is_transient=True)
        if replay is not None and after > replay.seen:
            raise from_the_future(after, may_come=True)
        started = None if replay is None else replay.started
        scope = started.scope if started is not None else Scope(tenant_id=tenant_id)
        return self._viewing.follow(response_id, partition, scope, after, stays=stays)

    async def retrieve(self, principal: Principal, response_id: str, *, waits: bool = True) -> Snapshot:
        """Raises ApiError as `resume` does."""
        follower = await self.resume(principal, response_id, 0, stays=False, waits=waits)
        try:
            events: list[Span] = []
            terminal: Terminal | None = None
            while (event := follower.poll()) is not None:
                if isinstance(event, Behind):
                    await follower.catch_up()
                elif isinstance(event, Closed):
                    is_transient = CLOSINGS[event.reason].resumable
                    raise replay_unavailable("The response cannot be replayed in full.", is_transient=is_transient)
                elif isinstance(event, Span):
                    events.append(event)
                elif isinstance(event, Terminal):
                    terminal = event
                    break
            last = terminal.sequence_number if terminal else (events[-1].sequence_number if events else 0)
            return Snapshot(response_id, follower.started, texts_of(events), last, terminal)
        finally:
            self._viewing.release(follower)


def _refuse_future(stream: Stream, after: int) -> None:
    if stream.terminal is not None:
        last = stream.terminal.sequence_number
    elif stream.next_sequence is not None:
        last = stream.next_sequence - 1
    else:
        return
    if after > last:
        raise from_the_future(after, may_come=stream.terminal is None and not stream.opened_here)
