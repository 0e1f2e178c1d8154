"""The operator's invoices and ledger on billing's internal interface, behind its password.

- `GET /internal/invoices`: invoices, and months that are open.
- `GET /internal/invoices/TENANT/MONTH`, `…/draft`, `…/check`: one month's; `POST …/close`: makes them.
- `POST /internal/dropped-months`: a month's usage events leave, once all of them are on invoices.
- `GET /internal/ledger/TENANT`, `POST /internal/ledger`: its entries; one more.
"""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from billing_jobs.error_answers import error_answer
from billing_jobs.invoices.amounts import InvoiceRefused
from billing_jobs.invoices.core import CountsDiffer
from billing_jobs.invoices.desk import CloseAsked, DropAsked, EntryAsked, InvoiceDesk
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.readers import LONGEST_S, ReaderPool, operators_desk
from streams.clocks import now_ms

CODES = {400: "invalid_value", 404: "not_found", 409: "invoice_refused"}


def invoice_desk(tables: InvoiceTables, proven_through_ms: Callable[[], int]) -> ReaderPool[InvoiceDesk]:
    """One call at a time. It closes the tables."""
    return operators_desk(lambda: InvoiceDesk(tables, proven_through_ms, now_ms), "invoices", answer_s=LONGEST_S)


def add_invoice_routes(app: FastAPI, desk: ReaderPool[InvoiceDesk]) -> None:
    """To billing's application, whose errors and password hold for them."""

    @app.get("/internal/invoices")
    async def listed(tenant_id: str | None = None, month: str | None = None) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.listed(tenant_id, month))

    @app.get("/internal/invoices/{tenant_id}/{month}")
    async def shown(tenant_id: str, month: str) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.shown(tenant_id, month))

    @app.get("/internal/invoices/{tenant_id}/{month}/draft")
    async def draft(tenant_id: str, month: str) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.draft(tenant_id, month))

    @app.get("/internal/invoices/{tenant_id}/{month}/check")
    async def check(tenant_id: str, month: str) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.check(tenant_id, month))

    @app.post("/internal/invoices/{tenant_id}/{month}/close")
    async def close(tenant_id: str, month: str, body: CloseAsked) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.close_month(tenant_id, month, body))

    @app.post("/internal/dropped-months")
    async def drop(body: DropAsked) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.drop_month(body))

    @app.get("/internal/ledger/{tenant_id}")
    async def ledger(tenant_id: str) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.ledger(tenant_id))

    @app.post("/internal/ledger")
    async def record(body: EntryAsked) -> dict[str, Any]:
        return await desk.ask("", lambda each: each.record(body))

    @app.exception_handler(InvoiceRefused)
    async def _refused(_request: Request, error: InvoiceRefused) -> JSONResponse:
        return error_answer(error.status, str(error), CODES[error.status], error.param)

    @app.exception_handler(CountsDiffer)
    async def _differs(_request: Request, error: CountsDiffer) -> JSONResponse:
        return error_answer(409, str(error), "counts_differ")
