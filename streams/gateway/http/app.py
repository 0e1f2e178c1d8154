"""The HTTP surface: its routes, its error handlers, health, docs and the chat page."""

from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import WithJsonSchema
from starlette.exceptions import HTTPException

from schemas.endings import ENDINGS
from schemas.usage_query import BUCKET_WIDTHS, GROUPS, MAX_TIME_S
from streams.dialects.neutral import RequestError
from streams.dialects.openai_error import ending_error, error_object
from streams.gateway.errors import ApiError
from streams.gateway.http.answers import api_error_response, error_response
from streams.gateway.http.body import ClientDisconnect
from streams.gateway.http.chats import MAX_SEQUENCE, ChatApi
from streams.gateway.http.models import ModelApi
from streams.gateway.http.openapi import openapi_document
from streams.gateway.http.usage import UsageApi
from streams.gateway.http.usage_reader import UsageReader
from streams.gateway.http.vllm_routes import add_vllm_routes
from streams.gateway.service.service import Gateway
from streams.retry_advice import retry_advice_ms

_FOLDER = Path(__file__).parent
_INVALID = "invalid_request_error"
_Position = Annotated[
    str | None,
    Query(description="Needs `stream=true`."),
    WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SEQUENCE}),
]
_Start = Annotated[
    int | None, Query(ge=0, lt=MAX_TIME_S, description="Unix seconds; default: a week before `end_time`.")
]
_End = Annotated[
    int | None,
    Query(ge=1, le=MAX_TIME_S, description="Unix seconds, exclusive, at most 400 days after the start; default: now."),
]
_Width = Annotated[str, Query(json_schema_extra={"enum": list(BUCKET_WIDTHS)})]
_MAYBE_GROUP = f"({'|'.join(GROUPS)})?"
_Groups = Annotated[
    str,
    Query(
        description=f"Comma list of {', '.join(GROUPS)}, none of them twice.",
        json_schema_extra={"pattern": f"^{_MAYBE_GROUP}(,{_MAYBE_GROUP})*$"},
    ),
]


@cache
def _templates() -> Environment:
    return Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)


def build_app(gateway: Gateway, usage: UsageReader) -> FastAPI:
    """The ASGI application for HTTP. WebSockets are served by `streams.gateway.websocket.session`."""
    app = FastAPI(title="Sluice", version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    chats, models, figures = ChatApi(gateway), ModelApi(gateway), UsageApi(gateway, usage)
    body = {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatBody"}}},
        }
    }

    @app.post("/v1/chat/completions", openapi_extra=body, tags=["chat"], operation_id="chat_completions")
    @app.post("/api/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answers a chat; with `stream: true` as server-sent events, each with the `sequence_number` to resume after.

        Who sends `Accept: text/event-stream` or `Last-Event-ID` gets that number as the event's `id` too.
        """
        return await chats.chat(request)

    @app.get("/v1/responses/{response_id}", tags=["responses"])
    async def get_response(
        request: Request, response_id: str, stream: bool = False, starting_after: _Position = None
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
        """The models that this key may use and their aliases, with context windows and prices."""
        return models.list(request)

    @app.get("/v1/models/{model:path}", tags=["models"])
    @app.get("/api/models/{model:path}", include_in_schema=False)
    async def get_model(request: Request, model: str) -> Response:
        """One model, by name or alias."""
        return models.one(request, model)

    @app.get("/v1/usage", tags=["usage"])
    async def get_usage(
        request: Request,
        start_time: _Start = None,
        end_time: _End = None,
        bucket_width: _Width = "1d",
        group_by: _Groups = "",
        org_id: str | None = Query(None, description="Your own organisation, if given."),
    ) -> Response:
        """Token counts and cost in buckets. All that had ended by `finalized_through` is counted."""
        return await figures.usage(request, start_time, end_time, bucket_width, group_by, org_id)

    _add_pages(app, gateway)
    add_vllm_routes(app, gateway)
    _handle_errors(app, gateway)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


def _add_pages(app: FastAPI, gateway: Gateway) -> None:
    """What is no API of the gateway's: its state, its reference, the chat page."""

    @app.get("/healthz", tags=["operations"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process answers."""
        return "ok"

    @app.get("/readyz", tags=["operations"], response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Whether requests can be accepted."""
        why = gateway.why_not_ready()
        return PlainTextResponse(why or "ready", status_code=200 if why is None else 503)

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


def _handle_errors(app: FastAPI, gateway: Gateway) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_request: Request, error: ApiError) -> Response:
        gateway.metrics.refused.labels(error.code).inc()
        return api_error_response(error, closes=error.status in (408, 413, 429))

    @app.exception_handler(RequestError)
    async def request_error(_request: Request, error: RequestError) -> Response:
        gateway.metrics.refused.labels(error.code.value).inc()
        rule = ENDINGS[error.code]
        return error_response(
            rule.status, ending_error(error.code, error.message, error.param),
            retry_after_ms=retry_advice_ms() if rule.retryable else None, retryable=rule.retryable,
        )  # fmt: skip

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
        # The middleware that calls this raises the error again, to log it. Something may have been accepted, so nobody
        # is told to ask again.
        return error_response(500, error_object("internal_error", "The gateway failed.", "server_error"))
