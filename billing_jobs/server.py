"""Billing's internal HTTP interface, for the gateway and the operator's command line; every call needs
its password as `Authorization: Bearer …`; `sluice secret billing` shows it.

- `GET /internal/usage`: token classes and money of one tenant in hour or day buckets.
- `POST /internal/sql`: one SELECT over all tenants, read-only and limited.
- `GET /internal/status`: lag, newest batch, table sizes.
"""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from billing_jobs.queries import Reader, UsageQuery
from billing_jobs.readers import RETRY_AFTER_S, ReaderBusy, ReaderPool
from billing_jobs.sink import Progress
from billing_jobs.sql_guard import MAX_SQL_CHARS, SqlRefused
from billing_jobs.store import StoreError
from schemas.usage_query import InvalidQuery
from streams.connections.open_connections import admit

MAX_BODY_BYTES = 262_144
"""The longest query, each of its characters escaped."""
_WAITING = 64
_OF_TENANT = 4
_DEADLINE_SLACK_S = 5.0
USAGE_THREADS = 4


class SqlBody(BaseModel):
    query: str = Field(min_length=1, max_length=MAX_SQL_CHARS)


def _error(
    status: int, message: str, code: str, param: str | None = None, retry_after_s: int | None = None
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = None if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return JSONResponse({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers)


class _Door:
    """Who has a password may ask, whatever the path; of nobody else anything is read. A body is a query at most."""

    def __init__(self, app: ASGIApp, passwords: Sequence[bytes]) -> None:
        self._app = app
        self._passwords = passwords

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._opens_to(Request(scope).headers.get("authorization", "")):
            refusal = _error(401, "the password is missing or wrong", "invalid_api_key")
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
        found = given.strip().encode()
        known = any([hmac.compare_digest(found, password) for password in self._passwords])  # noqa: C419 - all, always
        return known and scheme.lower() == "bearer"


def create_app(
    *,
    passwords: Sequence[bytes],
    usage_reader: ReaderPool,
    sql_reader: ReaderPool,
    progress: Callable[[], Progress],
) -> FastAPI:
    """Any of the passwords opens. Two pools, so that a long SELECT of the operator does not hold up the gateway."""
    if not all(passwords):
        raise ValueError("a password is empty")

    app = FastAPI(title="Sluice billing", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Door, passwords=passwords)
    _handle_errors(app)

    @app.get("/internal/usage")
    async def usage(
        tenant_id: str, start_time: int, end_time: int, bucket_width: str = "1d", group_by: str = ""
    ) -> dict[str, Any]:
        query = UsageQuery.parse(tenant_id, start_time, end_time, bucket_width, group_by)
        # Read before the tables are: what this promises to be stored is then in the answer.
        seen = progress()
        data = await usage_reader.ask(tenant_id, lambda reader: reader.usage(query))
        return {"data": data, "finalized_through": seen.stored_through_ms, "lag_records": seen.lag_records}

    @app.post("/internal/sql")
    async def sql(body: SqlBody) -> dict[str, Any]:
        result = await sql_reader.ask("", lambda reader: reader.sql(body.query))
        return asdict(result)

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
        answer = _error(error.status_code, str(error.detail), codes.get(error.status_code, "invalid_request"))
        if error.status_code == 413:
            answer.headers["connection"] = "close"
        return answer

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:]) or "body"
        return _error(400, f"{param}: {first['msg']}", "invalid_value", param)

    @app.exception_handler(InvalidQuery)
    async def _invalid_query(_request: Request, error: InvalidQuery) -> JSONResponse:
        return _error(400, str(error), "invalid_value", error.param)

    @app.exception_handler(SqlRefused)
    async def _refused(_request: Request, error: SqlRefused) -> JSONResponse:
        return _error(400, str(error), "sql_refused", "query")

    @app.exception_handler(StoreError)
    async def _store_error(request: Request, error: StoreError) -> JSONResponse:
        if request.url.path == "/internal/sql" and error.code is not None:
            return _error(400, str(error)[:2_000], "sql_failed", "query")
        return _error(503, "ClickHouse does not answer", "unavailable")

    @app.exception_handler(ReaderBusy)
    async def _busy(_request: Request, error: ReaderBusy) -> JSONResponse:
        status, code = (429, "rate_limited_concurrency") if error.of_tenant else (503, "overloaded")
        return _error(status, str(error), code, retry_after_s=RETRY_AFTER_S)

    @app.exception_handler(TimeoutError)
    async def _late(_request: Request, _error_: TimeoutError) -> JSONResponse:
        return _error(504, "the query took too long", "timeout")


def reader_pools(open_reader: Callable[[], Reader], query_timeout_s: float) -> tuple[ReaderPool, ReaderPool]:
    """For usage and for SQL."""
    answer_s = query_timeout_s + _DEADLINE_SLACK_S
    usage = ReaderPool(
        open_reader, "usage-reader", threads=USAGE_THREADS, max_waiting=_WAITING, max_of_tenant=_OF_TENANT,
        wait_s=query_timeout_s, answer_s=answer_s,
    )  # fmt: skip
    sql = ReaderPool(
        open_reader, "sql-reader", threads=1, max_waiting=_WAITING, max_of_tenant=_WAITING, wait_s=query_timeout_s,
        answer_s=answer_s,
    )  # fmt: skip
    return usage, sql
