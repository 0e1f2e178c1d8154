"""The WebSocket `/v1/stream`, straight on ASGI: many responses on one socket, one writer, bounded queues.

The message catalogue is `schemas.websocket`; close codes are in `streams.gateway.closing`. A socket that reads slowly
finds its deltas joined into larger ones; what it has not read costs the gateway no memory beyond the shared text.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any

import structlog
from pydantic import BaseModel
from starlette.types import Receive, Send

from schemas.endings import EndingCode
from schemas.responses import Started, Terminal
from schemas.websocket import (
    Accepted,
    AuthMessage,
    CancelMessage,
    ClientMessage,
    Closing,
    EditMessage,
    ErrorBody,
    ErrorMessage,
    PingMessage,
    Pong,
    RequestMessage,
    ResumeMessage,
)
from streams.clocks import monotonic_ms
from streams.dialects.json_body import is_large, parsed_bytes
from streams.dialects.neutral import RequestError
from streams.directory import KeyScope
from streams.gateway.closing import CLOSINGS, CloseReason, closing_message
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Behind, Closed, Event, Viewer
from streams.gateway.places import Place
from streams.gateway.service.keys import Principal
from streams.gateway.service.refusals import asked_too_early
from streams.gateway.service.service import Gateway
from streams.gateway.tenant_shares import Hold, SmallMessages
from streams.gateway.timing import Timing
from streams.gateway.websocket.asking import Asking, accepted
from streams.gateway.websocket.client_messages import MessageError, read_message
from streams.gateway.websocket.protocol import Frames
from streams.gateway.websocket.refusal import code_of, invalid, refusal
from streams.gateway.websocket.refused_asks import RefusedAsks
from streams.gateway.websocket.shown_key import ShownKey
from streams.gateway.websocket.watched import Watched, started_message, terminal_message

AUTH_TIMEOUT_S = 10.0
MAX_RESPONSES_PER_SOCKET = 1_000
MAX_QUEUED_MESSAGES = 256
MAX_ERRORS = 20
CLOSE_TIMEOUT_S = 5.0
THERE_ALREADY, TOO_MANY = "The response is on this socket already.", "Too many responses on this socket."

_log = structlog.get_logger()


class Socket:
    """One connection: a reader that understands messages, and a writer that sends.

    While the writer sleeps nothing waits to be sent. Text that comes then goes to the connection at once, where that
    takes `frames`: waking a task would cost more than all the rest of a token's way.
    """

    def __init__(
        self, gateway: Gateway, receive: Receive, send: Send, traceparent: str, frames: Frames | None = None,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._receive = receive
        self._send = send
        self._stall_s = gateway.settings.gateway.viewer_stall_ms / 1_000
        self._traceparent = traceparent
        self._frames = frames
        self._place = place
        self._watched: dict[str, Watched] = {}
        self._requests: set[str] = set()
        self._ready: deque[Watched] = deque()
        self._outbox: deque[str] = deque()
        self._sleeping: asyncio.Future[None] | None = None
        """The writer's, while nothing waits to be sent."""
        self._room = asyncio.Event()
        self._room.set()
        self._work: set[asyncio.Task[None]] = set()
        self._errors = 0
        self._refused_asks = RefusedAsks()
        self.key = ShownKey(gateway, self._close)
        self._small_messages: SmallMessages | None = None
        """Of a socket whose key is known."""
        self._message_bytes, self._message_is_large = 0, False
        self._closing: Closing | None = None
        self._writer: asyncio.Task[None] | None = None
        self._send_began_s: float | None = None

    async def run(self, api_key: str | None) -> None:
        """Serves the accepted connection until either side closes it."""
        reader = asyncio.ensure_future(self._read(api_key))
        writer = self._writer = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if self._closing is not None:
                await asyncio.wait((writer,), timeout=CLOSE_TIMEOUT_S)
        finally:
            self.key.forget()
            tasks = [reader, writer, *self._work]
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for watched in list(self._watched.values()):
                self._unwatch(watched)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, OSError):
                _log.error("websocket_failed", exc_info=outcome)

    # Reading

    async def _read(self, api_key: str | None) -> None:
        if api_key is None and (api_key := await self._told_key()) is None:
            return None
        if (principal := self.key.close_in_time(api_key)) is None:
            return None
        tenant_id = principal.tenant.tenant_id
        with ExitStack() as share:
            try:
                if self._place is not None:
                    self._place.admit()
                share.enter_context(self._gateway.shares.connection(tenant_id))
            except ApiError as error:
                return self._close(CloseReason(error.code))
            held = share.enter_context(self._gateway.shares.body(tenant_id))
            self._small_messages = self._gateway.shares.small_messages(tenant_id)
            if self._frames is not None:
                self._frames.admit()
                self._frames.account_to(held.set, self._small_messages.spend)
            while await self._take_message(api_key, tenant_id):
                pass
        return None

    async def _told_key(self) -> str | None:
        """By the first message that is one, in time. None once the socket is closing or gone."""
        try:
            async with asyncio.timeout(AUTH_TIMEOUT_S):
                while (text := await self._next_text()) is not None:
                    # Strangers share the turns and the memory of one tenant.
                    with self._gateway.shares.body("") as held:
                        message = await self._understood(text, "", held)
                    if message is not None:
                        return message.api_key if isinstance(message, AuthMessage) else ""
        except TimeoutError:
            self._close(CloseReason.AUTH_TIMEOUT)
        return None

    async def _take_message(self, api_key: str, tenant_id: str) -> bool:
        """False once the socket is closing or gone. Nothing of a message is kept here while the next is waited for."""
        if (text := await self._next_text()) is None:
            return False
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.body(tenant_id))
            message = await self._understood(text, tenant_id, held)
            await self._room.wait()
            if message is not None and (known := self.key.look(api_key)) is not None:
                self._do(known, message, share, held)
        return True

    async def _next_text(self) -> str | None:
        """None once the socket is closing or gone."""
        if self._closing is not None:
            return None
        event = await self._receive()
        if event["type"] == "websocket.disconnect":
            return None
        text: str | None = event.get("text")
        if text is None:
            self._close(CloseReason.NOT_TEXT)
        return text

    async def _understood(self, text: str, tenant_id: str, held: Hold) -> ClientMessage | None:
        """None, and the client is told, where it is no message or takes more memory than its tenant has."""
        self._message_bytes = len(text) if text.isascii() else len(text.encode())
        self._message_is_large = is_large(text)
        request_id = None
        try:
            message, size_bytes = await self._gateway.in_turn(
                tenant_id, lambda: (read_message(text), parsed_bytes(text)), is_large=self._message_is_large
            )
            request_id = message.request_id if isinstance(message, Asking) else None
            held.grow(size_bytes)
        except MessageError as error:
            self._refuse(error, request_id=error.request_id)
        except RequestError as error:
            self._refuse(error)
        except ApiError as error:
            self._refuse(error, request_id=request_id)
            self._may_cost_time()
            return None
        else:
            return message
        self._errors += 1
        if self._errors >= MAX_ERRORS:
            self._close(CloseReason.TOO_MANY_ERRORS)
        return None

    def _may_ask(self, principal: Principal, message: ClientMessage) -> bool:
        """Whether it may, within the tenant's share; says so if not. What asks nothing, or is refused, costs time."""
        if self._gateway.stopping and isinstance(message, Asking | ResumeMessage):
            self.go_away()  # Elsewhere it is answered.
            return False
        if not isinstance(message, Asking | ResumeMessage | CancelMessage):
            return self._may_cost_time()
        try:
            self._gateway.shares.spend_request(principal.tenant.tenant_id)
            principal.require(KeyScope.RESPONSES)
        except ApiError as error:
            if isinstance(message, Asking):
                self._refuse(error, request_id=message.request_id)
            else:
                self._refuse(error, response_id=message.response_id)
            self._may_cost_time()
            return False
        return True

    def _may_cost_time(self) -> bool:
        """As much as a small message does; the socket closes if not."""
        may_cost = self._small_messages is None or self._small_messages.spend(1)
        if not may_cost:
            self._close(CloseReason.RATE_LIMITED_MESSAGES)
        return may_cost

    def _do(self, principal: Principal, message: ClientMessage, share: ExitStack, held: Hold) -> None:
        """A request keeps the `share` of the message's memory until it is stored."""
        if not self._may_ask(principal, message):
            return
        match message:
            case RequestMessage(request_id=request_id) | EditMessage(request_id=request_id):
                if request_id in self._requests:
                    self._refuse(invalid("The request_id is in use on this socket.", "request_id"), request_id)
                elif len(self._watched) + len(self._work) >= MAX_RESPONSES_PER_SOCKET:
                    self._refuse(RequestError(EndingCode.OVERLOADED, TOO_MANY), request_id)
                else:
                    self._requests.add(request_id)
                    work = self._request(principal, message, held, self._message_bytes, large=self._message_is_large)
                    self._start(work, share.pop_all())
            case ResumeMessage(response_id=response_id):
                if response_id in self._watched:
                    self._refuse(invalid(THERE_ALREADY, "response_id"), response_id=response_id)
                elif len(self._watched) + len(self._work) >= MAX_RESPONSES_PER_SOCKET:
                    self._refuse(RequestError(EndingCode.OVERLOADED, TOO_MANY), response_id=response_id)
                elif not self._is_early(message):
                    self._start(self._resume(principal, message))
            case CancelMessage():
                if not self._is_early(message):
                    self._start(self._cancel(principal, message))
            case PingMessage(nonce=nonce):
                self._say(Pong(nonce=nonce))
            case AuthMessage():
                self._refuse(invalid("The socket is authenticated already.", "type"))

    async def _request(
        self, principal: Principal, message: Asking, held: Hold, size_bytes: int, *, large: bool
    ) -> None:
        request_id = message.request_id
        try:
            response_id, follower = await accepted(
                self._gateway, principal, message, held, size_bytes, self._traceparent, large=large
            )
            if response_id in self._watched:
                self._gateway.release(follower)
                raise invalid(THERE_ALREADY, "idempotency_key")
        except (RequestError, ApiError) as error:
            self._requests.discard(request_id)
            self._refuse(error, request_id)
            return
        self._say(Accepted(request_id=request_id, response_id=response_id))
        self._watch(response_id, follower, request_id)

    def _is_early(self, ask: ResumeMessage | CancelMessage) -> bool:
        """Whether it was refused a moment ago and not to be asked again yet; says so."""
        wait_ms = self._refused_asks.wait_ms(ask, monotonic_ms())
        if wait_ms:
            self._refuse(asked_too_early(wait_ms), response_id=ask.response_id)
            self._close_if_impatient()
        return wait_ms > 0

    def _refuse_ask(self, error: ApiError, ask: ResumeMessage | CancelMessage) -> None:
        self._refuse(error, response_id=ask.response_id)
        self._refused_asks.refused(ask, monotonic_ms(), error.retry_after_ms)
        self._close_if_impatient()

    def _close_if_impatient(self) -> None:
        if self._refused_asks.too_many:
            self._close(CloseReason.IMPATIENT)

    async def _resume(self, principal: Principal, message: ResumeMessage) -> None:
        response_id = message.response_id
        try:
            follower = await self._gateway.resume(principal, response_id, message.starting_after)
        except ApiError as error:
            self._refuse_ask(error, message)
            return
        if response_id in self._watched:
            self._gateway.release(follower)
            self._refuse(invalid(THERE_ALREADY, "response_id"), response_id=response_id)
            return
        self._watch(response_id, follower, None)

    async def _cancel(self, principal: Principal, message: CancelMessage) -> None:
        try:
            snapshot = await self._gateway.cancel(principal, message.response_id)
        except ApiError as error:
            self._refuse_ask(error, message)
            return
        if snapshot.terminal is not None and message.response_id not in self._watched:
            self._say(terminal_message(message.response_id, snapshot.terminal))

    def _start(self, work: Coroutine[Any, Any, None], share: ExitStack | None = None) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        if share is not None:
            task.add_done_callback(lambda _: share.close())
        task.add_done_callback(self._worked)
        if len(self._work) >= MAX_QUEUED_MESSAGES:
            self._room.clear()

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        self._make_room()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("websocket_message_failed", exc_info=error)
            self._close(CloseReason.GOING_AWAY)

    # Watching

    def _watch(self, response_id: str, follower: Follower, request_id: str | None) -> None:
        watched = Watched(response_id, follower, request_id, Timing(self._gateway.metrics, follower))
        self._watched[response_id] = watched
        follower.listen(partial(self._deliver, watched))
        follower.on_stalled = partial(self._stalled, watched)
        if follower.has_more:
            self._enqueue(watched)

    def _unwatch(self, watched: Watched) -> None:
        self._watched.pop(watched.response_id, None)
        watched.follower.listen(None)
        self._gateway.queues.leave(watched.waiter)
        if watched.request_id is not None:
            self._requests.discard(watched.request_id)
        self._gateway.release(watched.follower)

    def _deliver(self, watched: Watched, viewer: Viewer | None) -> None:
        frames = self._frames
        if viewer is not None and self._sleeping is not None and frames is not None and frames.takes_frames:
            span = watched.follower.poll_span()
            if span is not None:
                watched.timing.delivered(span, watched.accepted_at_ms)
                frames.write_frame(watched.frame(span))
                if not viewer.ready:
                    return
        self._enqueue(watched)

    def _enqueue(self, watched: Watched) -> None:
        if not watched.queued:
            watched.queued = True
            self._ready.append(watched)
            self._rouse()

    def _rouse(self) -> None:
        sleeping, self._sleeping = self._sleeping, None
        if sleeping is not None and not sleeping.done():
            sleeping.set_result(None)

    def _stalled(self, watched: Watched) -> None:
        """The hub serves this response no longer. Nothing more can be said to a client in whose send the writer hangs;
        any other is told, and keeps its other responses.
        """
        began_s = self._send_began_s
        if began_s is None or asyncio.get_running_loop().time() - began_s < self._stall_s / 2:
            self._enqueue(watched)
        elif self._writer is not None:
            self._writer.cancel()

    # Writing

    def _say(self, message: BaseModel) -> None:
        self._outbox.append(message.model_dump_json())
        if len(self._outbox) >= MAX_QUEUED_MESSAGES:
            self._room.clear()
        self._rouse()

    def _say_if_room(self, message: BaseModel) -> None:
        if len(self._outbox) < MAX_QUEUED_MESSAGES:
            self._say(message)

    def _refuse(
        self, error: RequestError | ApiError, request_id: str | None = None, response_id: str | None = None
    ) -> None:
        self._gateway.metrics.refused.labels(code_of(error)).inc()
        self._say(refusal(error, request_id, response_id))

    def _close(self, reason: CloseReason) -> None:
        if self._closing is not None:
            return
        self._closing = closing_message(reason)
        self._say(self._closing)

    def _make_room(self) -> None:
        if len(self._outbox) < MAX_QUEUED_MESSAGES and len(self._work) < MAX_QUEUED_MESSAGES:
            self._room.set()

    async def _write(self) -> None:
        """Ends when the socket is closed, or when a send stalls that no viewer in the hub stands behind."""
        try:
            await self._write_all()
        except TimeoutError:
            _log.info("websocket_stalled", watched=len(self._watched))

    async def _send_in_time(self, text: str) -> None:
        async with asyncio.timeout(self._stall_s):
            self._send_began_s = asyncio.get_running_loop().time()
            await self._send({"type": "websocket.send", "text": text})
            self._send_began_s = None

    async def _write_all(self) -> None:
        send, ready, outbox = self._send, self._ready, self._outbox
        loop = asyncio.get_running_loop()
        while True:
            while outbox:
                await self._send_in_time(outbox.popleft())
                self._make_room()
            if self._closing is not None:
                await send({"type": "websocket.close", "code": self._closing.code, "reason": self._closing.reason})
                return
            if ready:
                watched = ready.popleft()
                watched.queued = False
                event = watched.follower.poll()
                if type(event) is Span:
                    watched.timing.delivered(event, watched.accepted_at_ms)
                    if watched.follower.viewer is not None:
                        # The hub notices when it stalls: a token's way must not pay for a timer.
                        self._send_began_s = loop.time()
                        await send({"type": "websocket.send", "text": watched.delta(event).decode()})
                        self._send_began_s = None
                    else:
                        await self._send_in_time(watched.delta(event).decode())
                elif event is not None:
                    self._handle(watched, event)
                if watched.follower.has_more and watched.response_id in self._watched:
                    self._enqueue(watched)
                continue
            self._sleeping = sleeping = loop.create_future()
            try:
                await sleeping
            finally:
                self._sleeping = None

    def _handle(self, watched: Watched, event: Event) -> None:
        """What is not a delta."""
        response_id = watched.response_id
        match event:
            case Behind():
                watched.queued = True
                self._start(self._catch_up(watched))
            case Started():
                watched.accepted_at_ms = event.accepted_at_ms
                self._say(started_message(response_id, event))
                watched.wait(self._gateway.queues, event, self._say_if_room)
            case Terminal():
                watched.timing.ended(watched.accepted_at_ms)
                self._say(terminal_message(response_id, event))
                self._unwatch(watched)
            case Closed(reason=CloseReason.GOING_AWAY):
                self.go_away()
            case Closed(reason=reason):
                self._give_up(watched, reason)

    def go_away(self) -> None:
        """The gateway stops: every response is said to be resumable elsewhere, then the socket closes."""
        for watched in list(self._watched.values()):
            self._give_up(watched, CloseReason.GOING_AWAY)
        self._close(CloseReason.GOING_AWAY)

    def _give_up(self, watched: Watched, reason: CloseReason) -> None:
        rule = CLOSINGS[reason]
        error = ErrorBody(message=rule.message, type="server_error", code=reason.value)
        self._say(ErrorMessage(error=error, response_id=watched.response_id, resumable=rule.resumable))
        self._unwatch(watched)

    async def _catch_up(self, watched: Watched) -> None:
        await watched.follower.catch_up()
        watched.queued = False
        self._enqueue(watched)
