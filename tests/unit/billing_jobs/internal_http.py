"""Billing's internal interface over real tables, asked as gateways and the command ask it."""

from typing import Any

import httpx

from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.progress import Progress
from billing_jobs.queries import Reader
from billing_jobs.readers import ReaderPool
from billing_jobs.server import Sql, create_app
from billing_jobs.store import Connection
from streams.keyring import Keyring
from tests.unit.billing_jobs.events import NOON_MS

SECRET = "s" * 40
DESKLESS: Any = None
"""Where nobody changes prices."""
NOON_S = NOON_MS // 1_000
HOUR_S, DAY_S = 3_600, 86_400
BOOK_ROWS = [PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000), PriceRow("euro", "EUR", 0, 1, 1, 1, 1)]
BOOK = PriceBook(BOOK_ROWS)
LINE_PICO = 10 * 100_000 + 4 * 20_000 + 32 * 400_000


class Client:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def usage(self, **params: Any) -> httpx.Response:
        fields: dict[str, Any] = {
            "tenant_id": "acme",
            "start_time": NOON_S,
            "end_time": NOON_S + 3 * HOUR_S,
            "bucket_width": "1h",
        }
        return await self.http.post("/internal/usage", json={**fields, **params})

    async def sql(self, query: Any) -> httpx.Response:
        return await self.http.post("/internal/sql", json={"query": query})


def reader_thread(connection: Connection, name: str) -> ReaderPool[Reader]:
    return ReaderPool(
        lambda: Reader(connection, max_rows=100),
        name,
        threads=1,
        max_waiting=16,
        max_of_tenant=16,
        wait_s=60,
        answer_s=60,
    )


def asked_of(readers: ReaderPool[Reader]) -> Sql:
    return lambda text: readers.ask("", lambda reader: reader.sql(text))


def http_client(usage: ReaderPool[Reader], sql: ReaderPool[Reader]) -> httpx.AsyncClient:
    progress = Progress(3, NOON_MS - 5, NOON_MS)
    app = create_app(
        keyring=Keyring((SECRET.encode(),)),
        usage_reader=usage,
        sql=asked_of(sql),
        price_desk=DESKLESS,
        progress=lambda: progress,
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(
        transport=transport, base_url="http://billing", headers={"Authorization": f"Bearer {SECRET}"}
    )
