"""The HTTP surface: OpenAI's endpoints, replay and cancel by id, models, usage, health, docs and the chat page."""

import asyncio
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal
from schemas.usage_query import BUCKET_WIDTHS, GROUPS, InvalidQuery, parse_bucket_width, parse_group_by
from streams.dialects.neutral import ChatRequest, RequestError
from streams.dialects.openai_chat import ChatBody, parse_chat_request
from streams.dialects.openai_completion import completion_object, usage_object
from streams.dialects.openai_error import ending_error, error_object
from streams.directory import Model, Tenant
from streams.gateway.closing import CLOSINGS
from streams.gateway.errors import ApiError
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.fan_out.hub import Closed, Event
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.body import ClientDisconnect, read_json_body
from streams.gateway.http.sse import ChatEvents, SseResponse, Timing, departed
from streams.gateway.http.usage_reader import UsageReader, UsageUnavailable
from streams.gateway.json_body import parse_json_object
from streams.gateway.service.service import (
    Gateway,
    Snapshot,
    now_ms,
    replay_unavailable,
    retry_advice_ms,
    texts_of,
    unavailable,
)

MAX_SEQUENCE = 2**31
MAX_USAGE_S = 400 * 86_400
_FOLDER = Path(__file__).parent
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_LIMIT_HEADERS = {
    f"{kind}_{figure}": f"x-ratelimit-{figure.removesuffix('_ms')}-{kind}"
    for kind in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset_ms")
}
_STATUSES = {
    EndingCode.COMPLETED: "completed",
    EndingCode.CANCELLED: "cancelled",
    EndingCode.SAFETY_HALTED: "incomplete",
}

_log = structlog.get_logger()


# Shapes


