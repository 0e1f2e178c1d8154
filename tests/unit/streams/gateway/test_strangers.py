"""A peer without a key can neither hold nor make grow anything unbounded: every case, on real sockets."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack

import httpx
import pytest
from websockets.asyncio.client import connect

from streams.connections.open_connections import OpenConnections
from streams.gateway.websocket.protocol import StreamProtocol
from tests.unit.streams.gateway.gateway_stack import KEY, Stack, gateway_settings, memory_log, serving, until
from tests.unit.streams.gateway.raw_peers import (
    UPGRADE,
    Peer,
    Silent,
    buffered,
    deaf_peer,
    masked,
    peer,
    saying,
    status_of,
    upgraded,
)

HEAD_LIMIT = 65_536


async def healthy(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.get("/healthz")).text == "ok"


# Heads


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 50_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200_000,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * (HEAD_LIMIT + 1) + b"\r\n\r\n",
        UPGRADE + b"Cookie: " + b"a" * 9_000 + b"\r\n\r\n",
        UPGRADE + b"a: b\r\n" * 200 + b"\r\n",
    ],
    ids=[
        "one value",
        "path",
        "endless lines",
        "many lines",
        "complete",
        "cookie of a handshake",
        "lines of a handshake",
    ],
)
async def test_a_head_is_bounded_and_its_sender_is_told(stack: Stack, head: bytes) -> None:
    async with peer(stack) as stranger:
        async with saying(stranger, head):
            told = await stranger.hear_all()
        assert status_of(told) == 431
    await until(lambda: not stack.server.server_state.connections, "nothing is left of it")
    await healthy(stack)


async def test_a_head_that_fits_is_read_however_it_is_cut(stack: Stack) -> None:
    async with peer(stack) as stranger:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n"
        for start in range(0, len(head), 7_000):
            await stranger.say(head[start : start + 7_000])
        assert (await stranger.hear_all()).endswith(b"ok")


@pytest.mark.parametrize(
    ("before", "status"),
    [
        (b"", None),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", 408),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he", 408),
    ],
    ids=["silent", "half a head", "half a second head"],
)
async def test_a_head_has_a_deadline(redis_url: str, before: bytes, status: int | None) -> None:
    settings = gateway_settings(redis_url, "slowhead", head_timeout_ms=100)
    async with serving(settings, memory_log(settings)) as stack, peer(stack) as stranger:
        await stranger.say(before)
        told = await stranger.hear_all()
        told = told.partition(b"ok")[2] or told
        assert (status_of(told) if told else None) == status


async def test_a_trickle_puts_no_deadline_off(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "trickle", head_timeout_ms=300)
    async with serving(settings, memory_log(settings)) as stack, peer(stack) as stranger:
        hearing = asyncio.ensure_future(stranger.hear_all())
        await stranger.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ")
        async with asyncio.timeout(60):
            while not hearing.done():
                await stranger.say(b"a")
                await asyncio.sleep(0.02)
        assert status_of(await hearing) == 408


async def test_a_body_that_trickles_on_after_its_answer_has_a_deadline(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = gateway_settings(redis_url, "lateboby", head_timeout_ms=100)
    monkeypatch.setattr("streams.connections.http_protocol.KEEP_ALIVE_S", 0.2)
    async with serving(settings, memory_log(settings)) as stack, peer(stack) as stranger:
        hearing = asyncio.ensure_future(stranger.hear_all())
        await stranger.say(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        async with asyncio.timeout(60):
            while not hearing.done():
                await stranger.say(b" ")
                await asyncio.sleep(0.02)
        assert status_of(await hearing) == 401


async def test_a_burst_of_pipelined_requests_is_bounded(stack: Stack) -> None:
    async with peer(stack) as stranger:
        await stranger.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5_000)
        told = await stranger.hear_all()
        assert told.count(b"HTTP/1.1 200") < 100
    async with peer(stack) as client:
        await client.say(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
        for _ in range(4):
            assert (await client.hear(b"ok")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "line", [b"CONNECT gateway:443 HTTP/1.1\r\n", b"CONNECT / HTTP/1.1\r\n", b"nonsense\r\n", b"GET / HTTP/9.9\r\n"]
)
async def test_nonsense_is_refused(stack: Stack, line: bytes) -> None:
    async with peer(stack) as stranger:
        await stranger.say(line + b"Host: x\r\n\r\n")
        assert status_of(await stranger.hear_all()) == 400


@pytest.mark.parametrize(
    "trailer",
    [b"X-Long: " + b"a" * 20_000_000, b"X-Name" + b"a" * 20_000_000, b"a: b\r\n" * 200_000],
    ids=["value", "name", "lines"],
)
async def test_what_follows_a_body_is_bounded_as_what_precedes_it(stack: Stack, trailer: bytes) -> None:
    async with peer(stack) as stranger:
        await stranger.say(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        assert status_of(await stranger.hear()) == 401
        async with saying(stranger, trailer):
            assert b"HTTP/1.1" not in await stranger.hear_all(), "it has its answer"
    await until(lambda: not stack.server.server_state.connections, "nothing is left of it")
    await healthy(stack)


# Connections


async def test_who_says_nothing_gives_way_to_who_does(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "silent", max_open_connections=4)
    async with serving(settings, memory_log(settings)) as stack, AsyncExitStack() as opened:
        silent = [await opened.enter_async_context(peer(stack)) for _ in range(6)]
        await until(lambda: len(stack.server.server_state.connections) == 4, "four are left")
        await healthy(stack)
        assert await silent[0].hear_all() == b"", "the longest idle has gone"
        assert len(stack.server.server_state.connections) <= 4


async def test_a_gateway_of_busy_connections_refuses_the_next(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "busy", max_open_connections=2)
    async with serving(settings, memory_log(settings)) as stack, AsyncExitStack() as opened:
        for _ in range(2):
            await opened.enter_async_context(
                connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None)
            )
        async with peer(stack) as refused:
            told = await refused.hear_all()
            assert status_of(told) == 503
            assert b"retry-after: " in told.lower()


async def test_one_address_holds_its_part_of_all_connections(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "crowd", max_connections_per_peer=3, trusted_proxies=[])
    async with serving(settings, memory_log(settings)) as stack:
        async with AsyncExitStack() as opened:
            for _ in range(3):
                await opened.enter_async_context(peer(stack))
            async with peer(stack) as refused:
                assert status_of(await refused.hear_all()) == 503
        await until(lambda: not stack.server.server_state.connections, "all have gone")
        await healthy(stack)


def test_peers_of_ipv4_on_a_socket_of_both_families_are_told_apart() -> None:
    counted = OpenConnections(100, 2)
    assert [counted.opened(Silent(), f"::ffff:192.0.2.{number // 2}") for number in range(8)] == [True] * 8
    assert not counted.opened(Silent(), "192.0.2.1")
    assert not counted.opened(Silent(), "::ffff:192.0.2.1")


@pytest.mark.parametrize("trusted", ["10.1.0.0/16", "10.1.2.3", "*"])
@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_proxy_is_trusted_by_address_or_network(trusted: str, address: str) -> None:
    counted = OpenConnections(100, 2, [trusted])
    assert all(counted.opened(Silent(), address) for _ in range(10))


async def test_a_trusted_proxy_holds_as_many_as_there_are(redis_url: str) -> None:
    settings = gateway_settings(redis_url, "proxy", max_connections_per_peer=3)
    async with serving(settings, memory_log(settings)) as stack, AsyncExitStack() as opened:
        for _ in range(5):
            await opened.enter_async_context(peer(stack))
        await healthy(stack)


async def test_an_upgrade_amid_an_answer_leaves_nothing_behind(stack: Stack) -> None:
    """The answer that nobody takes would wait for a connection that is no longer its own."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.connect(("127.0.0.1", stack.port))
    reader, writer = await asyncio.open_connection(sock=deaf, limit=1_024)
    stranger = Peer(reader, writer)
    await until(lambda: bool(stack.server.server_state.connections), "it is connected")
    [connection] = stack.server.server_state.connections
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    async with asyncio.timeout(60):
        while not stack.runtime.edge.connections:
            await stranger.say(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.05)
    await stranger.say(UPGRADE + b"\r\n")
    connections = stack.server.server_state.connections
    await until(lambda: connection.transport.is_closing() or connection not in connections, "it was read")
    writer.transport.abort()
    await until(lambda: not stack.server.server_state.connections, "the connection has gone")
    await until(lambda: not stack.runtime.edge.connections, "nothing is served any more")


