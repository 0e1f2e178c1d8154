"""Nothing that a client sends is unpacked, so nothing swells: no body in any encoding, at any route, and no message."""

import gzip
import zlib
from typing import Final

import pytest
from websockets.asyncio.client import connect

from tests.unit.streams.gateway.all_routes import address, routes_of
from tests.unit.streams.gateway.gateway_stack import KEY, Stack
from tests.unit.streams.gateway.http_clients import client
from tests.unit.streams.gateway.raw_peers import UPGRADE, peer, upgraded
from tests.unit.streams.gateway.test_cross_site import ANY

BOMB: Final = gzip.compress(b'{"model": "' + b" " * 50_000_000 + b'"}')
ENCODINGS: Final = (
    "gzip", "x-gzip", "GZIP", "deflate", "br", "zstd", "compress", "lz4", "identity, gzip", "gzip, identity",
    "gzip,gzip", "unheard-of",
)  # fmt: skip
KEYED: Final = b"Authorization: Bearer " + KEY.encode() + b"\r\n"


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_no_route_takes_a_packed_body(stack: Stack, encoding: str) -> None:
    async with client(stack) as http:
        takers = [route for route in routes_of(stack) if route.takes_json or route.path == "/v1/files"]
        for route in takers:
            if route.method != "POST":
                continue
            kind = "application/json" if route.takes_json else "multipart/form-data; boundary=b"
            headers = {"content-type": kind, "content-encoding": encoding}
            answer = await http.post(address(route, ANY), content=BOMB, headers=headers)
            assert answer.status_code == 415, (route, answer.text)


async def test_no_socket_agrees_to_pack_its_messages(stack: Stack) -> None:
    offered = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits, x-webkit-deflate-frame\r\n"
    async with peer(stack) as stranger:
        await stranger.say(UPGRADE + KEYED + offered + b"\r\n")
        told = (await stranger.hear()).lower()
    assert told.startswith(b"http/1.1 101")
    assert b"sec-websocket-extensions" not in told
    async with connect(stack.websocket_url, additional_headers={"x-api-key": KEY}, proxy=None) as socket:
        assert socket.protocol.extensions == []


async def test_a_packed_message_that_nobody_agreed_to_ends_its_socket_unread(stack: Stack) -> None:
    packed = zlib.compress(b" " * 10_000_000)[2:-4][:100]
    async with peer(stack) as stranger:
        await upgraded(stranger, KEYED)
        await stranger.say(b"\xc1" + bytes([0x80 | len(packed)]) + b"\0\0\0\0" + packed)
        told = await stranger.hear_all()
    assert (1_002).to_bytes(2, "big") in told, "a protocol error"
    assert stack.pipeline.requests() == []
