"""Requests in any dialect, and responses by id: answered, given back, cancelled."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Sampling
from schemas.responses import Started, Terminal
from streams.clocks import now_ms
from streams.dialects.answer_json import json_bytes
from streams.dialects.json_body import parse_json_object
from streams.dialects.responses.input_items import Page, input_items, item_list
from streams.directory import KeyScope
from streams.gateway.closing import CLOSINGS
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.spans import Span, memory_bytes
from streams.gateway.fan_out.stream import Closed, Event
from streams.gateway.http.answers import (
    ending_response,
    fallback_notices,
    invalid_parameter,
    json_response,
    notices_of,
    still_running_response,
)
from streams.gateway.http.body import ClientDisconnect, read_json_body
from streams.gateway.http.dialects.embeddings import Embeddings, WordsAlone, without_vectors
from streams.gateway.http.dialects.port import Answer, Asked, ById, Dialect, Events, Opening
from streams.gateway.http.sse import SseResponse, departed
from streams.gateway.http.whole import Gathered, told_whole
from streams.gateway.idempotency.keyed import Keyed, understood
from streams.gateway.queues import waits
from streams.gateway.request_headers import api_key_of, idempotency_key_of, traceparent_of
from streams.gateway.service.circuit import Entered
from streams.gateway.service.earlier_turns import HELD_PER_BYTE
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Snapshot
from streams.gateway.service.refusals import Unacknowledged, replay_unavailable, unavailable
from streams.gateway.service.service import Gateway
from streams.gateway.stored.turns import read
from streams.gateway.tenant_shares import Hold
from streams.gateway.timing import Timing

MAX_SEQUENCE = 2**31
CANCELLED_WITHIN_S = 1.0
"""How long a cancel waits for the response to end, so that it can say so."""


def position_of(headers: Mapping[str, str], starting_after: str | None) -> int | None:
    """Where to resume: `Last-Event-ID`, else `starting_after`. None: nothing was seen. Raises ApiError.

    The header counts where both are there: a browser comes back to the address that it began with, and says by the
    header what it has seen since.
    """
    after = None
    for name, given in (("starting_after", starting_after), ("last-event-id", headers.get("last-event-id"))):
        if given is None:
            continue
        if not given.isascii() or not given.isdecimal() or len(given) > 10 or int(given) > MAX_SEQUENCE:
            raise ApiError(400, EndingCode.INVALID_REQUEST.value, f"{name} must be a sequence number.", param=name)
        after = int(given)
    return after


def asks_for_ids(headers: Mapping[str, str]) -> bool:
    """Whether the client reads event streams as browsers do. Most SDKs ask for `application/json`, scripts for all."""
    accepted = (media.partition(";")[0].strip().lower() for media in headers.get("accept", "").split(","))
    return "text/event-stream" in accepted or "last-event-id" in headers


_NOTHING_LARGE: Mapping[str, Any] = {
    "messages": [], "turn": None, "prompt": None, "inputs": [], "tools": [], "sampling": Sampling(),
}  # fmt: skip


class Answering:
    """Answers what is asked for in a dialect, and gives it back by id."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway

    async def answer(
        self, request: Request, dialect: Dialect[Any], state: Callable[[Snapshot, Any], dict[str, Any]] | None = None
    ) -> Response:
        """`state` tells a response that is not waited for, where the dialect has such."""
        response_id, follower, asked, has_key, entered = await self._accept(request, dialect)
        headers = {"x-request-id": response_id}
        if traceparent_of(request.headers) and follower.viewer is not None:
            headers["traceparent"] = follower.viewer.stream.scope.traceparent
        departure = asyncio.ensure_future(departed(request.receive))
        departure.add_done_callback(lambda task: None if task.cancelled() else follower.leave())
        try:
            first = await follower.next(self._settings.admission_timeout_ms / 1_000)
            if first is None and follower.has_left:
                raise ClientDisconnect
            if first is None:
                entered.timed_out()
            elif not isinstance(first, Closed) and not has_key:
                entered.answered()
            if isinstance(first, Closed) or (first is None and not asked.background):
                if has_key or asked.background or not await self._gateway.withdraw(follower):
                    return still_running_response(EndingCode.UNAVAILABLE.value, headers, dialect, has_key=has_key)
                raise unavailable("The request was not admitted in time; it is cancelled.")
            if follower.started is not None:
                headers |= dialect.limit_headers(follower.started.limits, now_ms())
                headers |= notices_of(follower.started)
            if isinstance(first, Terminal) and ENDINGS[first.code].is_error:
                return ending_response(first, headers, dialect, asked)
            if asked.stream:
                opening = _opening(response_id, follower, first, asked.model, request.headers)
                is_back = follower.came_back
                return self._streaming(follower, first, headers, dialect.events(asked, opening), is_back=is_back)
            if first is None or (asked.background and not (has_key and follower.end is not None)):
                assert state is not None, "only a dialect that can tell it takes such a request"
                snapshot = self._in_its_queue(Snapshot(response_id, follower.started, None, 0, None))
                return json_response(json_bytes(state(snapshot, asked)), headers)
            return await self._whole(follower, first, headers, dialect, asked, has_key=has_key)
        finally:
            entered.close()
            departure.cancel()
            if not (asked.stream and follower.is_handed_over):
                self._gateway.release(follower)

    async def _accept(self, request: Request, dialect: Dialect[Asked]) -> tuple[str, Follower, Asked, bool, Entered]:
        """The response's id, a viewer, what was asked for, without what may be large of it, and whether with a key. The
        caller closes what it has entered. What has a key may be there already, and what runs in the background waits
        for nothing.
        """
        principal = self._permitted(request)
        tenant_id = principal.tenant.tenant_id
        key = idempotency_key_of(request.headers)
        with self._gateway.shares.body(tenant_id) as held:
            body = await read_json_body(request, self._settings.max_body_bytes, held)

            def parse() -> tuple[Asked, Keyed | None]:
                return understood(key, dialect.path, parse_json_object(body, dialect.most_values), dialect.parse)

            asked, keyed = await self._gateway.understood(tenant_id, body, held, parse)
            circuit, is_waited_for = self._gateway.circuit, keyed is None and not asked.background
            entered = circuit.enter(len(body)) if is_waited_for else circuit.pass_by()
            try:
                response_id, follower = await self._gateway.ask(
                    principal, asked, held, len(body), keyed, traceparent_of(request.headers)
                )
            except BaseException as error:
                if isinstance(error, Unacknowledged) and error.log_is_silent:
                    entered.timed_out()
                entered.close()
                raise
        return response_id, follower, asked.model_copy(update=_NOTHING_LARGE), keyed is not None, entered

    def _permitted(self, request: Request) -> Principal:
        """Raises ApiError 401 and 403."""
        return self._gateway.permitted(api_key_of(request.headers), KeyScope.RESPONSES)

    def _streaming(
        self, follower: Follower, first: Event | None, headers: dict[str, str], events: Events, *, is_back: bool = False
    ) -> Response:
        follower.is_handed_over = True
        headers = {**headers, **self._queue_headers(follower)}
        return SseResponse(
            follower, events, first=first, headers=headers, metrics=self._gateway.metrics,
            queues=self._gateway.queues, release=lambda: self._gateway.release(follower),
            stall_s=self._settings.viewer_stall_ms / 1_000, is_back=is_back,
        )  # fmt: skip

    def _queue_headers(self, follower: Follower) -> dict[str, str]:
        """Where a response stands that waits, for clients that read nothing of a stream but its events."""
        started = follower.started
        if started is None or not waits(follower) or (place := self._gateway.queues.place(started)) is None:
            return {}
        wait = {} if place.wait_ms is None else {"x-queue-wait-ms": str(place.wait_ms)}
        return {"x-queue-before": str(place.before), **wait}

    def _in_its_queue(self, snapshot: Snapshot) -> Snapshot:
        """With its place there, while it has said nothing."""
        if snapshot.started is None or snapshot.sequence_number or snapshot.terminal is not None:
            return snapshot
        return replace(snapshot, place=self._gateway.queues.place(snapshot.started))

    async def _whole(
        self, follower: Follower, first: Event, headers: dict[str, str], dialect: Dialect[Asked], asked: Asked, *,
        has_key: bool,
    ) -> Response:  # fmt: skip
        tenant_id = follower.tenant_id
        with ExitStack() as share:
            gathered = Gathered(share.enter_context(self._gateway.shares.answer(tenant_id)))
            try:
                end = await self._gather(follower, first, gathered)
                if isinstance(end, str):
                    return still_running_response(end, headers, dialect, has_key=has_key)
                if ENDINGS[end.code].is_error:
                    return ending_response(end, headers, dialect, asked)
                started = follower.started
                answer = Answer(
                    response_id=end.response_id,
                    created_s=(started.accepted_at_ms if started else now_ms()) // 1_000,
                    model=end.model or (started.model if started else asked.model),
                    spans=gathered.spans,
                    terminal=end,
                )
                return await told_whole(
                    self._gateway, tenant_id, memory_bytes(answer.spans), lambda: dialect.whole(asked, answer), share,
                    gathered.held, {**headers, **fallback_notices(end)},
                )  # fmt: skip
            except ApiError as error:
                if not error.retryable:
                    raise
                # It is made and billed: asked again it would be paid twice, and by its id it may be had a moment later.
                return still_running_response(error.code, headers, dialect, has_key=has_key)

    async def _gather(self, follower: Follower, first: Event, gathered: Gathered) -> Terminal | str:
        """How it ended, or why it can no longer be followed here. Raises ApiError 429, and ClientDisconnect."""
        timing = Timing(self._gateway.metrics, follower, is_back=follower.came_back)
        event: Event | None = first
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000 + 60
        while not isinstance(event, Terminal):
            if follower.has_left:
                raise ClientDisconnect
            if isinstance(event, Closed):
                return event.reason.value
            if time.monotonic() > deadline_s:
                return EndingCode.UNAVAILABLE.value
            if isinstance(event, Span):
                timing.delivered(event, follower.started.accepted_at_ms if follower.started else 0)
                gathered.add(event)
            event = await follower.next(5.0)
        timing.ended(follower.started.accepted_at_ms if follower.started else 0)
        return event

    async def retrieve(
        self, request: Request, response_id: str, dialect: ById[Any], *, stream: bool, starting_after: str | None
    ) -> Response:
        principal = self._permitted(request)
        if not stream:
            if starting_after is not None:
                raise invalid_parameter("starting_after", "starting_after needs stream=true.")
            with ExitStack() as share:
                held = share.enter_context(self._gateway.shares.answer(principal.tenant.tenant_id))
                snapshot = await self._gateway.retrieve(principal, response_id, held)
                return await self._as_it_stands(principal, snapshot, dialect, share, held)
        after = position_of(request.headers, starting_after)
        seen = 0 if after is None else dialect.seen(after)
        follower, first = await self._follow(principal, response_id, seen)
        try:
            # Whether everything was consumed is known at once, where the end is.
            if isinstance(first, Terminal) and seen >= first.sequence_number:
                return Response(status_code=204)
            if seen and dialect.tells_all(follower.started):
                again, first = await self._follow(principal, response_id, 0)
                self._gateway.release(follower)
                follower = again
            opening = _opening(response_id, follower, first, "", request.headers, after)
            headers = {"x-request-id": response_id, **notices_of(follower.started)}
            return self._streaming(follower, first, headers, _told_in(dialect, follower, opening), is_back=bool(seen))
        finally:
            if not follower.is_handed_over:
                self._gateway.release(follower)

    async def _follow(self, principal: Principal, response_id: str, seen: int) -> tuple[Follower, Event | None]:
        """What comes behind the tokens that were seen, and the first of it that is there. Release the follower."""
        follower = await self._gateway.resume(principal, response_id, seen)
        try:
            first = await follower.next(0)
        except BaseException:
            self._gateway.release(follower)
            raise
        if isinstance(first, Closed):
            self._gateway.release(follower)
            rule = CLOSINGS[first.reason]
            raise replay_unavailable(rule.message, is_transient=rule.resumable)
        return follower, first

    async def delete(self, request: Request, response_id: str, told_as: str) -> Response:
        """As OpenAI tells it, whose objects differ in their name."""
        await self._gateway.delete(self._permitted(request), response_id)
        return json_response(json_bytes({"id": response_id, "object": told_as, "deleted": True}))

    async def input_items(self, request: Request, response_id: str, page: Page) -> Response:
        """What its client said in its own turn. Raises ApiError 404, also for what is not stored."""
        principal = self._permitted(request)
        tenant_id = principal.tenant.tenant_id
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.answer(tenant_id))
            said = await self._gateway.input_of(principal, response_id)
            return await told_whole(
                self._gateway, tenant_id, HELD_PER_BYTE * len(said),
                lambda: item_list(input_items(response_id, read(said)), page), share, held,
            )  # fmt: skip

    async def cancel(self, request: Request, response_id: str, dialect: ById[Any]) -> Response:
        principal = self._permitted(request)
        snapshot = await self._gateway.cancel(principal, response_id)
        with ExitStack() as share:
            held = share.enter_context(self._gateway.shares.answer(principal.tenant.tenant_id))
            with suppress(ApiError):  # What was asked for is done: how it ends, and its text, are a courtesy.
                ended = await self._gateway.retrieve(
                    principal, response_id, held, waits=False, end_within_s=CANCELLED_WITHIN_S
                )
                return await self._as_it_stands(principal, ended, dialect, share, held)
            return await self._as_it_stands(principal, snapshot, dialect, share, held)

    async def _as_it_stands(
        self, principal: Principal, snapshot: Snapshot, dialect: ById[Any], share: ExitStack, held: Hold
    ) -> Response:
        """Vectors are told in their own format alone."""
        snapshot = self._in_its_queue(snapshot)
        told = snapshot if isinstance(dialect, Embeddings) else without_vectors(snapshot)
        tenant_id, size_bytes = principal.tenant.tenant_id, memory_bytes(told.spans or ())
        return await told_whole(
            self._gateway, tenant_id, size_bytes, lambda: dialect.state(told), share, held, notices_of(snapshot.started)
        )


def _told_in(dialect: ById[Any], follower: Follower, opening: Opening) -> Events:
    """For who comes back by an id, which may be that of vectors: there are no words for these."""
    events, started = dialect.events(None, opening), follower.started
    return WordsAlone(events) if started is None or started.endpoint == "embeddings" else events


def _opening(
    response_id: str,
    follower: Follower,
    first: Event | None,
    model: str,
    headers: Mapping[str, str],
    after: int | None = None,
) -> Opening:
    """`model` stands for what nobody knows before the response has started."""
    started = first if isinstance(first, Started) else follower.started
    return Opening(
        response_id=response_id,
        created_s=started.accepted_at_ms // 1_000 if started else int(time.time()),
        model=started.model if started else model,
        with_ids=asks_for_ids(headers),
        after=after,
        choices=started.choices if started else 1,
    )
