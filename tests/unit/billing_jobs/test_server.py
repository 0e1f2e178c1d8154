"""The internal HTTP interface, over a real embedded ClickHouse."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.__main__ import Server
from billing_jobs.clickhouse.errors import Refused
from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.queries import Reader, SqlResult, UsageQuery, decimal_units, read_settings
from billing_jobs.readers import ReaderBusy, ReaderPool
from billing_jobs.server import Sql, create_app
from billing_jobs.server_config import ServerConfig
from billing_jobs.sink import Progress
from billing_jobs.sql_guard import MAX_SQL_CHARS
from billing_jobs.store import ClickHouseStore, Connection, Database
from schemas.base import Scope
from schemas.usage_query import InvalidQuery
from streams.keyring import Keyring
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.test_store import batch_of
from tests.unit.streams.gateway.gateway_stack import until

SECRET = "s" * 40
DESKLESS: Any = None
"""Where nobody changes prices."""
NOON_S = NOON_MS // 1_000
HOUR_S, DAY_S = 3_600, 86_400
BOOK = PriceBook(
    [PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000), PriceRow("euro", "EUR", 0, 1, 1, 1, 1)]
)
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
        return await self.http.get("/internal/usage", params={**fields, **params})

    async def sql(self, query: Any) -> httpx.Response:
        return await self.http.post("/internal/sql", json={"query": query})


@pytest.fixture
def store(database: Database) -> ClickHouseStore:
    return ClickHouseStore(database.connection())


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


@pytest.fixture
async def client(database: Database, store: ClickHouseStore) -> AsyncIterator[Client]:
    def connection() -> Connection:
        return database.connection(read_settings(max_rows=100, timeout_s=60))

    with (
        closing(store),
        closing(reader_thread(connection(), "usage")) as usage,
        closing(reader_thread(connection(), "sql")) as sql,
    ):
        async with http_client(usage, sql) as http:
            yield Client(http)


# -- usage -------------------------------------------------------------------------------------------------------------


async def test_usage_stands_in_the_hour_in_which_it_was_accepted(client: Client, store: ClickHouseStore) -> None:
    hour_ms = HOUR_S * 1_000
    at = [NOON_MS, NOON_MS + hour_ms - 1, NOON_MS + 2 * hour_ms, NOON_MS - 1, NOON_MS + 3 * hour_ms]
    events = [usage_event(number, accepted_at_ms=ms, ended_at_ms=ms) for number, ms in enumerate(at)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    answer = (await client.usage()).json()
    assert [bucket["start_time"] for bucket in answer["data"]] == [NOON_S, NOON_S + HOUR_S, NOON_S + 2 * HOUR_S]
    assert [bucket["end_time"] for bucket in answer["data"]] == [NOON_S + (n + 1) * HOUR_S for n in range(3)]
    first, second, third = (bucket["results"] for bucket in answer["data"])
    assert second == []
    assert [result["requests"] for result in (*first, *third)] == [2, 1]
    assert first == [
        {
            "requests": 2,
            "uncached_input_tokens": 20,
            "cached_input_tokens": 8,
            "output_tokens": 60,
            "reasoning_tokens": 4,
            "released_tokens": 60,
            "suspense_events": 0,
            "currency": "USD",
            "cost_pico": str(2 * LINE_PICO),
            "cost": "0.00002776",
            "cost_usd": "0.00002776",
        }
    ]
    assert (answer["finalized_through"], answer["lag_records"]) == (NOON_MS - 5, 3)


async def test_days_begin_at_midnight_utc_and_the_interval_cuts_the_first_and_last(client: Client) -> None:
    answer = await client.usage(start_time=NOON_S, end_time=NOON_S + DAY_S, bucket_width="1d")
    midnight = NOON_S + 12 * HOUR_S
    assert [(b["start_time"], b["end_time"]) for b in answer.json()["data"]] == [
        (NOON_S, midnight),
        (midnight, NOON_S + DAY_S),
    ]


async def test_a_tenant_sees_its_own_usage_alone(client: Client, store: ClickHouseStore) -> None:
    mine, theirs = usage_event(1), usage_event(2, scope=Scope(tenant_id="globex"))
    store.insert(batch_of([mine.encode(), theirs.encode()], book=BOOK), again=False)
    for tenant, requests in (("acme", 1), ("globex", 1), ("acme' OR '1'='1", 0)):
        data = (await client.usage(tenant_id=tenant)).json()["data"]
        assert sum(result["requests"] for bucket in data for result in bucket["results"]) == requests


async def test_groups_currencies_and_what_awaits_a_price_are_kept_apart(client: Client, store: ClickHouseStore) -> None:
    events = [usage_event(1), usage_event(2, model="euro"), usage_event(3, model="unpriced")]
    second_choice = usage_event(
        4, response_id=events[0].response_id, usage_id=f"{events[0].response_id}/1", choice=1, uncached_input_tokens=0
    )
    store.insert(batch_of([event.encode() for event in (*events, second_choice)], book=BOOK), again=False)
    data = (await client.usage(group_by="model,project_id")).json()["data"]
    results = {result["model"]: result for result in data[0]["results"]}
    assert {name: result["requests"] for name, result in results.items()} == {"tiny": 1, "euro": 1, "unpriced": 1}
    assert {result["project_id"] for result in results.values()} == {"chat"}
    assert (results["euro"]["currency"], results["euro"]["cost_usd"], results["euro"]["cost_pico"]) == (
        "EUR",
        None,
        "46",
    )
    assert (results["unpriced"]["currency"], results["unpriced"]["suspense_events"]) == (None, 1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "x" * 201}, "tenant_id"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": -1}, "start_time"),
        ({"end_time": 10**30}, "end_time"),
        ({"end_time": NOON_S}, "end_time"),
        ({"end_time": NOON_S + 400 * DAY_S}, "end_time"),
        ({"bucket_width": "1m"}, "bucket_width"),
        ({"group_by": "model,prompt"}, "group_by"),
        ({"group_by": "model,model"}, "group_by"),
        ({"group_by": "model) FROM usage_events --"}, "group_by"),
    ],
)
async def test_a_wrong_field_is_named(client: Client, change: dict[str, Any], param: str) -> None:
    answer = await client.usage(**change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


async def test_more_groups_than_may_be_shown_are_refused(client: Client, store: ClickHouseStore) -> None:
    events = [usage_event(n, scope=Scope(tenant_id="acme", key_id=f"key-{n}")) for n in range(101)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    answer = await client.usage(group_by="key_id")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "group_by")


def test_a_range_is_bounded_by_its_buckets() -> None:
    assert len(UsageQuery("acme", 0, 400 * DAY_S, "1d").bucket_starts()) == 400
    with pytest.raises(InvalidQuery):
        UsageQuery("acme", 0, 400 * DAY_S + 1, "1d")


@pytest.mark.parametrize(
    ("pico", "units"),
    [
        (0, "0"),
        (1, "0.000000000001"),
        (10**12, "1"),
        (15 * 10**11, "1.5"),
        (10**40 + 1, f"1{'0' * 28}.000000000001"),
    ],
)
def test_amounts_are_exact_decimals(pico: int, units: str) -> None:
    assert decimal_units(pico) == units


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

    def usage(self, query: UsageQuery) -> list[dict[str, Any]]:
        if query.tenant_id.startswith("slow"):
            assert self.release.wait(60)
        return []

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


async def ask(address: str, tenant: str) -> httpx.Response:
    window: dict[str, str | int] = {"tenant_id": tenant, "start_time": NOON_S, "end_time": NOON_S + HOUR_S}
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(base_url=f"http://{address}", headers=headers, trust_env=False, timeout=60) as client:
        return await client.get("/internal/usage", params=window)


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
    query = UsageQuery("slow", 0, 10)
    with pytest.raises(TimeoutError):
        await pool.ask("slow", lambda reader: reader.usage(query))
    for tenant, of_tenant in (("slow", True), ("quick", False)):
        with pytest.raises(ReaderBusy) as late:
            await pool.ask(tenant, lambda reader: reader.usage(query))
        assert late.value.of_tenant == of_tenant
    slow.release.set()
    pool.close()
