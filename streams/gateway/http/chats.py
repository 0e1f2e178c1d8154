"""Chat Completions, and responses by id: answered, given back, cancelled."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal
from streams.clocks import now_ms
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import ChatRequest
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_completion import completion_object
from streams.gateway.closing import CLOSINGS
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Closed, Event
from streams.gateway.http.answers import (
    ending_response,
    invalid_parameter,
    limit_headers,
    response_object,
    still_running_response,
)
from streams.gateway.http.body import ClientDisconnect, read_json_body
from streams.gateway.http.chat_events import ChatEvents, ChatEventsForm, asks_for_ids
from streams.gateway.http.sse import SseResponse, departed
from streams.gateway.request_headers import api_key_of, traceparent_of
from streams.gateway.service.lookup import texts_of
from streams.gateway.service.refusals import replay_unavailable, unavailable
from streams.gateway.service.service import Gateway
from streams.gateway.timing import Timing

MAX_SEQUENCE = 2**31


def position_of(headers: Mapping[str, str], starting_after: str | None) -> int:
    """Where to resume: `starting_after`, else `Last-Event-ID`, else the beginning. Raises ApiError."""
    name, given = "starting_after", starting_after
    if given is None:
        name, given = "last-event-id", headers.get("last-event-id", "0")
    if not given.isascii() or not given.isdecimal() or len(given) > 10 or int(given) > MAX_SEQUENCE:
        raise ApiError(400, EndingCode.INVALID_REQUEST.value, f"{name} must be a sequence number.", param=name)
    return int(given)


class ChatApi:
    """Answers chats, and gives them back by id."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway

    async def chat(self, request: Request) -> Response:
        response_id, follower, chat = await self._accept(request)
        headers = {"x-request-id": response_id}
        if traceparent_of(request.headers) and follower.viewer is not None:
            headers["traceparent"] = follower.viewer.stream.scope.traceparent
        departure = asyncio.ensure_future(departed(request.receive))
        departure.add_done_callback(lambda task: None if task.cancelled() else follower.leave())
        try:
            first = await follower.next(self._settings.admission_timeout_ms / 1_000)
            if first is None and follower.has_left:
                raise ClientDisconnect
            if first is None or isinstance(first, Closed):
                if not await self._gateway.withdraw(follower):
                    return still_running_response(EndingCode.UNAVAILABLE.value, headers)
                raise unavailable("The request was not admitted in time; it is cancelled.")
            if isinstance(first, Terminal) and ENDINGS[first.code].is_error:
                return ending_response(first, headers)
            if chat.stream:
                form = ChatEventsForm(chat.include_usage, chat.usage_so_far, asks_for_ids(request.headers))
                return self._streaming(follower, first, headers, chat.model, form)
            return await self._whole(follower, first, headers, response_id, chat)
        finally:
            departure.cancel()
            if not (chat.stream and follower.is_handed_over):
                self._gateway.release(follower)

    async def _accept(self, request: Request) -> tuple[str, Follower, ChatRequest]:
        """The response's id, its first viewer, and what was asked for, without its messages: they may be large."""
        principal = self._gateway.authenticate(api_key_of(request.headers))
        tenant_id = principal.tenant.tenant_id
        with self._gateway.shares.body(tenant_id) as held:
            body = await read_json_body(request, self._settings.max_body_bytes, held)
            chat = await self._gateway.understood(
                tenant_id, body, held, lambda: parse_chat_request(parse_json_object(body))
            )
            response_id, follower = await self._gateway.submit(
                principal, chat, traceparent=traceparent_of(request.headers)
            )
        return response_id, follower, chat.model_copy(update={"messages": []})

    def _streaming(
        self, follower: Follower, first: Event | None, headers: dict[str, str], model: str, form: ChatEventsForm
    ) -> Response:
        started = first if isinstance(first, Started) else follower.started
        created_s = started.accepted_at_ms // 1_000 if started else int(time.time())
        events = ChatEvents(headers["x-request-id"], created_s, started.model if started else model, form)
        follower.is_handed_over = True
        return SseResponse(
            follower, events, first=first, headers=headers, metrics=self._gateway.metrics,
            release=lambda: self._gateway.release(follower), stall_s=self._settings.viewer_stall_ms / 1_000,
        )  # fmt: skip

    async def _whole(
        self, follower: Follower, first: Event, headers: dict[str, str], response_id: str, chat: ChatRequest
    ) -> Response:
        timing = Timing(self._gateway.metrics, follower)
        spans: list[Span] = []
        event: Event | None = first
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000 + 60
        while not isinstance(event, Terminal):
            if follower.has_left:
                raise ClientDisconnect
            if isinstance(event, Closed) or time.monotonic() > deadline_s:
                code = event.reason.value if isinstance(event, Closed) else EndingCode.UNAVAILABLE.value
                return still_running_response(code, headers)
            if isinstance(event, Span):
                timing.delivered(event, follower.started.accepted_at_ms if follower.started else 0)
                spans.append(event)
            event = await follower.next(5.0)
        started = follower.started
        timing.ended(started.accepted_at_ms if started else 0)
        if ENDINGS[event.code].is_error:
            return ending_response(event, headers)
        completion = completion_object(
            response_id=response_id,
            created_s=(started.accepted_at_ms if started else now_ms()) // 1_000,
            model=event.model or (started.model if started else chat.model),
            texts=texts_of(spans),
            code=event.code,
            finish_reasons=event.finish_reasons,
            usage=event.usage,
        )
        return JSONResponse(completion, headers={**headers, **limit_headers(event.limits)})

    async def retrieve(self, request: Request, response_id: str, stream: bool, starting_after: str | None) -> Response:
        principal = self._gateway.authenticate(api_key_of(request.headers))
        if not stream:
            if starting_after is not None:
                raise invalid_parameter("starting_after", "starting_after needs stream=true.")
            return JSONResponse(response_object(await self._gateway.retrieve(principal, response_id)))
        after = position_of(request.headers, starting_after)
        follower = await self._gateway.resume(principal, response_id, after)
        try:
            # Whether everything was consumed is known at once, where the end is.
            first = await follower.next(0)
            if isinstance(first, Closed):
                rule = CLOSINGS[first.reason]
                raise replay_unavailable(rule.message, is_transient=rule.resumable)
            if isinstance(first, Terminal) and after >= first.sequence_number:
                return Response(status_code=204)
            form = ChatEventsForm(include_usage=True, with_ids=asks_for_ids(request.headers), after=after)
            return self._streaming(follower, first, {"x-request-id": response_id}, "", form)
        finally:
            if not follower.is_handed_over:
                self._gateway.release(follower)

    async def cancel(self, request: Request, response_id: str) -> Response:
        principal = self._gateway.authenticate(api_key_of(request.headers))
        snapshot = await self._gateway.cancel(principal, response_id)
        with suppress(ApiError):  # What was asked for is done: its text is a courtesy.
            snapshot = await self._gateway.retrieve(principal, response_id, waits=False)
        return JSONResponse(response_object(snapshot))
