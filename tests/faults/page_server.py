"""A page's own server before several gateways: it gives the page, and has the key that no page may have."""

import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from tests.e2e.relay import Relay

ANY = "any"


class PageServer(Relay):
    """`/` is the page. `/PLACE/…` is passed on as `/…`, with the key: to the gateway whose place that is, or for `any`
    to the next one that can be reached. Where none can, and where one breaks off, so does the connection.
    """

    def __init__(self, page: str, key: str, urls: Sequence[str]) -> None:
        super().__init__(urls[0])
        self._page = page.encode()
        self._key = key
        self._urls = urls
        self._turns = itertools.count()

    @staticmethod
    def place(url: str) -> str:
        """Of a gateway, also of one that was added."""
        return str(urlsplit(url).port)

    def serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            if head := _head(client):
                self._answer(client, head)

    def _answer(self, client: socket.socket, head: list[str]) -> None:
        method, target, version = head[0].split(" ")
        _, place, *rest = target.split("/", 2)
        if not place:
            about = f"content-type: text/html\r\ncontent-length: {len(self._page)}\r\nconnection: close"
            client.sendall(f"HTTP/1.1 200 OK\r\n{about}\r\n\r\n".encode() + self._page)
            return
        # One request for each connection: what follows the first is passed on as it is.
        kept = [line for line in head[1:] if not line.lower().startswith("connection:")]
        added = [f"authorization: Bearer {self._key}", "connection: close"]
        passed_on = "\r\n".join([f"{method} /{''.join(rest)} {version}", *kept, *added, "", ""]).encode()
        for url in self._gateways(place):
            with suppress(OSError), self.dial(url) as upstream:
                upstream.sendall(passed_on)
                self.pass_on(client, upstream)
                return

    def _gateways(self, place: str) -> Iterator[str]:
        if place != ANY:
            yield f"http://127.0.0.1:{int(place)}"
            return
        turn = next(self._turns)
        for number in range(len(self._urls)):
            yield self._urls[(turn + number) % len(self._urls)]


def _head(client: socket.socket) -> list[str]:
    """The lines of a request without a body; none where the browser only prepared a connection."""
    read = b""
    while not read.endswith(b"\r\n\r\n"):
        if not (more := client.recv(65_536)):
            return []
        read += more
    return read.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
