"""The HTTP surface: its routes, its error handlers, health and the pages."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match

from schemas.endings import ENDINGS
from streams.dialects.neutral import RequestError
from streams.gateway.batches.service import BatchService
from streams.gateway.errors import ApiError
from streams.gateway.http.answering import Answering
from streams.gateway.http.answers import api_error_response, error_response
from streams.gateway.http.batch_routes import add_batch_routes
from streams.gateway.http.body import ClientDisconnect
from streams.gateway.http.conversation_routes import add_conversation_routes
from streams.gateway.http.dialects.by_path import dialect_of
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.port import Failure
from streams.gateway.http.embeddings_routes import add_embeddings_routes
from streams.gateway.http.job_routes import add_job_routes
from streams.gateway.http.messages_routes import add_messages_routes
from streams.gateway.http.models import ModelApi
from streams.gateway.http.openapi import body_of, openapi_document
from streams.gateway.http.operations_routes import add_operations_routes
from streams.gateway.http.page_routes import add_page_routes
from streams.gateway.http.response_routes import add_response_routes
from streams.gateway.http.token_routes import add_token_routes
from streams.gateway.http.tokens import TokenApi
from streams.gateway.http.usage_reader import UsageReader
from streams.gateway.http.usage_routes import add_usage_routes
from streams.gateway.http.vllm_routes import add_vllm_routes
from streams.gateway.operations.operations import Operations
from streams.gateway.service.service import Gateway
from streams.retry_advice import retry_advice_ms

_INVALID = "invalid_request_error"


def build_app(gateway: Gateway, usage: UsageReader, batches: BatchService, operations: Operations) -> FastAPI:
    """The ASGI application for HTTP. WebSockets are served by `streams.gateway.websocket.session`."""
    app = FastAPI(
        title="Sluice", version="1", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )  # fmt: skip
    answering, models = Answering(gateway), ModelApi(gateway)
    tokens = TokenApi(gateway)

    @app.post("/v1/chat/completions", openapi_extra=body_of("ChatBody"), tags=["chat"], operation_id="chat_completions")
    @app.post("/api/chat/completions", include_in_schema=False)
    async def chat_completions(request: Request) -> Response:
        """Answers a chat; with `stream: true` as server-sent events, each with the `sequence_number` to resume after.

        Who sends `Accept: text/event-stream` or `Last-Event-ID` gets that number as the event's `id` too.
        """
        return await answering.answer(request, CHAT_COMPLETIONS)

    @app.post("/v1/completions", openapi_extra=body_of("CompletionBody"), tags=["chat"], operation_id="completions")
    async def completions(request: Request) -> Response:
        """Goes on with a raw prompt, a text or token ids, without a chat template; streams as chats do."""
        return await answering.answer(request, COMPLETIONS)

    @app.get("/v1/models", tags=["models"])
    @app.get("/api/models", include_in_schema=False)
    async def list_models(request: Request) -> Response:
        """The models that this key may use and their aliases, with context windows and prices.

        Who sends `anthropic-version` gets Anthropic's list.
        """
        return await models.list(request)

    @app.get("/v1/models/{model:path}", tags=["models"])
    @app.get("/api/models/{model:path}", include_in_schema=False)
    async def get_model(request: Request, model: str) -> Response:
        """One model, by name or alias."""
        return await models.one(request, model)

    add_usage_routes(app, gateway, usage)
    add_response_routes(app, answering)
    add_conversation_routes(app, gateway)
    add_embeddings_routes(app, answering)
    add_job_routes(app, gateway)
    _add_health(app, gateway)
    add_page_routes(app)
    add_operations_routes(app, gateway, operations)
    add_messages_routes(app, answering, tokens)
    add_vllm_routes(app, gateway, tokens)
    add_token_routes(app, gateway)
    add_batch_routes(app, gateway, batches)
    _handle_errors(app, gateway)
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]
    return app


def _add_health(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/healthz", tags=["operations"], response_class=PlainTextResponse)
    async def healthz() -> str:
        """The process answers."""
        return "ok"

    @app.get("/readyz", tags=["operations"], response_class=PlainTextResponse)
    async def readyz() -> Response:
        """Whether requests can be accepted."""
        why = gateway.why_not_ready()
        return PlainTextResponse(why or "ready", status_code=200 if why is None else 503)


def _methods_of(app: FastAPI, request: Request) -> list[str]:
    """Of all routes with the path of the one that serves it; the framework tells those of that one alone."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    path = next((route.path for route in routes if route.matches(request.scope)[0] is not Match.NONE), None)
    return [method for route in routes if route.path == path for method in sorted(route.methods)]


def _handle_errors(app: FastAPI, gateway: Gateway) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        gateway.metrics.refused.labels(error.code).inc()
        return api_error_response(error, dialect_of(request.url.path), closes=error.status in (408, 413, 429))

    @app.exception_handler(RequestError)
    async def request_error(request: Request, error: RequestError) -> Response:
        gateway.metrics.refused.labels(error.code.value).inc()
        retryable = ENDINGS[error.code].retryable
        return error_response(
            Failure.of_refused(error.code, error.message, error.param), dialect_of(request.url.path),
            retry_after_ms=retry_advice_ms() if retryable else None, retryable=retryable,
        )  # fmt: skip

    @app.exception_handler(RequestValidationError)
    async def invalid_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])[:200]
        failure = Failure(400, "invalid_request", f"{name}: {first['msg']}.", _INVALID, name)
        return error_response(failure, dialect_of(request.url.path))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        message = f"{error.detail}: {request.method} {request.url.path[:200]}"
        failure = Failure(error.status_code, code, message, _INVALID)
        headers = error.headers
        if error.status_code == 405:
            headers = {"allow": ", ".join(_methods_of(app, request))}
        return error_response(failure, dialect_of(request.url.path), headers=headers)

    @app.exception_handler(ClientDisconnect)
    async def departed_early(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def failed(request: Request, _error: Exception) -> Response:
        # The middleware that calls this raises the error again, to log it. Something may have been accepted, so nobody
        # is told to ask again.
        failure = Failure(500, "internal_error", "The gateway failed.", "server_error")
        return error_response(failure, dialect_of(request.url.path))