def error_response(
    status: int,
    body: dict[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    retry_after_ms: int | None = None,
    retryable: bool | None = None,
) -> JSONResponse:
    """OpenAI's error object, with retry advice where there is any."""
    advice = dict(headers or {})
    if retry_after_ms is not None:
        advice["retry-after-ms"] = str(retry_after_ms)
        advice["retry-after"] = str(-(-retry_after_ms // 1_000))
    if retryable is not None:
        advice["x-should-retry"] = str(retryable).lower()
    if status == 401:
        advice["www-authenticate"] = "Bearer"
    return JSONResponse(body, status_code=status, headers=advice)


def ending_response(terminal: Terminal, headers: Mapping[str, str]) -> JSONResponse:
    """The HTTP answer of a response that ended in an error."""
    rule = ENDINGS[terminal.code]
    advice_ms = terminal.retry_after_ms
    if advice_ms is None and rule.retryable:
        advice_ms = retry_advice_ms()
    return error_response(
        rule.status,
        ending_error(terminal.code, terminal.message, terminal.param),
        headers={**headers, **limit_headers(terminal.limits)},
        retry_after_ms=advice_ms,
        retryable=rule.retryable,
    )


def still_running_response(code: str, headers: Mapping[str, str]) -> JSONResponse:
    """The HTTP answer where this gateway can no longer wait for what was accepted: asked again it would be paid twice.

    `headers` hold the response's id.
    """
    message = f"The answer can no longer be followed here. It may be had from /v1/responses/{headers['x-request-id']}."
    return error_response(503, error_object(code, message, "server_error"), headers=headers, retryable=False)


def limit_headers(limits: Mapping[str, int]) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*` headers; figures without one are left out."""
    return {
        header: f"{limits[name]}ms" if name.endswith("_ms") else str(limits[name])
        for name, header in _LIMIT_HEADERS.items()
        if name in limits
    }


def api_key_of(headers: Mapping[str, str]) -> str | None:
    """From `Authorization: Bearer` or `x-api-key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def response_object(snapshot: Snapshot) -> dict[str, Any]:
    """A response by id: its state, its text so far, and what it used once it has ended."""
    started, terminal = snapshot.started, snapshot.terminal
    status = "queued" if started is None else "in_progress"
    error = None
    if terminal is not None:
        status = _STATUSES.get(terminal.code, "failed")
        if ENDINGS[terminal.code].is_error:
            error = ending_error(terminal.code, terminal.message, terminal.param)["error"]
    model = (terminal.model if terminal else "") or (started.model if started else "")
    return {
        "id": snapshot.response_id,
        "object": "response",
        "status": status,
        "created_at": started.accepted_at_ms // 1_000 if started else None,
        "model": model or None,
        "output_text": snapshot.texts[0] if snapshot.texts else None,
        "sequence_number": snapshot.sequence_number,
        "finish_reasons": terminal.finish_reasons if terminal else [],
        "code": terminal.code.value if terminal else None,
        "error": error,
        "usage": usage_object(terminal.usage) if terminal else None,
    }


def model_object(model: Model, region: str) -> dict[str, Any]:
    """OpenAI's model object, with what a client needs to choose. Prices are decimal strings."""
    price = model.price
    classes = {
        "input": price.uncached_input, "cached_input": price.cached_input, "output": price.output,
        "reasoning": price.reasoning,
    }  # fmt: skip
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "sluice",
        "aliases": model.aliases,
        "description": model.description,
        "context_window": model.context_window,
        "capabilities": ["chat.completions", "streaming"],
        "region": region,
        "prices": {
            "currency": price.currency,
            "per_1m_tokens": {name: f"{value:f}" for name, value in classes.items()},
            "per_1k_tokens": {name: f"{value / 1_000:f}" for name, value in classes.items()},
        },
    }


def is_loopback(request: Request) -> bool:
    """Whether the peer is on this machine. The server has put a proxy's client in the place of the proxy."""
    return request.client is not None and request.client.host in ("127.0.0.1", "::1")


def traceparent_of(headers: Mapping[str, str]) -> str:
    """The W3C trace context, or empty when it is not well formed."""
    given = headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else ""


def position_of(headers: Mapping[str, str], starting_after: str | None) -> int:
    """Where to resume: `starting_after`, else `Last-Event-ID`, else the beginning. Raises ApiError."""
    name, given = "starting_after", starting_after
    if given is None:
        name, given = "last-event-id", headers.get("last-event-id", "0")
    if not given.isascii() or not given.isdecimal() or len(given) > 10 or int(given) > MAX_SEQUENCE:
        raise ApiError(400, EndingCode.INVALID_REQUEST.value, f"{name} must be a sequence number.", param=name)
    return int(given)


# Chat Completions


class ChatApi:
    """Answers chats, and gives them back by id."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.gateway

    async def chat(self, request: Request) -> Response:
        principal = self._gateway.authenticate(api_key_of(request.headers))
        body = await read_json_body(request, self._settings.max_body_bytes)
        chat = await self._gateway.parsing(len(body), lambda: parse_chat_request(parse_json_object(body)))
        response_id, follower = await self._gateway.submit(principal, chat, traceparent=traceparent_of(request.headers))
        headers = {"x-request-id": response_id}
        departure = asyncio.ensure_future(departed(request.receive))
        departure.add_done_callback(lambda task: None if task.cancelled() else follower.abandon())
        try:
            first = await follower.next(self._settings.admission_timeout_ms / 1_000)
            if first is None and follower.is_abandoned:
                raise ClientDisconnect
            if first is None or isinstance(first, Closed):
                self._gateway.give_up(follower)
                raise unavailable("The request was not admitted in time.")
            if isinstance(first, Terminal) and ENDINGS[first.code].is_error:
                return ending_response(first, headers)
            if chat.stream:
                return self._streaming(follower, first, headers, response_id, chat.model, chat.include_usage)
            return await self._whole(follower, first, headers, response_id, chat)
        finally:
            departure.cancel()
            if not (chat.stream and follower.is_handed_over):
                self._gateway.release(follower)

    def _streaming(
        self, follower: Follower, first: Event | None, headers: dict[str, str], response_id: str, model: str,
        include_usage: bool,
    ) -> Response:  # fmt: skip
        started = first if isinstance(first, Started) else follower.started
        created_s = started.accepted_at_ms // 1_000 if started else int(time.time())
        events = ChatEvents(response_id, created_s, started.model if started else model, include_usage=include_usage)
        follower.is_handed_over = True
        return SseResponse(
            follower, events, first=first, headers=headers, metrics=self._gateway.metrics,
            release=lambda: self._gateway.release(follower), stall_s=self._settings.viewer_stall_ms / 1_000,
        )  # fmt: skip

    async def _whole(
        self, follower: Follower, first: Event, headers: dict[str, str], response_id: str, chat: ChatRequest
    ) -> Response:
        timing = Timing(self._gateway.metrics)
        spans: list[Span] = []
        event: Event | None = first
        deadline_s = time.monotonic() + self._settings.request_timeout_ms / 1_000 + 60
        while not isinstance(event, Terminal):
            if follower.is_abandoned:
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
                raise _invalid("starting_after", "starting_after needs stream=true.")
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
            return self._streaming(follower, first, {"x-request-id": response_id}, response_id, "", True)
        finally:
            if not follower.is_handed_over:
                self._gateway.release(follower)

    async def cancel(self, request: Request, response_id: str) -> Response:
        principal = self._gateway.authenticate(api_key_of(request.headers))
        snapshot = await self._gateway.cancel(principal, response_id)
        with suppress(ApiError):  # What was asked for is done: its text is a courtesy.
            snapshot = await self._gateway.retrieve(principal, response_id, waits=False)
        return JSONResponse(response_object(snapshot))


# The rest


class InfoApi:
    """Models and usage."""

    def __init__(self, gateway: Gateway, usage: UsageReader) -> None:
        self._gateway = gateway
        self._usage = usage

    def models(self, request: Request) -> Response:
        tenant = self._tenant(request)
        listed = [model_object(model, self._gateway.settings.region) for model in self._visible(tenant)]
        return JSONResponse({"object": "list", "data": listed})

    def model(self, request: Request, name: str) -> Response:
        tenant = self._tenant(request)
        model = self._gateway.catalog.model(name)
        if model is None or model not in self._visible(tenant):
            raise RequestError(EndingCode.MODEL_NOT_FOUND, f"The model {name[:100]!r} does not exist.", "model")
        return JSONResponse(model_object(model, self._gateway.settings.region))

    def _tenant(self, request: Request) -> Tenant:
        return self._gateway.authenticate(api_key_of(request.headers)).tenant

    def _visible(self, tenant: Tenant) -> list[Model]:
        return [m for m in self._gateway.catalog.models() if not tenant.models or m.name in tenant.models]

    async def usage(
        self, request: Request, start_time: int | None, end_time: int | None, bucket_width: str, group_by: str,
        org_id: str | None,
    ) -> Response:  # fmt: skip
        tenant = self._tenant(request)
        if org_id is not None and org_id != tenant.tenant_id:
            raise ApiError(404, "organization_not_found", f"No organisation {org_id[:100]!r}.", param="org_id")
        end_s = end_time if end_time is not None else now_ms() // 1_000
        start_s = start_time if start_time is not None else end_s - 7 * 86_400
        if not 0 <= start_s < end_s or end_s - start_s > MAX_USAGE_S:
            raise _invalid("start_time", "start_time must lie before end_time, by at most 400 days.")
        try:
            width, groups = parse_bucket_width(bucket_width), parse_group_by(group_by)
            page = await self._usage.usage(
                tenant.tenant_id, start_time_s=start_s, end_time_s=end_s, bucket_width=width, group_by=groups
            )
        except InvalidQuery as error:
            raise _invalid(error.param, f"{error}.") from None
        except UsageUnavailable as error:
            _log.warning("usage_unavailable", why=str(error))
            raise unavailable("Usage figures cannot be had now.") from None
        return JSONResponse({"object": "page", "has_more": False, **page.model_dump(mode="json")})


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(400, EndingCode.INVALID_REQUEST.value, message, param=param)


@cache
def _templates() -> Environment:
    return Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {"application/json": {"schema": {"$ref": _ref}}}}
    for _ref in ("#/components/schemas/Error",)
    for status, description in (
        (400, "The request is invalid; `param` names the field."),
        (401, "The API key is missing or wrong."),
        (404, "Unknown, or not yours."),
        (429, "A limit is reached; see `Retry-After` and `x-ratelimit-*`."),
        (503, "Not now; see `Retry-After`."),
    )
}


def build_app(gateway: Gateway, usage: UsageReader, registry: CollectorRegistry) -> FastAPI:
    """The ASGI application for HTTP. WebSockets are served by `streams.gateway.websocket.session`."""
    app = FastAPI(title="Sluice", version="1", docs_url=None, redoc_url=None, responses=_ERRORS)
    chats, info = ChatApi(gateway), InfoApi(gateway, usage)
    body = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatBody"}}},
        }
    }

    @app.post("/v1/chat/completions", openapi_extra=body, tags=["chat"], operation_id="chat_completions")
    @app.post("/api/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answers a chat; with `stream: true` as server-sent events, each with the `id` to resume after."""
        return await chats.chat(request)

    @app.get("/v1/responses/{response_id}", tags=["responses"])
    async def get_response(
        request: Request, response_id: str, stream: bool = False, starting_after: str | None = None
    ) -> Response:
        """A response by id: its state and text, or with `stream=true` its events after `starting_after`."""
        return await chats.retrieve(request, response_id, stream, starting_after)

    @app.post("/v1/responses/{response_id}/cancel", tags=["responses"])
    async def cancel_response(request: Request, response_id: str) -> Response:
        """Ends a response. Idempotent: what has ended stays as it ended."""
        return await chats.cancel(request, response_id)

    @app.get("/v1/models", tags=["models"])
    @app.get("/api/models", include_in_schema=False)
    async def list_models(request: Request) -> Response:
        """The models that this key may use, with context windows and prices."""
        return info.models(request)

    @app.get("/v1/models/{model:path}", tags=["models"])
    @app.get("/api/models/{model:path}", include_in_schema=False)
    async def get_model(request: Request, model: str) -> Response:
        """One model, by name or alias."""
        return info.model(request, model)

    @app.get("/v1/usage", tags=["usage"])
    async def get_usage(
        request: Request,
        start_time: int | None = Query(None, description="Unix seconds; default: a week before `end_time`."),
        end_time: int | None = Query(None, description="Unix seconds, exclusive; default: now."),
        bucket_width: str = Query("1d", description=f"One of {', '.join(BUCKET_WIDTHS)}."),
        group_by: str = Query("", description=f"Comma list of {', '.join(GROUPS)}."),
        org_id: str | None = Query(None, description="Your own organisation, if given."),
    ) -> Response:
        """Token counts and cost in buckets. All that had ended by `finalized_through` is counted."""
        return await info.usage(request, start_time, end_time, bucket_width, group_by, org_id)

    @app.get("/healthz", tags=["operations"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process answers."""
        return "ok"

    @app.get("/readyz", tags=["operations"], response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Whether requests can be accepted."""
        why = gateway.why_not_ready()
        return PlainTextResponse(why or "ready", status_code=200 if why is None else 503)

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus metrics, for this machine alone; every process shows its own on its health port."""
        if not is_loopback(request):
            raise HTTPException(404, "Not Found")
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(_templates().get_template("docs.html").render(api=app.openapi()))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
        }
        return HTMLResponse((_FOLDER / "page.html").read_text(), headers=headers)

    _handle_errors(app, gateway)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _handle_errors(app: FastAPI, gateway: Gateway) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_request: Request, error: ApiError) -> Response:
        gateway.metrics.refused.labels(error.code).inc()
        headers = {"connection": "close"} if error.status in (408, 413) else {}
        return error_response(error.status, error.body, headers=headers, retry_after_ms=error.retry_after_ms)

    @app.exception_handler(RequestError)
    async def request_error(_request: Request, error: RequestError) -> Response:
        gateway.metrics.refused.labels(error.code.value).inc()
        rule = ENDINGS[error.code]
        return error_response(rule.status, ending_error(error.code, error.message, error.param), retryable=False)

    @app.exception_handler(RequestValidationError)
    async def invalid_parameter(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])[:200]
        return error_response(400, error_object("invalid_request", f"{name}: {first['msg']}.", _INVALID, name))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        message = f"{error.detail}: {request.method} {request.url.path[:200]}"
        return error_response(error.status_code, error_object(code, message, _INVALID), headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def departed_early(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> Response:
        # The middleware that calls this raises the error again, for the log.
        return error_response(500, error_object("internal_error", "The gateway failed.", "server_error"))


_INVALID = "invalid_request_error"


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, routes=app.routes, summary="LLMs as a streaming dataflow on Kafka."
        )
        body = ChatBody.model_json_schema(ref_template="#/components/schemas/{model}")
        components = document.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas.update(body.pop("$defs", {}))
        schemas["ChatBody"] = body
        error = {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
            "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]},
            "code": {"type": "string"},
        }}  # fmt: skip
        schemas["Error"] = {"type": "object", "required": ["error"], "properties": {"error": error}}
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema
