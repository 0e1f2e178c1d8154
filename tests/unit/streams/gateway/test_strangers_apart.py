"""Peers without a key take no place from tenants, and keep none of their own for long: on real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from streams.connections.open_connections import OpenConnections
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.http_clients import HELLO
from tests.unit.streams.gateway.raw_peers import Named, Peer, Silent, narrow_peer, peer, upgraded

_regions = iter(f"apart{number}" for number in range(1_000))
DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def gateway(redis_url: str, **bounds: Any) -> AsyncIterator[Stack]:
    settings = gateway_settings(redis_url, next(_regions), **bounds)
    async with serving(settings, memory_log(settings)) as stack:
        yield stack


def of_tenant(stack: Stack) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": KEY}, timeout=60, trust_env=False)


def dial(stack: Stack, key: str | None = KEY) -> connect:
    return connect(stack.websocket_url, additional_headers={} if key is None else {"x-api-key": key}, proxy=None)


async def hear(client: ClientConnection) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await client.recv())


async def is_served(stack: Stack) -> None:
    """A tenant, over HTTP and on a socket."""
    async with of_tenant(stack) as http:
        assert (await http.get("/v1/models")).status_code == 200
    async with dial(stack) as client:
        await client.send(json.dumps({"type": "ping"}))
        assert (await hear(client))["type"] == "pong"


@asynccontextmanager
async def slow_reader(stack: Stack) -> AsyncIterator[Peer]:
    """Asks for much, and has room for little of it."""
    async with narrow_peer(stack) as slow:
        await until(lambda: bool(stack.server.server_state.connections), "it is connected")
        for connection in stack.server.server_state.connections:
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        yield slow


async def reads_slowly(reader: asyncio.StreamReader) -> None:
    """A little now and then, until the gateway hangs up."""
    with suppress(ConnectionError):
        while not reader.at_eof():
            await reader.read(16)
            await asyncio.sleep(0.01)


async def test_silent_sockets_leave_tenants_their_places(redis_url: str) -> None:
    async with gateway(redis_url, max_connections=2) as stack, AsyncExitStack() as opened:
        for _ in range(5):
            await upgraded(await opened.enter_async_context(peer(stack)))
        await until(lambda: stack.runtime.edge.connections == 5, "they are served")
        await is_served(stack)


async def test_slow_readers_leave_tenants_their_places(redis_url: str) -> None:
    async with gateway(redis_url, max_connections=1) as stack, slow_reader(stack) as slow:
        async with asyncio.timeout(60):
            while not stack.runtime.edge.connections:
                await slow.say(DOCUMENT)
                await asyncio.sleep(0.05)
        await is_served(stack)


async def test_strangers_have_places_of_their_own(redis_url: str) -> None:
    async with gateway(redis_url, max_strangers=2) as stack, AsyncExitStack() as opened:
        for _ in range(2):
            await upgraded(await opened.enter_async_context(peer(stack)))
        await until(lambda: stack.runtime.edge.connections == 2, "they are served")
        async with dial(stack, key=None) as refused:
            assert (await hear(refused))["reason"] == "overloaded"
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
            full = await http.get("/docs")
            assert (full.status_code, full.json()["error"]["code"]) == (503, "overloaded")
            assert (await http.get("/healthz")).status_code == 200
        await is_served(stack)


async def test_a_stranger_that_shows_its_key_takes_a_tenants_place(redis_url: str) -> None:
    async with gateway(redis_url, max_connections=1, max_strangers=1) as stack:
        async with dial(stack, key=None) as client:
            await client.send(json.dumps({"type": "auth", "api_key": KEY}))
            await client.send(json.dumps({"type": "ping"}))
            assert (await hear(client))["type"] == "pong"
            async with dial(stack, key=None) as second:
                await second.send(json.dumps({"type": "auth", "api_key": KEY}))
                assert (await hear(second))["reason"] == "overloaded"
            async with of_tenant(stack) as http:
                assert (await http.get("/v1/models")).status_code == 503
        await until(lambda: stack.runtime.edge.connections == 0, "all have gone")
        await is_served(stack)


async def test_silent_sockets_give_way_to_new_connections(redis_url: str) -> None:
    async with gateway(redis_url, max_open_connections=3) as stack, AsyncExitStack() as opened:
        kept = await opened.enter_async_context(dial(stack))
        for _ in range(5):
            await upgraded(await opened.enter_async_context(peer(stack)))
        await is_served(stack)
        await kept.send(json.dumps({"type": "ping"}))
        assert (await hear(kept))["type"] == "pong", "who showed a key stays"


@pytest.mark.parametrize("says", [DOCUMENT, DOCUMENT * 8, DOCUMENT.replace(b"1.1", b"1.0")])
async def test_an_answer_without_a_key_has_a_deadline(redis_url: str, says: bytes) -> None:
    async with gateway(redis_url) as stack, slow_reader(stack) as slow:
        stack.server.config.strangers_timeout_s = 0.3
        await slow.say(says)
        reading = asyncio.ensure_future(reads_slowly(slow.reader))
        await until(lambda: not stack.server.server_state.connections, "nothing is left of it")
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_socket_without_a_key_has_a_deadline(redis_url: str) -> None:
    async with gateway(redis_url) as stack, peer(stack) as stranger:
        stack.server.config.strangers_timeout_s = 0.3
        await upgraded(stranger)
        assert await stranger.hear_all() == b"", "what it would be told it may read as slowly as it likes"


async def test_who_shows_a_key_has_none(redis_url: str) -> None:
    async with gateway(redis_url) as stack, of_tenant(stack) as http:
        stack.server.config.strangers_timeout_s = 0.3
        asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
        request = await stack.pipeline.next_request()
        async with dial(stack, key=None) as shows_it_late, peer(stack) as stranger:
            await shows_it_late.send(json.dumps({"type": "auth", "api_key": KEY}))
            await upgraded(stranger)
            await stranger.hear_all()
            await shows_it_late.send(json.dumps({"type": "ping"}))
            assert (await hear(shows_it_late))["type"] == "pong"
        stack.pipeline.start(request)
        stack.pipeline.release(request, 1, ["ok"])
        stack.pipeline.end(request, 2)
        assert (await asking).status_code == 200


def test_idle_connections_of_tenants_outlast_strangers() -> None:
    gone: list[str] = []

    counted = OpenConnections(4, 100)
    tenant, asks, silent, busy = (Named(name, gone) for name in ("tenant", "asks", "silent", "busy"))
    for connection in (tenant, asks, silent, busy):
        counted.opened(connection, "192.0.2.1")
    for connection in (tenant, busy):
        counted.admit(connection)
    for connection in (tenant, asks):
        counted.is_idle(connection)
    for _ in range(2):
        new = Named("new", gone)
        counted.opened(new, "192.0.2.1")
        counted.admit(new)
    assert gone == ["silent", "asks"]
    assert counted.opened(Silent(), "192.0.2.1")
    assert gone == ["silent", "asks", "tenant"]
    assert counted.opened(Silent(), "192.0.2.1"), "in place of the one before"


def test_who_comes_in_when_all_places_are_taken_is_not_put_out_by_who_comes_next() -> None:
    counted = OpenConnections(200, 1_000)
    gone: list[str] = []

    for _ in range(200):
        idle = Named("idle", gone)
        counted.opened(idle, "192.0.2.1")
        counted.admit(idle)
        counted.is_idle(idle)
    newcomers = [Named("newcomer", gone) for _ in range(20)]
    assert all(counted.opened(each, "192.0.2.2") for each in newcomers)
    assert gone == ["idle"] * 20
    for each in newcomers:
        counted.admit(each)
    gone.clear()
    for _ in range(100):
        counted.opened(Named("flood", gone), "192.0.2.3")
    assert gone.count("idle") == 21, "a tenth, and the one that made it more"
    assert gone.count("newcomer") == 0
