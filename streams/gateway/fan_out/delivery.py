"""Following one response as a coroutine: live events from the hub, what memory lacks from history."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from schemas.responses import Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out.spans import Span, cut, join_runs
from streams.gateway.fan_out.stream import Behind, Closed, Event, Viewer
from streams.gateway.history.replay import Replay
from streams.gateway.history.store import History
from streams.gateway.history.unavailable import HistoryUnavailable


class _Missing(NamedTuple):
    """What history is to tell next."""

    response_id: str
    after: int
    until: int
    ended: bool


class Follower:
    """One viewer's events in order: `Started`, spans, then `Terminal` or `Closed`.

    For one task at a time: it waits in `next`, or has `listen` tell it when `poll` has something.
    """

    def __init__(self, history: History, tenant_id: str) -> None:
        self._history = history
        self.tenant_id = tenant_id
        self._on_ready: Callable[[Viewer | None], None] | None = None
        self._replayed: deque[Event] = deque()
        self._behind = False
        self._piece: Replay | None = None
        """The last one shown, where history has more."""
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._has_left = False
        self.viewer: Viewer | None = None
        self.started: Started | None = None
        self.is_handed_over = False
        """Whether whoever streams it will release it."""
        self.came_back = False
        """Whether its client has asked for the same before, and is told it from its first token on."""
        self.on_stalled: Callable[[], object] | None = None
        """Called when the hub gave the viewer up while its owner was busy sending."""

    # Filling

    def watch(self, viewer: Viewer, replay: Replay | None = None) -> None:
        """Follows the hub from where `viewer` stands, or from where `replay` ends that history told of it."""
        self.viewer = viewer
        self.started = viewer.stream.started
        if replay is None:
            self._behind = viewer.needs_history
        else:
            self.show(replay)
            is_caught_up = viewer.caught_up(replay.last, started=replay.started is not None)
            self._behind = self._behind or not is_caught_up

    def show(self, replay: Replay) -> None:
        """Puts what history told before what comes live."""
        viewer = self.viewer
        if replay.started is not None:
            self.started = replay.started
            if replay.after == 0 and (viewer is None or not viewer.started_taken):
                self._replayed.append(replay.started)
        self._replayed.extend(cut(join_runs(replay.spans)))
        # Of a long answer only a piece is held: the next is read when this one is sent.
        if replay.is_partial and replay.terminal is None and self._piece is not None:
            replay.terminal = self._piece.terminal
        self._piece = replay if replay.is_partial else None
        self._behind = self._piece is not None and (
            viewer is None or replay.terminal is not None or replay.last < viewer.until
        )
        if replay.terminal is not None and not replay.is_partial:
            self._replayed.append(replay.terminal)

    async def catch_up(self) -> None:
        """Reads what memory lacks; afterwards `poll` has it, or a `Closed`.

        Until then it stays behind: whoever asks meanwhile is given nothing of memory, which comes after.
        """
        viewer = self.viewer
        missing = None if viewer is not None and viewer.closed else self._missing()
        if missing is None:
            self._behind = False
            return
        begun_anew = 0
        if viewer is not None:
            viewer.reads_history = True
            begun_anew = viewer.begun_anew
        reason = CloseReason.REPLAY_UNAVAILABLE
        replay, has_failed = None, False
        try:
            rest = None if self._piece is None else self._piece.rest
            replay = await self._history.read(
                self.tenant_id, missing.response_id, missing.after, until=missing.until, ended=missing.ended, rest=rest
            )
        except HistoryUnavailable as error:
            has_failed = True
            if error.is_transient:
                reason = CloseReason.REPLAY_LATE
        finally:
            if viewer is not None:
                viewer.reads_history = False
        self._behind = False
        if viewer is not None and not has_failed:
            viewer.looked_at = begun_anew
        if replay is not None:
            self.show(replay)
            if viewer is not None:
                # Should memory lack more by now, it says so.
                viewer.caught_up(replay.last, started=replay.started is not None)
        # All tokens may stand in memory: then history was asked for no more than how the response began.
        elif viewer is None or (
            not viewer.closed and (viewer.after < viewer.until or (has_failed and viewer.must_look))
        ):
            self._replayed.append(Closed(reason))

    def _missing(self) -> "_Missing | None":
        piece, viewer = self._piece, self.viewer
        if piece is not None and piece.terminal is not None:
            end = piece.terminal
            return _Missing(end.response_id, piece.last, end.sequence_number - 1, ended=True)
        if viewer is None:
            return None
        return _Missing(viewer.stream.response_id, viewer.after, viewer.until, ended=False)

    # Taking

    def poll(self) -> Event | None:
        """The next event, None when there is none now. After `Behind`, call `catch_up`."""
        viewer = self.viewer
        if self._replayed:
            if viewer is not None:
                viewer.goes_on()
            return self._replayed.popleft()
        if self._behind and (missing := self._missing()) is not None:
            return Behind(missing.after, missing.until)
        if viewer is None:
            return None
        event = viewer.take()
        if type(event) is Behind:
            self._behind = True
        elif type(event) is Started:
            self.started = event
        return event

    def poll_span(self) -> Span | None:
        """The next event if it is a span that memory has; otherwise None, and `poll` tells."""
        viewer = self.viewer
        return None if viewer is None or self._replayed or self._behind else viewer.take_span()

    @property
    def end(self) -> Terminal | None:
        """How what it follows ended, if that is known."""
        if self.viewer is not None and self.viewer.stream.terminal is not None:
            return self.viewer.stream.terminal
        if self._piece is not None:
            return self._piece.terminal
        last = self._replayed[-1] if self._replayed else None
        return last if isinstance(last, Terminal) else None

    @property
    def has_more(self) -> bool:
        """Whether `poll` would return something."""
        return bool(self._replayed) or self._behind or (self.viewer is not None and self.viewer.ready)

    async def next(self, timeout_s: float) -> Event | None:
        """The next event; None when `timeout_s` pass without one, or when `leave` was called."""
        loop = asyncio.get_running_loop()
        self._deadline_s = loop.time() + timeout_s
        while not self._has_left:
            event = self.poll()
            if type(event) is Behind:
                await self.catch_up()
            elif event is not None:
                return event
            elif loop.time() >= self._deadline_s:
                return None
            else:
                self._arm(loop)
                self._waiter = loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
        return None

    def listen(self, on_ready: Callable[[Viewer | None], None] | None) -> None:
        """`on_ready` is called when `poll` has something, by the viewer itself where that has it. None: no longer."""
        self._on_ready = on_ready
        if self.viewer is not None:
            self.viewer.on_ready = on_ready or self.wake

    def wake(self, viewer: Viewer | None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._on_ready is not None:
            self._on_ready(viewer)

    def leave(self) -> None:
        """The client is gone: `next` answers None from now on."""
        self._has_left = True
        self.wake()

    @property
    def has_left(self) -> bool:
        return self._has_left

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        # One timer outlives many waits: a token's way must not pay for setting and cancelling one.
        if self._timer is None or self._timer.when() > self._deadline_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._deadline_s, self._expired, loop)

    def _expired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if loop.time() >= self._deadline_s:
            self._waiter.set_result(None)
        else:
            self._arm(loop)

    def close(self) -> None:
        """Releases the timer; the viewer is detached by whoever attached it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
