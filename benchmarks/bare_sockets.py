"""Stands where a gateway stands, with nothing behind it: what its messages cost where nothing is done but to send them.

`python -m benchmarks.bare_sockets SOCKETS TOKENS_PER_S TOKENS_PER_MESSAGE` says on which port it listens. Once it is
told so on standard input, it says as much to as many sockets as a gateway would, in the same turns, from the same loop,
transport and WebSocket library, in the same words. Runs until somebody leaves.
"""

import asyncio
import sys
from asyncio.transports import BaseTransport, Transport
from time import monotonic, time_ns
from typing import cast

import uvloop
from orjson import dumps
from websockets.http11 import Request
from websockets.server import ServerProtocol

from benchmarks.ready_records import RECORDS_PER_S, WORD, rows_due
from streams.gateway.websocket.protocol import text_frame


class _Socket(asyncio.Protocol):
    """Shakes hands, and tells whoever says anything that its response has started."""

    transport: Transport

    def __init__(self, opened: "list[_Socket]", left: asyncio.Event) -> None:
        self._opened = opened
        self._left = left
        self._library = ServerProtocol()
        self._head = b""

    def connection_made(self, transport: BaseTransport) -> None:
        self.transport = cast(Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._library.receive_data(data)
        for event in self._library.events_received():
            if isinstance(event, Request):
                self._library.send_response(self._library.accept(event))
                self.transport.write(b"".join(self._library.data_to_send()))
            elif not self._head:
                response_id = f"resp_local-0_{len(self._opened):042d}"
                self._head = b'{"type":"delta","response_id":"%b","first_sequence":' % response_id.encode()
                self.transport.write(text_frame(dumps({"type": "started", "response_id": response_id})))
                self._opened.append(self)

    def eof_received(self) -> None:
        self._left.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self._left.set()

    def tell(self, first: int, tokens: int, emitted_at_us: int) -> None:
        told = b'%b%d,"sequence_number":%d,"choice":0,"kind":"content","emitted_at_us":%d,"text":%b}' % (
            self._head, first, first + tokens - 1, emitted_at_us, dumps(WORD * tokens),
        )  # fmt: skip
        self.transport.write(text_frame(told))


async def _serve(sockets: int, tokens_per_s: float, tokens: int) -> None:
    opened: list[_Socket] = []
    left = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Socket(opened, left), "127.0.0.1", 0, backlog=2_048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.readline)  # whoever measures says when
    rows_per_s = tokens_per_s * sockets / tokens
    began_s, record, written = monotonic(), 0, 0
    while not left.is_set():
        record += 1
        rows = rows_due(record, written, streams=sockets, rows_per_s=rows_per_s, tokens=tokens)
        emitted_at_us = time_ns() // 1_000
        for stream, first in rows:
            opened[stream].tell(first, tokens, emitted_at_us)
        written += len(rows)
        await asyncio.sleep(max(0.0, began_s + record / RECORDS_PER_S - monotonic()))


if __name__ == "__main__":
    sockets, tokens_per_s, tokens = sys.argv[1:]
    uvloop.run(_serve(int(sockets), float(tokens_per_s), int(tokens)))
