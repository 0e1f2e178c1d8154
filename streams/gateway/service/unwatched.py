"""Ends what nobody watches any more, here or at another gateway, where its client asked for that."""

from collections.abc import Callable, Sequence

import structlog

from streams.clocks import monotonic_ms
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.stream import Stream
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.watches import Watches, WatchesUnknown

_log = structlog.get_logger()


class Unwatched:
    def __init__(
        self, hub: Hub, cancels: CancelWriter, watches: Watches | None, owned: Callable[[], Sequence[int]]
    ) -> None:
        """`watches` None: there are no other gateways. `owned`: what this gateway may end now."""
        self._hub = hub
        self._cancels = cancels
        self._watches = watches
        self._owned = owned

    async def end(self, streams: Sequence[Stream]) -> None:
        """Those that somebody watches, or may watch, are asked about again a little later."""
        watched = await self._watched([stream.response_id for stream in streams])
        for stream in streams:
            is_ours = stream.partition in self._owned()
            has_viewer = any(viewer.stays for viewer in stream.viewers)
            if watched is None or stream.response_id in watched or has_viewer or not is_ours:
                self._hub.watched_elsewhere(stream, monotonic_ms())
            elif stream.terminal is None:
                self._cancels.write_soon(stream)

    async def _watched(self, response_ids: Sequence[str]) -> set[str] | None:
        """None: nobody knows."""
        if self._watches is None:
            return set()
        try:
            return await self._watches.watched(response_ids)
        except WatchesUnknown as error:
            _log.warning("watches_unknown", why=str(error), repeats=True)
            return None
