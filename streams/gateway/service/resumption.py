"""Clients that come back: to what memory follows, what history holds, and what is about to be known here."""

import time
from collections.abc import Callable

from schemas.base import Scope
from schemas.responses import Terminal
from streams.clocks import monotonic_ms, now_ms
from streams.gateway.closing import CLOSINGS
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.spans import Span, memory_bytes
from streams.gateway.fan_out.stream import Closed, Stream
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup, Snapshot
from streams.gateway.service.patience import Patience, is_young
from streams.gateway.service.readings import Readings
from streams.gateway.service.refusals import never_reached, not_found, not_here_yet, replay_unavailable
from streams.gateway.service.stored_turns import StoredTurns
from streams.gateway.service.viewing import Viewing
from streams.gateway.tenant_shares import Hold

OVERDUE_MS = 60_000
READ_SOON_MS = 500
"""What it takes to begin to read another gateway's partition, at most, where the log is not away."""


class _NotYet(Exception):
    """Refused as things stand. Worth another look once `awaited` is so; memory alone tells."""

    def __init__(self, refusal: ApiError, awaited: Callable[[], bool]) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.awaited = awaited


class Resumption:
    def __init__(
        self, hub: Hub, history: History, viewing: Viewing, lookup: Lookup, readings: Readings, patience: Patience,
        stored: StoredTurns,
    ) -> None:  # fmt: skip
        self._hub = hub
        self._history = history
        self._viewing = viewing
        self._lookup = lookup
        self._readings = readings
        self._patience = patience
        self._stored = stored

    async def resume(
        self, principal: Principal, response_id: str, after: int, *, stays: bool = True, waits: bool = True
    ) -> Follower:
        """A viewer that has seen tokens up to `after`. Release it. One that does not stay keeps nothing alive.

        `waits`: for what may soon be known here, whatever is missing, until one deadline. What replay no longer tells
        the store does. Raises ApiError: 404 for an id that is not the tenant's, or was deleted, 400 for a position that
        will never exist, 409 `replay_unavailable` when it is no longer to be had, or runs and cannot be read here, 503
        `not_here_yet` when it may be had here a moment later, and while a store that must be asked is away.
        """
        tenant_id, partition = principal.tenant.tenant_id, self._lookup.partition(response_id)
        try:
            follower = await self._resume(principal, response_id, partition, after, stays=stays, waits=waits)
        except ApiError as refusal:
            replay, end = await self._stored.told_instead(refusal, tenant_id, response_id, after)
            if after > end.sequence_number:
                raise never_reached(after) from None
            return self._viewing.show(tenant_id, replay)
        try:
            await self._stored.refuse_deleted(tenant_id, response_id, follower.started, follower.end)
        except BaseException:
            self._viewing.release(follower)
            raise
        return follower

    async def _resume(
        self, principal: Principal, response_id: str, partition: int, after: int, *, stays: bool, waits: bool
    ) -> Follower:
        deadline_ms, tenant_id = self._patience.begin(), principal.tenant.tenant_id
        if waits and is_young(response_id):
            # It most likely runs: then history alone does not tell it, and what Redis lacks yet is quicker read here.
            soon_ms = min(deadline_ms, monotonic_ms() + READ_SOON_MS)
            await self._patience.until(tenant_id, lambda: self._readings.wanted(partition), soon_ms)
        while True:
            try:
                return await self._look(principal, response_id, partition, after, stays)
            except _NotYet as not_yet:
                if not waits or not await self._patience.until(tenant_id, not_yet.awaited, deadline_ms):
                    raise not_yet.refusal from None

    async def _look(self, principal: Principal, response_id: str, partition: int, after: int, stays: bool) -> Follower:
        """Raises _NotYet, and ApiError for good."""
        readings = self._readings
        reading = readings.of(partition)
        stream = self._lookup.in_memory(principal, response_id)
        if stream is not None and (stream.terminal or reading is not None):
            last = _last(stream)
            if not after or (last is not None and after <= last):
                return self._viewing.follow(principal, response_id, partition, stream.scope, after, stays=stays)
            if stream.terminal is not None or stream.read_throughout:
                raise never_reached(after)
        replay = await self._read(principal, response_id, after)
        if replay is None and self._lookup.in_memory(principal, response_id) is None:
            if self._hub.has_ended(response_id) or not is_young(response_id):
                raise not_found(response_id)
            raise _NotYet(
                not_here_yet("Nothing is known of the response yet."),
                lambda: readings.wanted(partition) and self._is_met(principal, response_id),
            )
        if replay is not None and replay.terminal is not None:
            if after > replay.terminal.sequence_number:
                raise never_reached(after)
            return self._viewing.show(principal.tenant.tenant_id, replay)
        # What was read of history before that may lack what nobody here will tell.
        if reading is None or readings.of(partition) != reading:
            readings.wanted(partition)
            refusal = replay_unavailable("The response runs, and cannot be read here now.", is_transient=True)
            raise _NotYet(refusal, lambda: readings.wanted(partition))
        if replay is not None and after > replay.seen:
            refusal = not_here_yet(f"Nothing has the sequence number {after} yet.")
            raise _NotYet(refusal, lambda: self._is_reached(principal, response_id, after))
        started = None if replay is None else replay.started
        scope = started.scope if started is not None else Scope(tenant_id=principal.tenant.tenant_id)
        follower = self._viewing.follow(principal, response_id, partition, scope, after, stays=stays, replay=replay)
        if started is not None:
            self._hub.meet(started, monotonic_ms())
        return follower

    async def _read(self, principal: Principal, response_id: str, after: int) -> Replay | None:
        """Raises ApiError 409."""
        tenant_id, ended = principal.tenant.tenant_id, self._hub.has_ended(response_id)
        try:
            replay = await self._history.read(tenant_id, response_id, after, ended=ended)
            if replay is not None and replay.terminal is not None:
                return replay
            if (not ended and self._has_left(response_id)) or _is_overdue(replay):
                replay = await self._history.read(tenant_id, response_id, after, ended=True)
        except HistoryUnavailable as error:
            why = f"The response cannot be replayed: {error}."
            raise replay_unavailable(why, is_transient=error.is_transient) from None
        return replay

    def _has_left(self, response_id: str) -> bool:
        """Whether it has ended and memory tells no more of it."""
        return self._hub.has_ended(response_id) and self._hub.get(response_id) is None

    def _is_met(self, principal: Principal, response_id: str) -> bool:
        """Whether anything of it is known here, or it has ended and left memory."""
        return self._hub.has_ended(response_id) or self._lookup.in_memory(principal, response_id) is not None

    def _is_reached(self, principal: Principal, response_id: str, after: int) -> bool:
        """Whether token `after` is known here, or the response has ended."""
        stream = self._lookup.in_memory(principal, response_id)
        return self._hub.has_ended(response_id) or (stream is not None and (stream.next_sequence or 0) > after)

    async def retrieve(
        self, principal: Principal, response_id: str, held: Hold, *, waits: bool = True, end_within_s: float = 0
    ) -> Snapshot:
        """As it stands now, or at its end if that comes `end_within_s`; what it takes is `held`.

        Raises ApiError as `resume` does, and 429.
        """
        deadline_s = time.monotonic() + end_within_s
        follower = await self.resume(principal, response_id, 0, stays=False, waits=waits)
        try:
            spans: list[Span] = []
            terminal: Terminal | None = None
            while terminal is None and (event := await follower.next(deadline_s - time.monotonic())) is not None:
                if isinstance(event, Closed):
                    is_transient = CLOSINGS[event.reason].resumable
                    raise replay_unavailable("The response cannot be replayed in full.", is_transient=is_transient)
                if isinstance(event, Span):
                    held.grow(memory_bytes((event,)))
                    spans.append(event)
                elif isinstance(event, Terminal):
                    terminal = event
            last = terminal.sequence_number if terminal else (spans[-1].sequence_number if spans else 0)
            return Snapshot(response_id, follower.started, spans, last, terminal)
        finally:
            self._viewing.release(follower)


def _is_overdue(replay: Replay | None) -> bool:
    started = None if replay is None else replay.started
    return started is not None and now_ms() > started.deadline_ms + OVERDUE_MS


def _last(stream: Stream) -> int | None:
    """The highest number that a viewer may have seen, as far as memory can tell."""
    if stream.terminal is not None:
        return stream.terminal.sequence_number
    return None if stream.next_sequence is None else stream.next_sequence - 1
