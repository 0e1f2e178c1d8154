"""Server-sent events of one response, as OpenAI's chunks, straight on ASGI.

Each event's `id` is the number of the last token it holds; the last event (`[DONE]`) has the terminal's, so a client
that comes back with it has seen everything.
"""

import asyncio
from collections.abc import Callable

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from schemas.endings import ENDINGS
from schemas.responses import Started, Terminal
from streams.dialects.openai_chat import ChunkWriter
from streams.dialects.openai_completion import finish_reason
from streams.dialects.openai_error import ending_error, error_object
from streams.gateway.closing import CLOSINGS, CloseReason
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Closed, Event
from streams.gateway.fan_out.spans import Span
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.timing import Timing

HEARTBEAT_S = 15.0
RETRY_MS = 1_000
LAST_SEND_TIMEOUT_S = 10.0
_DELTA_FIELDS = {"content": "content", "reasoning": "reasoning_content"}


class ChatEvents:
    """Turns events into SSE bytes, in OpenAI's chunks."""

    def __init__(self, response_id: str, created_s: int, model: str, *, include_usage: bool) -> None:
        self._response_id = response_id
        self._writer = ChunkWriter(response_id, created_s, model, include_usage=include_usage)
        self._include_usage = include_usage
        self._role_sent: set[int] = set()

    def begin(self, started: Started) -> bytes:
        """Who resumes before a response has started learns the model, and when it was created, only now."""
        created_s = started.accepted_at_ms // 1_000
        self._writer = ChunkWriter(self._response_id, created_s, started.model, include_usage=self._include_usage)
        self._role_sent.add(0)
        return b"retry: %d\nid: 0\ndata: %b\n\n" % (RETRY_MS, self._writer.role())

    def span(self, span: Span) -> bytes:
        data = self._writer.text(span.text, span.choice, _DELTA_FIELDS.get(span.kind, span.kind))
        event = b"id: %d\ndata: %b\n\n" % (span.sequence_number, data)
        if span.choice not in self._role_sent:
            self._role_sent.add(span.choice)
            if span.first_sequence == 1 or span.choice:
                return b"data: %b\n\n%b" % (self._writer.role(span.choice), event)
        return event

    def terminal(self, terminal: Terminal) -> bytes:
        parts: list[bytes] = []
        if ENDINGS[terminal.code].is_error:
            parts.append(orjson.dumps(ending_error(terminal.code, terminal.message, terminal.param)))
        else:
            for choice in range(max(1, len(terminal.finish_reasons))):
                reason = finish_reason(terminal.code, terminal.finish_reasons, choice)
                parts.append(self._writer.finish(reason, choice))
            if self._include_usage:
                parts.append(self._writer.usage(terminal.usage))
        body = b"".join(b"data: %b\n\n" % part for part in parts)
        return body + b"id: %d\ndata: [DONE]\n\n" % terminal.sequence_number

    @staticmethod
    def closed(reason: CloseReason) -> bytes:
        """The viewer was given up: an error event, after which the client may come back with its last id."""
        error = error_object(reason.value, CLOSINGS[reason].message, "server_error")
        return b"data: %b\n\n" % orjson.dumps(error)


class SseResponse(StreamingResponse):
    """An ASGI response that streams a follower until its end, the client's departure, or a stall."""

    def __init__(
        self,
        follower: Follower,
        events: ChatEvents,
        *,
        first: Event | None,
        headers: dict[str, str],
        metrics: GatewayMetrics,
        release: Callable[[], None],
        stall_s: float,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._follower = follower
        self._events = events
        self._first = first
        super().__init__(
            iter(()), media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no", **headers},
        )  # fmt: skip
        self._timing = Timing(metrics)
        self._release = release
        self._stall_s = stall_s
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = asyncio.ensure_future(self._stream(send))
        departure = asyncio.ensure_future(departed(receive))
        self._follower.on_stalled = body.cancel
        try:
            await asyncio.wait((body, departure), return_when=asyncio.FIRST_COMPLETED)
            self._follower.abandon()
            if not body.done():
                await asyncio.wait((body,), timeout=LAST_SEND_TIMEOUT_S)
        finally:
            departure.cancel()
            body.cancel()
            await asyncio.gather(body, departure, return_exceptions=True)
            self._release()
        if not body.cancelled() and (error := body.exception()) is not None:
            raise error

    async def _stream(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        follower, events = self._follower, self._events
        event = self._first
        accepted_at_ms = follower.started.accepted_at_ms if follower.started else 0
        while True:
            if event is None:
                if follower.is_abandoned:
                    return
                data = b": heartbeat\n\n"
            elif type(event) is Span:
                self._timing.delivered(event, accepted_at_ms)
                data = events.span(event)
            elif type(event) is Started:
                accepted_at_ms = event.accepted_at_ms
                data = events.begin(event)
            elif type(event) is Terminal:
                self._timing.ended(accepted_at_ms)
                await self._finish(send, events.terminal(event))
                return
            else:
                assert type(event) is Closed
                await self._finish(send, events.closed(event.reason))
                return
            message = {"type": "http.response.body", "body": data, "more_body": True}
            if follower.viewer is not None:
                # The hub notices when it stalls: a token's way must not pay for a timer.
                await send(message)
            else:
                try:
                    async with asyncio.timeout(self._stall_s):
                        await send(message)
                except TimeoutError:
                    return
            event = await follower.next(self._heartbeat_s)

    async def _finish(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(LAST_SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": data, "more_body": False})


async def departed(receive: Receive) -> None:
    """Returns when the client has gone. To be called once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
