"""What a stream is told while it has nothing to tell: that it lives, and where its response stands in a queue."""

from typing import Final

from schemas.responses import Started
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.http.dialects.port import Events
from streams.gateway.queues import LOOK_EVERY_S, Queues, Waiter

KEEP_ALIVE_S: Final = 15.0


class Silence:
    """Of one viewer. While its place may be news it is asked every second, otherwise seldom: see `patience_s`."""

    def __init__(self, queues: Queues, follower: Follower, events: Events) -> None:
        self._queues = queues
        self._follower = follower
        self._events = events
        self._waiter: Waiter | None = None
        self._silent_s = 0.0

    @property
    def patience_s(self) -> float:
        """So long nothing may come before `told` is asked."""
        return KEEP_ALIVE_S if self._waiter is None else LOOK_EVERY_S

    def begun(self, started: Started) -> bytes:
        """Behind what the format tells of it."""
        waiter = self._queues.enter(started, self._follower)
        if waiter is None:
            return b""
        if waiter.hears_more:
            self._waiter = waiter
        return b"" if waiter.place is None else self._events.queued(waiter.place)

    def told(self) -> bytes:
        """Once nothing has come for so long. May be nothing."""
        if self._waiter is None:
            return self._events.keep_alive
        self._silent_s += LOOK_EVERY_S
        if self._waiter.is_over:
            self.end()
        elif (place := self._waiter.take_news()) is not None and (told := self._events.queued(place)):
            self._silent_s = 0.0
            return told
        if self._silent_s < KEEP_ALIVE_S:
            return b""
        self._silent_s = 0.0
        return self._events.keep_alive

    def end(self) -> None:
        self._queues.leave(self._waiter)
        self._waiter = None
