"""The application between clients and readers, with readers that answer as they are told."""

import asyncio
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from billing_jobs.clickhouse import requests, server
from billing_jobs.clickhouse.asks import Answer
from billing_jobs.clickhouse.server import SMALL_BODY_BYTES, create_app
from billing_jobs.metrics import BillingMetrics


class Readers:
    """Each answers with as many bytes as are asked for."""

    def __init__(self, answer_bytes: int = 1) -> None:
        self._answer_bytes = answer_bytes

    async def ask(self, _tenant: str, _question: Callable[..., Any]) -> Answer:
        return Answer(b"x" * self._answer_bytes, "RawBLOB", 1, 1, 1)


class Interface:
    """Whose tenants prove themselves by their names."""

    def __init__(self, readers: Any) -> None:
        self._app = create_app(
            lambda shown: shown.user if shown.password == "key" else None,
            lambda _tenant: readers,
            "UTC",
            BillingMetrics(CollectorRegistry()),
        )

    async def asked(
        self,
        tenant: str,
        body: bytes = b"SELECT 1",
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        query: bytes = b"",
        taken: asyncio.Event | None = None,
    ) -> tuple[int, str, bytes]:
        """Status, ClickHouse's code and what is said. Nothing of rows is taken before `taken` is set."""
        shown = () if headers else ((b"x-clickhouse-user", tenant.encode()), (b"x-clickhouse-key", b"key"))
        scope = {
            "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": query,
            "headers": [*shown, *headers], "http_version": "1.1", "scheme": "http", "root_path": "",
            "server": ("here", 1), "client": ("there", 1),
        }  # fmt: skip
        sent = iter([{"type": "http.request", "body": body, "more_body": False}])
        said: list[Message] = []

        async def receive() -> Message:
            for message in sent:
                return message
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            if taken is not None and said and said[0]["status"] == 200:
                await taken.wait()
            said.append(message)

        await self._app(scope, receive, send)
        code = dict(said[0]["headers"]).get(b"x-clickhouse-exception-code", b"")
        return said[0]["status"], code.decode(), b"".join(each.get("body", b"") for each in said)


async def test_a_large_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads: list[bool] = []
    as_it_was = requests.read_ask

    def read_ask(*args: Any) -> Any:
        in_threads.append(threading.current_thread() is not threading.main_thread())
        return as_it_was(*args)

    monkeypatch.setattr(server, "read_ask", read_ask)
    interface = Interface(Readers())
    for body_bytes in (SMALL_BODY_BYTES, SMALL_BODY_BYTES + 1):
        assert await interface.asked("acme", b"SELECT 1".ljust(body_bytes)) == (200, "", b"x")
    assert in_threads == [False, True]


async def test_what_clients_do_not_take_is_bounded_for_each_tenant_and_leaves_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_WAITING_BYTES", 1_000)
    monkeypatch.setattr(server, "MAX_WAITING_BYTES_OF_TENANT", 250)
    interface, taken = Interface(Readers(answer_bytes=100)), asyncio.Event()
    slow = [asyncio.create_task(interface.asked("acme", taken=taken)) for _ in range(5)]
    async with asyncio.timeout(30):
        refused = [await each for each in islice(asyncio.as_completed(slow), 3)]
    for status, code, said in refused:
        assert (status, code) == (500, "241")
        assert b"MEMORY_LIMIT_EXCEEDED" in said
    assert (await interface.asked("globex"))[0] == 200
    taken.set()
    assert sorted(each[0] for each in await asyncio.gather(*slow)) == [200, 200, 500, 500, 500]
    assert (await interface.asked("acme"))[0] == 200, "what was taken takes no room"


@pytest.mark.parametrize(
    "head",
    [
        (b"authorization", b"Basic \xff\xfe"), (b"authorization", b"Basic /w=="), (b"authorization", b"Basic abc"),
        (b"authorization", b"Basic"), (b"authorization", b"Bearer \xe9"), (b"authorization", b"\xff"),
        (b"x-clickhouse-user", b"\xe9"), (b"x-clickhouse-key", b"\xe9"),
    ],
)  # fmt: skip
async def test_a_key_of_whatever_bytes_is_a_wrong_one(head: tuple[bytes, bytes]) -> None:
    assert (await Interface(Readers()).asked("", headers=(head,)))[:2] == (403, "516")


@pytest.mark.parametrize(
    "query", [b"user=%ed%a0%80&password=%ff", b"user=%00", b"query_id=%ff", b"database=%ff", b"query=%ff&param_%ff=%ff"]
)
async def test_an_address_of_whatever_bytes_opens_nothing(query: bytes) -> None:
    assert (await Interface(Readers()).asked("", headers=((b"accept", b"*/*"),), query=query))[:2] == (403, "516")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x-clickhouse-database", (404, "81")), ("x-clickhouse-format", (404, "73")), ("content-encoding", (500, "89")),
        ("accept-encoding", (200, "")), ("content-type", (200, "")),
    ],
)  # fmt: skip
async def test_heads_of_whatever_bytes_are_answered(name: str, expected: tuple[int, str]) -> None:
    shown = ((b"x-clickhouse-user", b"acme"), (b"x-clickhouse-key", b"key"))
    asked = Interface(Readers()).asked("acme", headers=(*shown, (name.encode(), b"\xff")), query=b"param_x=%ff")
    assert (await asked)[:2] == expected
