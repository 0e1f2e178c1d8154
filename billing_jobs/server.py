"""Billing's internal HTTP interface, for the gateway and the operator's command line; every call needs
its password as `Authorization: Bearer …`; `sluice secret billing` shows it.

- `POST /internal/usage`, `POST /internal/usage/export`: token classes and money in buckets (`usage_routes.py`).
- `POST /internal/sql`: one SELECT over all tenants, read-only and limited.
- `GET /internal/prices`, `POST /internal/prices/plan`, `POST /internal/prices/apply`: the operator's prices.
- `GET /internal/status`: lag, newest batch, table sizes.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from billing_jobs.clickhouse.errors import ClickHouseFailed, Refused
from billing_jobs.error_answers import error_answer
from billing_jobs.price_changes import PriceRefused
from billing_jobs.price_desk import PriceDesk, PricesApplied, PricesAsked, PricesUnknown
from billing_jobs.pricing import PriceInexact, PriceRow
from billing_jobs.progress import Progress
from billing_jobs.queries import Reader, SqlResult
from billing_jobs.readers import LONGEST_S, RETRY_AFTER_S, R, ReaderBusy, ReaderPool, operators_desk
from billing_jobs.shared_answers import SharedAnswers
from billing_jobs.sql_guard import MAX_SQL_CHARS, SqlRefused
from billing_jobs.store import ClickHouseStore, StoreError
from billing_jobs.usage_routes import MAX_KEPT_BYTES, MAX_KEPT_BYTES_OF_TENANT, add_usage_routes
from schemas.usage_query import InvalidQuery, fault_of
from streams.clocks import now_ms
from streams.connections.open_connections import admit
from streams.keyring import Keyring

MAX_BODY_BYTES = 262_144
"""The longest query, each of its characters escaped."""
_WAITING = 64
_OF_TENANT = 4
_DEADLINE_SLACK_S = 5.0
USAGE_THREADS = 4

Sql = Callable[[str], Awaitable[SqlResult]]
"""Answers a question of the operator."""


class SqlBody(BaseModel):
    query: str = Field(min_length=1, max_length=MAX_SQL_CHARS)


class _Door:
    """Who has a password may ask, whatever the path; of nobody else anything is read. A body is a query at most."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._opens_to(Request(scope).headers.get("authorization", "")):
            refusal = error_answer(401, "the password is missing or wrong", "invalid_api_key")
            refusal.headers["connection"] = "close"
            await refusal(scope, receive, send)
            return
        admit(scope)
        read_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return message

        await self._app(scope, receive_bounded, send)

    def _opens_to(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        return self._keyring.is_proved_by(given.strip()) and scheme.lower() == "bearer"


def create_app(
    *,
    keyring: Keyring,
    usage_reader: ReaderPool[Reader],
    sql: Sql,
    price_desk: ReaderPool[PriceDesk],
    progress: Callable[[], Progress],
    usage_cache_s: float = 0,
) -> FastAPI:
    """What proves the keyring opens. `sql` answers the operator, and raises what is handled here. Answers about usage
    are given again for `usage_cache_s`.
    """
    if not all(keyring.accepted):
        raise ValueError("a password is empty")

    app = FastAPI(title="Sluice billing", docs_url=None, redoc_url=None, openapi_url=None)
    answers = SharedAnswers(
        usage_cache_s, time.monotonic, max_bytes=MAX_KEPT_BYTES, max_bytes_of_tenant=MAX_KEPT_BYTES_OF_TENANT
    )
    app.add_middleware(_Door, keyring=keyring)
    _handle_errors(app)

    add_usage_routes(app, usage_reader, progress, answers)

    @app.post("/internal/sql")
    async def ask_sql(body: SqlBody) -> dict[str, Any]:
        return asdict(await sql(body.query))

    @app.get("/internal/prices")
    async def prices() -> dict[str, Any]:
        return await price_desk.ask("", PriceDesk.known)

    @app.post("/internal/prices/plan")
    async def plan_prices(body: PricesAsked) -> dict[str, Any]:
        return await price_desk.ask("", lambda desk: desk.plan(body))

    @app.post("/internal/prices/apply")
    async def apply_prices(body: PricesApplied) -> dict[str, Any]:
        return await price_desk.ask("", lambda desk: desk.apply(body))

    @app.get("/internal/status")
    async def status() -> dict[str, Any]:
        seen = progress()
        stored = await usage_reader.ask("", Reader.status)
        return {"lag_records": seen.lag_records, "finalized_through": seen.stored_through_ms, **stored}

    return app


def _handle_errors(app: FastAPI) -> None:
    """Each with its status and its code."""

    @app.exception_handler(HTTPException)
    async def _http_error(_request: Request, error: HTTPException) -> JSONResponse:
        codes = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
        answer = error_answer(error.status_code, str(error.detail), codes.get(error.status_code, "invalid_request"))
        if error.status_code == 413:
            answer.headers["connection"] = "close"
        return answer

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        fault = fault_of(first, first["loc"][1:])
        return error_answer(400, str(fault), "invalid_value", fault.param)

    @app.exception_handler(InvalidQuery)
    async def _invalid_query(_request: Request, error: InvalidQuery) -> JSONResponse:
        return error_answer(400, str(error), "invalid_value", error.param)

    @app.exception_handler(PriceRefused)
    @app.exception_handler(PriceInexact)
    async def _price_refused(_request: Request, error: Exception) -> JSONResponse:
        return error_answer(400, str(error), "price_refused", "prices")

    @app.exception_handler(PricesUnknown)
    async def _prices_unknown(_request: Request, error: PricesUnknown) -> JSONResponse:
        return error_answer(503, str(error), "unavailable", retry_after_s=RETRY_AFTER_S)

    @app.exception_handler(SqlRefused)
    async def _refused(_request: Request, error: SqlRefused) -> JSONResponse:
        return error_answer(400, str(error), "sql_refused", "query")

    @app.exception_handler(ClickHouseFailed)
    async def _failed(_request: Request, error: ClickHouseFailed) -> JSONResponse:
        if error.name == "TIMEOUT_EXCEEDED":
            return error_answer(504, str(error), "timeout")
        if error.status == 503:
            return error_answer(503, str(error)[:2_000], "unavailable", retry_after_s=RETRY_AFTER_S)
        code = "sql_refused" if isinstance(error, Refused) else "sql_failed"
        return error_answer(400, str(error)[:2_000], code, "query")

    @app.exception_handler(StoreError)
    async def _store_error(request: Request, error: StoreError) -> JSONResponse:
        if request.url.path == "/internal/sql" and error.code is not None:
            return error_answer(400, str(error)[:2_000], "sql_failed", "query")
        return error_answer(503, "ClickHouse does not answer", "unavailable")

    @app.exception_handler(ReaderBusy)
    async def _busy(_request: Request, error: ReaderBusy) -> JSONResponse:
        status, code = (429, "rate_limited_concurrency") if error.of_tenant else (503, "overloaded")
        return error_answer(status, str(error), code, retry_after_s=RETRY_AFTER_S)

    @app.exception_handler(TimeoutError)
    async def _late(_request: Request, _error_: TimeoutError) -> JSONResponse:
        return error_answer(504, "the query took too long", "timeout")


def usage_readers(open_reader: Callable[[], Reader], query_timeout_s: float) -> ReaderPool[Reader]:
    return _pool(open_reader, "usage-reader", query_timeout_s, threads=USAGE_THREADS, max_of_tenant=_OF_TENANT)


def sql_reader(open_reader: Callable[[], Reader], query_timeout_s: float) -> ReaderPool[Reader]:
    """Of its own, so that a long SELECT of the operator does not hold up the gateway."""
    return _pool(open_reader, "sql-reader", query_timeout_s, threads=1, max_of_tenant=_WAITING)


def price_desk(
    open_store: Callable[[], ClickHouseStore], tell: Callable[[list[PriceRow]], object],
    take_back: Callable[[ClickHouseStore], object],
) -> ReaderPool[PriceDesk]:  # fmt: skip
    """One change at a time. What it would have cost is summed over a month of all tenants' usage."""
    return operators_desk(
        lambda: PriceDesk(open_store(), now_ms, tell, take_back), "prices", answer_s=LONGEST_S + _DEADLINE_SLACK_S
    )


def _pool(
    open_reader: Callable[[], R], name: str, query_timeout_s: float, *, threads: int, max_of_tenant: int
) -> ReaderPool[R]:
    return ReaderPool(
        open_reader, name, threads=threads, max_waiting=_WAITING, max_of_tenant=max_of_tenant, wait_s=query_timeout_s,
        answer_s=query_timeout_s + _DEADLINE_SLACK_S,
    )  # fmt: skip