# WebSockets


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (UPGRADE.replace(b"GET", b"POST") + b"\r\n", 405),
        (UPGRADE.replace(b"Version: 13", b"Version: 7") + b"\r\n", 400),
        (UPGRADE.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"A") + b"\r\n", 400),
    ],
    ids=["method", "version", "key"],
)
async def test_a_handshake_that_fails_is_answered_and_counted(stack: Stack, head: bytes, status: int) -> None:
    async with peer(stack) as stranger:
        await stranger.say(head)
        assert status_of(await stranger.hear_all()) == status
    await until(lambda: not stack.server.server_state.connections, "nothing is left of it")


async def test_pings_without_reading_make_no_pile_of_pongs(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.gateway.tenant_shares.SMALL_MESSAGES_PER_S", 1_000_000)
    async with deaf_peer(stack) as stranger, saying(stranger, masked(0x9, b"p" * 125) * 100_000) as pinging:
        most = 0
        for _ in range(100):
            await asyncio.sleep(0.01)
            most = max(most, buffered(stack))
            if pinging.done():
                break
        assert 0 < most < 300_000


async def test_a_peer_that_pings_and_never_reads_is_cut_off(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.gateway.tenant_shares.SMALL_MESSAGES_PER_S", 1_000_000)
    settings = gateway_settings(redis_url, "deafping", viewer_stall_ms=1_500)
    async with serving(settings, memory_log(settings)) as stack, deaf_peer(stack) as stranger:
        [connection] = stack.server.server_state.connections
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        # Enough that some of the pongs are held here, and too little for the gateway to stop listening.
        async with asyncio.timeout(60):
            while stack.server.server_state.connections:
                await stranger.say(masked(0x9, b"p") if buffered(stack) else masked(0x9, b"p" * 125) * 20)
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("way", ["one frame", "fragments", "empty fragments"])
async def test_a_message_without_a_key_is_small(stack: Stack, way: str) -> None:
    piece = b"x" if way == "fragments" else b""
    message = masked(0x1, piece, fin=False) + masked(0x0, piece, fin=False) * 30_000
    if way == "one frame":
        message = b"\x81\xff" + struct.pack(">Q", 100_000) + b"\0\0\0\0" + b"x" * 100
    async with peer(stack) as stranger:
        await upgraded(stranger)
        async with saying(stranger, message):
            told = await stranger.hear_all()
    assert b'"too_large"' in told
    assert int.from_bytes(told[told.rindex(b"\x88") + 2 :][:2], "big") == 1009


async def test_fragments_are_bounded_for_who_has_a_key_too(stack: Stack) -> None:
    async with peer(stack) as client:
        await upgraded(client, b"Authorization: Bearer " + KEY.encode() + b"\r\n")
        async with saying(client, masked(0x1, b"", fin=False) + masked(0x0, b"", fin=False) * 30_000):
            assert b'"too_large"' in await client.hear_all()


async def test_a_large_message_in_fragments_is_read_when_the_key_is_known(stack: Stack) -> None:
    message = json.dumps({"type": "ping", "nonce": "n", "padding": "x" * 100_000})
    async with connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None) as client:
        await client.send([message[i : i + 100] for i in range(0, len(message), 100)])
        async with asyncio.timeout(60):
            assert json.loads(await client.recv())["error"]["code"] == "unsupported_parameter"


async def test_a_burst_of_messages_waits_in_few_bytes(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a key may send faster than the gateway answers: the rest waits unparsed."""
    monkeypatch.setattr("streams.gateway.tenant_shares.SMALL_MESSAGES_PER_S", 1_000_000)
    async with deaf_peer(stack) as client:
        [connection] = stack.server.server_state.connections
        assert isinstance(connection, StreamProtocol)
        async with saying(client, masked(0x1, b'{"type":"ping"}') * 50_000):
            most = 0
            for _ in range(2_000):
                most = max(most, connection.queue.qsize())
                await asyncio.sleep(0)
        assert 0 < most < 2_000


# Ids


@pytest.mark.parametrize("size", [300, 3_900_000])
async def test_a_request_id_that_is_too_long_is_not_echoed(stack: Stack, size: int) -> None:
    message = json.dumps({"type": "request", "request_id": "r" * size, "body": {}})
    async with connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None, max_size=None) as client:
        await client.send(message)
        async with asyncio.timeout(60):
            told = await client.recv()
        assert (json.loads(told)["error"]["param"], json.loads(told)["request_id"]) == ("request_id", None)
        assert len(told) < 1_000


@pytest.mark.parametrize(
    "ask",
    [
        lambda http: http.get("/v1/responses/" + "x" * 30_000),
        lambda http: http.get("/v1/models/" + "x" * 30_000),
        lambda http: http.get("/" + "x" * 30_000),
        lambda http: http.get("/v1/usage?org_id=" + "x" * 30_000),
    ],
    ids=["response", "model", "path", "organisation"],
)
async def test_a_name_that_is_too_long_is_not_echoed(
    stack: Stack, ask: Callable[[httpx.AsyncClient], asyncio.Future[httpx.Response]]
) -> None:
    async with httpx.AsyncClient(base_url=stack.url, headers={"x-api-key": KEY}, trust_env=False) as http:
        answer = await ask(http)
    assert answer.status_code == 404
    assert len(answer.content) < 1_000
