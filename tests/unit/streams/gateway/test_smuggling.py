"""A request that two servers in a row could take for two different ones is refused, and its connection ends: nothing
that it hides is answered. Billing's servers read with the same protocol.
"""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from billing_jobs.metrics import BillingMetrics
from billing_jobs.server_config import ServerConfig as BillingServerConfig
from streams.connections.http_protocol import HttpProtocol
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.raw_peers import peer, status_of

HIDDEN = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
"""Its answer is like no other."""
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def post(*headers: bytes, version: bytes = b"1.1") -> bytes:
    """A head without its last line's end."""
    return b"POST /v1/models HTTP/" + version + b"\r\nHost: x\r\n" + b"".join(headers)


UNCLEAR = {
    "a length beside chunks": post(b"Content-Length: 4\r\n", CHUNKED) + b"\r\n0\r\n\r\n",
    "chunks beside a length": post(CHUNKED, b"Content-Length: 4\r\n") + b"\r\n0\r\n\r\n",
    "two lengths": post(b"Content-Length: 0\r\n", b"Content-Length: 35\r\n") + b"\r\n",
    "one length twice": post(b"Content-Length: 0\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "a list of lengths": post(b"Content-Length: 0, 0\r\n") + b"\r\n",
    "a length with a sign": post(b"Content-Length: +0\r\n") + b"\r\n",
    "a length below zero": post(b"Content-Length: -1\r\n") + b"\r\n",
    "a length in hex": post(b"Content-Length: 0x0\r\n") + b"\r\n",
    "a length without end": post(b"Content-Length: 99999999999999999999\r\n") + b"\r\n",
    "an encoding that is none": post(b"Transfer-Encoding: xchunked\r\n") + b"\r\n0\r\n\r\n",
    "chunks that are not last": post(b"Transfer-Encoding: chunked, identity\r\n") + b"\r\n0\r\n\r\n",
    "an encoding behind a tab that is none": post(b"Transfer-Encoding:\x0bchunked\r\n") + b"\r\n0\r\n\r\n",
    "a blank before the colon": post(b"Transfer-Encoding : chunked\r\n") + b"\r\n0\r\n\r\n",
    "a header that goes on in the next line": post(b"Transfer-Encoding:\r\n chunked\r\n") + b"\r\n0\r\n\r\n",
    "a header after a line feed alone": post(b"X: a\nContent-Length: 0\r\n") + b"\r\n",
    "a carriage return within a header": post(b"X: a\rContent-Length: 0\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "a zero byte within a header": post(b"X: a\0b\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "a header without a name": post(b": a\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "a chunk whose size is too large for it": post(CHUNKED) + b"\r\nfffffffffffffffff\r\n",
    "a chunk in hex with its mark": post(CHUNKED) + b"\r\n0x0\r\n\r\n",
    "a chunk whose end is no line": post(CHUNKED) + b"\r\n1\r\nabc0\r\n\r\n",
    "two hosts": post(b"Host: y\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "one host twice": post(b"Host: x\r\n", b"Content-Length: 0\r\n") + b"\r\n",
    "no host": b"POST /v1/models HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "a list of hosts": b"POST /v1/models HTTP/1.1\r\nHost: x, y\r\nContent-Length: 0\r\n\r\n",
    "a host with a path": b"POST /v1/models HTTP/1.1\r\nHost: x/y\r\nContent-Length: 0\r\n\r\n",
    "a host with a user": b"POST /v1/models HTTP/1.1\r\nHost: a@x\r\nContent-Length: 0\r\n\r\n",
    "two hosts in an old version": post(b"Host: y\r\n", b"Content-Length: 0\r\n", version=b"1.0") + b"\r\n",
}


@pytest.mark.parametrize("unclear", UNCLEAR.values(), ids=UNCLEAR)
async def test_what_could_be_two_requests_is_refused_and_what_it_hides_is_not_answered(
    stack: Stack, unclear: bytes
) -> None:
    async with peer(stack) as stranger:
        await stranger.say(unclear + HIDDEN)
        told = await stranger.hear_all()
    assert b'"version"' not in told
    assert status_of(told) == 400
    assert told.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("pieces", [1, 3, 40])
async def test_what_is_clear_is_answered_in_turn_however_it_is_cut(stack: Stack, pieces: int) -> None:
    """Else the refusals above would show nothing."""
    clear = post(CHUNKED) + b"\r\n2;a=b\r\n{}\r\n0\r\nX-Trailer: a\r\n\r\n" + HIDDEN
    clear += b"GET /version HTTP/1.1\r\nHost: [::1]:8080\r\nConnection: close\r\n\r\n"
    async with peer(stack) as stranger:
        size = -(-len(clear) // pieces)
        for begin in range(0, len(clear), size):
            await stranger.say(clear[begin : begin + size])
            await asyncio.sleep(0)
        told = await stranger.hear_all()
    assert told.count(b"HTTP/1.1 200") == told.count(b'"version"') == 2
    assert told.count(b"HTTP/1.1 405") == 1


async def test_a_client_of_before_hosts_needs_none(stack: Stack) -> None:
    async with peer(stack) as stranger:
        await stranger.say(b"GET /version HTTP/1.0\r\n\r\n")
        assert status_of(await stranger.hear_all()) == 200


@pytest.mark.parametrize("headers", [b"Host: y\r\n", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"])
async def test_so_is_a_handshake(stack: Stack, headers: bytes) -> None:
    handshake = (
        b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    async with peer(stack) as stranger:
        await stranger.say(handshake + headers + b"\r\n")
        assert status_of(await stranger.hear_all()) == 400


def test_billing_reads_so() -> None:
    config = BillingServerConfig(Starlette(), "127.0.0.1", 0, BillingMetrics(CollectorRegistry()))
    assert config.http is HttpProtocol
