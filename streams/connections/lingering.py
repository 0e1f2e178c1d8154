"""Closing so that the peer hears why: a socket closed with unread bytes resets the connection, and what was written
last is lost. What still comes is read away for a while, unparsed."""

import asyncio
from typing import Final

LINGER_S: Final = 2.0
QUIET_S: Final = 0.1


class Lingering:
    """For a protocol that has written its last words. Calls of `data_received` go to `read_away` while `lingers`."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    close_timer: asyncio.TimerHandle | None
    """uvicorn's own: while it is set, the end of an application does not close the connection."""
    lingers = False
    _was_read = False

    def linger(self) -> None:
        """Closes once the peer is quiet and has been told, and without mercy at the deadline."""
        self.lingers = True
        if not self.transport.is_closing():
            self.transport.resume_reading()
        self._linger_on(self.loop.time() + LINGER_S)

    def read_away(self) -> None:
        self._was_read = True

    def _linger_on(self, deadline_s: float) -> None:
        self._was_read = False
        self.close_timer = self.loop.call_later(QUIET_S, self._close_when_quiet, deadline_s)

    def _close_when_quiet(self, deadline_s: float) -> None:
        if self.transport.is_closing():
            return
        if self.loop.time() >= deadline_s:
            self.transport.abort()
        elif self._was_read or self.transport.get_write_buffer_size():
            self._linger_on(deadline_s)
        else:
            self.transport.close()
