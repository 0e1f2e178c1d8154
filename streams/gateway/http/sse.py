"""Server-sent events of one response, straight on ASGI."""

import asyncio
from collections.abc import Callable, Iterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from schemas.responses import Started, Terminal
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Closed, Event
from streams.gateway.http.dialects.port import Events, Told
from streams.gateway.http.silence import Silence
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.queues import Queues
from streams.gateway.timing import Timing

LAST_SEND_TIMEOUT_S = 10.0
PIECE_BYTES = 65_536
"""Of what is long a viewer holds no more at once than this, and what its transport takes."""


class SseResponse(StreamingResponse):
    """An ASGI response that streams a follower until its end, the client's departure, or a stall."""

    def __init__(
        self,
        follower: Follower,
        events: Events,
        *,
        first: Event | None,
        headers: dict[str, str],
        metrics: GatewayMetrics,
        queues: Queues,
        release: Callable[[], None],
        stall_s: float,
        is_back: bool = False,
    ) -> None:
        self._follower = follower
        self._events = events
        self._first = first
        super().__init__(
            iter(()), media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers},
        )  # fmt: skip
        self._timing = Timing(metrics, follower, is_back=is_back)
        self._silence = Silence(queues, follower, events)
        self._release = release
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = asyncio.ensure_future(self._stream(send))
        departure = asyncio.ensure_future(departed(receive))
        self._follower.on_stalled = body.cancel
        try:
            await asyncio.wait((body, departure), return_when=asyncio.FIRST_COMPLETED)
            self._follower.leave()
            if not body.done():
                await asyncio.wait((body,), timeout=LAST_SEND_TIMEOUT_S)
        finally:
            departure.cancel()
            body.cancel()
            await asyncio.gather(body, departure, return_exceptions=True)
            self._silence.end()
            self._release()
        if not body.cancelled() and (error := body.exception()) is not None:
            raise error

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        follower, events, silence = self._follower, self._events, self._silence
        event, patience_s = self._first, silence.patience_s
        accepted_at_ms = follower.started.accepted_at_ms if follower.started else 0
        data: Told
        while True:
            if event is None:
                if follower.has_left:
                    return
                data, patience_s = silence.told(), silence.patience_s
            elif type(event) is Span:
                self._timing.delivered(event, accepted_at_ms)
                data = events.span(event)
            elif type(event) is Started:
                accepted_at_ms = event.accepted_at_ms
                silence.end()
                data = _both(events.begin(event), silence.begun(event))
                patience_s = silence.patience_s
            elif type(event) is Terminal:
                self._timing.ended(accepted_at_ms)
                await self._finish(send, events.terminal(event))
                return
            else:
                assert type(event) is Closed
                await self._finish(send, events.closed(event.reason))
                return
            if not data:
                event = await follower.next(patience_s)
                continue
            for piece in (data,) if isinstance(data, bytes) else pieces(data):
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                if follower.viewer is not None:
                    # The hub notices when it stalls: a token's way must not pay for a timer.
                    await send(message)
                    continue
                try:
                    async with asyncio.timeout(self._stall_s):
                        await send(message)
                except TimeoutError:
                    return
            event = await follower.next(patience_s)

    async def _finish(self, send: Send, data: Told) -> None:
        if not isinstance(data, bytes):
            for piece in pieces(data):
                async with asyncio.timeout(LAST_SEND_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await asyncio.sleep(0)  # Others have something to send as well.
            data = b""
        async with asyncio.timeout(LAST_SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": data, "more_body": False})


def _both(told: Told, more: bytes) -> Told:
    if not more:
        return told
    return told + more if isinstance(told, bytes) else (*told, more)


def pieces(told: tuple[bytes, ...]) -> Iterator[bytes]:
    """Of so many bytes that sending one keeps nobody waiting."""
    for each in told:
        for begin in range(0, len(each), PIECE_BYTES):
            yield each[begin : begin + PIECE_BYTES]


async def departed(receive: Receive) -> None:
    """Returns when the client has gone. To be called once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
