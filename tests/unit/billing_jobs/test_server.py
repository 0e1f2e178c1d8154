"""The internal HTTP interface, over a real embedded ClickHouse."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from itertools import count
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.__main__ import Server
from billing_jobs.clickhouse.errors import Refused
from billing_jobs.metrics import BillingMetrics
from billing_jobs.progress import Progress
from billing_jobs.queries import SqlResult
from billing_jobs.readers import ReaderBusy, ReaderPool
from billing_jobs.server import create_app
from billing_jobs.server_config import ServerConfig
from billing_jobs.sql_guard import MAX_SQL_CHARS
from billing_jobs.store import ClickHouseStore, Connection
from billing_jobs.usage_sql import UsagePage
from schemas.usage_query import UsageQuery
from streams.keyring import Keyring
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.internal_http import (
    BOOK,
    DESKLESS,
    HOUR_S,
    LINE_PICO,
    NOON_S,
    SECRET,
    Client,
    asked_of,
    http_client,
    reader_thread,
)
from tests.unit.billing_jobs.test_store import batch_of
from tests.unit.streams.gateway.gateway_stack import until

# -- sql and status ----------------------------------------------------------------------------------------------------


async def test_the_operator_asks_in_sql(client: Client, store: ClickHouseStore) -> None:
    store.insert(batch_of([usage_event(1).encode()], book=BOOK), again=False)
    answer = await client.sql("SELECT tenant_id, cost_pico FROM usage")
    assert answer.json() == {
        "columns": ["tenant_id", "cost_pico"],
        "types": ["LowCardinality(String)", "Int128"],
        "rows": [["acme", str(LINE_PICO)]],
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT * FROM file('/etc/passwd')", "sql_refused"),
        ("SELECT nonsense FROM usage", "sql_failed"),
        ("", "invalid_value"),
        (7, "invalid_value"),
        ("SELECT " + "1" * 30_000, "invalid_value"),
    ],
)
async def test_a_query_that_cannot_run_says_why(client: Client, query: Any, code: str) -> None:
    answer = await client.sql(query)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, "query")
    assert (await client.sql("SELECT 1 AS one")).json()["rows"] == [[1]], "the connection answers again"


async def test_where_no_reader_can_be_started_the_operator_may_ask_again() -> None:
    async def sql(_statement: str) -> SqlResult:
        raise Refused("NETWORK_ERROR", "no reader could be started")

    unused: Any = None
    app = create_app(
        keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=sql, price_desk=DESKLESS, progress=unused
    )
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://billing", headers=headers
    ) as http:
        answer = await Client(http).sql("SELECT 1")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == ("unavailable", "server_error")


async def test_status_tells_lag_tables_and_the_newest_batch(client: Client, store: ClickHouseStore) -> None:
    store.insert(batch_of([usage_event(1).encode()], book=BOOK), again=False)
    status = (await client.http.get("/internal/status")).json()
    assert (status["lag_records"], status["finalized_through"]) == (3, NOON_MS - 5)
    assert status["tables"]["usage_events"] == 1
    assert (status["last_batch"]["batch_id"], status["last_batch"]["records"]) == (f"local.usage-0-0-0-{NOON_MS}", 1)


# -- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {'ü' * 9}"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "usage"), ("POST", "sql"), ("GET", "status")])
async def test_without_the_password_nothing_is_answered(method: str, path: str, header: str | None) -> None:
    def unreachable() -> None:
        raise AssertionError("the tables were asked")

    with closing(reader_thread(Connection(unreachable), "reader")) as reader:
        async with http_client(reader, reader) as http:
            del http.headers["Authorization"]
            headers = {} if header is None else {b"Authorization": header.encode()}
            answer = await http.request(method, f"/internal/{path}", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


class Body:
    """Has no end; knows how much of it was taken."""

    def __init__(self) -> None:
        self.taken_bytes = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.taken_bytes < 100_000_000:
            self.taken_bytes += 65_536
            yield b" " * 65_536


async def test_of_a_body_without_the_password_nothing_is_read(client: Client) -> None:
    body = Body()
    answer = await client.http.post("/internal/sql", content=body, headers={"Authorization": "Bearer wrong"})
    assert (answer.status_code, answer.headers["connection"], body.taken_bytes) == (401, "close", 0)


async def test_a_body_is_no_larger_than_a_query(client: Client) -> None:
    body = Body()
    answer = await client.http.post("/internal/sql", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert body.taken_bytes < 1_000_000
    longest = "SELECT '" + "\U0001f600" * (MAX_SQL_CHARS - 9) + "'"
    assert (await client.sql(longest)).status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /internal/status HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 5_000_000, 431),
        (b"GET /internal/status HTTP/1.1\r\nHost: x\r\nX-", 408),
        (b"", None),
    ],
    ids=["endless", "unfinished", "silent"],
)
async def test_a_stranger_holds_a_head_for_a_while(
    monkeypatch: pytest.MonkeyPatch, head: bytes, status: int | None
) -> None:
    monkeypatch.setattr("billing_jobs.server_config.HEAD_TIMEOUT_S", 0.2)
    unused: Any = None
    app = create_app(
        keyring=Keyring((b"x",)), usage_reader=unused, sql=unused, price_desk=unused, progress=lambda: Progress(0, 0, 0)
    )
    server = Server(ServerConfig(app, "127.0.0.1", 0, BillingMetrics(CollectorRegistry())))
    serving = asyncio.ensure_future(server.serve())
    async with asyncio.timeout(60):
        await until(lambda: server.started, "it listens")
        reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
        with suppress(ConnectionError):
            writer.write(head)
            await writer.drain()
        told = b""
        with suppress(ConnectionError):
            told = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
    assert (int(told.split()[1]) if told else None) == status


def test_an_empty_password_opens_nothing() -> None:
    unused: Any = None
    with pytest.raises(ValueError, match="password"):
        create_app(
            keyring=Keyring((b"",)),
            usage_reader=unused,
            sql=unused,
            price_desk=unused,
            progress=lambda: Progress(0, 0, 0),
        )


# -- bounded -----------------------------------------------------------------------------------------------------------


class Slow:
    """A Reader whose answers about the tenant `slow` wait for `release`."""

    release: threading.Event

    def usage(self, query: UsageQuery) -> UsagePage:
        if (query.tenant_id or "").startswith("slow"):
            assert self.release.wait(60)
        return UsagePage([], None)

    def close(self) -> None:
        pass


@pytest.fixture
def slow() -> Any:
    reader = Slow()
    reader.release = threading.Event()
    return reader


@pytest.fixture
async def address(slow: Any) -> AsyncIterator[str]:
    """Of a server on a real socket, with two threads for usage."""
    usage = ReaderPool(
        lambda: slow, "usage", threads=2, max_waiting=3, max_of_tenant=2, wait_s=60, answer_s=60,
    )  # fmt: skip
    app = create_app(
        keyring=Keyring((SECRET.encode(),)),
        usage_reader=usage,
        sql=asked_of(usage),
        price_desk=DESKLESS,
        progress=lambda: Progress(0, 0, 0),
    )
    server = Server(ServerConfig(app, "127.0.0.1", 0, BillingMetrics(CollectorRegistry())))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started, "it listens")
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"{host}:{port}"
    slow.release.set()
    server.should_exit = True
    await serving
    usage.close()


_questions = count()
"""What is asked twice is answered once, so each of these is another one."""


async def ask(address: str, tenant: str) -> httpx.Response:
    start_s = NOON_S + next(_questions)
    window: dict[str, str | int] = {"tenant_id": tenant, "start_time": start_s, "end_time": NOON_S + HOUR_S}
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers, trust_env=False, timeout=60) as client:
        return await client.post("/internal/usage", json=window)


async def test_slow_queries_of_one_tenant_leave_anothers_answered(address: str, slow: Any) -> None:
    asked = [asyncio.create_task(ask(address, "slow")) for _ in range(4)]
    refused = [task.result() for task in (await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))[0]]
    assert {answer.status_code for answer in refused} == {429}
    assert refused[0].headers["retry-after"] == "2"
    for _ in range(3):
        assert (await ask(address, "quick")).status_code == 200
    assert sum(not task.done() for task in asked) == 2, "one runs, one waits for it"
    slow.release.set()
    assert sorted([(await task).status_code for task in asked]) == [200, 200, 429, 429]


async def test_who_has_the_password_may_wait_longer_than_a_stranger(
    address: str, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerConfig, "strangers_timeout_s", 0.5)
    asked = asyncio.create_task(ask(address, "slow"))
    await asyncio.wait((asked,), timeout=1.5)
    slow.release.set()
    assert (await asked).status_code == 200


async def test_queries_of_many_tenants_wait_in_a_bounded_number(address: str, slow: Any) -> None:
    asked = [asyncio.create_task(ask(address, f"slow-{number}")) for number in range(6)]
    [refused] = [task.result() for task in (await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED))[0]]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    slow.release.set()
    assert sorted([(await task).status_code for task in asked]) == [200] * 5 + [503]


async def test_a_question_that_takes_too_long_is_answered_with_a_timeout(slow: Any) -> None:
    pool = ReaderPool(lambda: slow, "slow", threads=1, max_waiting=2, max_of_tenant=2, wait_s=0.02, answer_s=0.02)
    query = UsageQuery.asked(tenant_id="slow", start_time=0, end_time=10)
    with pytest.raises(TimeoutError):
        await pool.ask("slow", lambda reader: reader.usage(query))
    for tenant, of_tenant in (("slow", True), ("quick", False)):
        with pytest.raises(ReaderBusy) as late:
            await pool.ask(tenant, lambda reader: reader.usage(query))
        assert late.value.of_tenant == of_tenant
    slow.release.set()
    pool.close()
