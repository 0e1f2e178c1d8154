"""A network that can be cut: a TCP relay in front of a server."""

import selectors
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """Passes bytes on in both directions, until `cut`; nothing while it is `down`."""

    def __init__(self, url: str) -> None:
        self._target = url
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_down = threading.Event()
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                if not relay._is_down.is_set():
                    relay.serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def serve(self, client: socket.socket) -> None:
        """One connection, to its end."""
        with self.dial(self._target) as upstream:
            self.pass_on(client, upstream)

    @staticmethod
    def dial(url: str) -> socket.socket:
        """Raises OSError."""
        target = urlsplit(url)
        return socket.create_connection((target.hostname, target.port), timeout=10)

    def pass_on(self, client: socket.socket, upstream: socket.socket) -> None:
        """Until either end closes."""
        ends = {client, upstream}
        with self._lock:
            self._open |= ends
        try:
            with selectors.DefaultSelector() as selector:
                for end in ends:
                    selector.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in selector.select():
                        source, sink = (client, upstream) if key.fileobj is client else (upstream, client)
                        if not (data := source.recv(65_536)):
                            return
                        sink.sendall(data)
        except OSError:
            return  # cut, or closed by one end
        finally:
            with self._lock:
                self._open -= ends

    def cut(self) -> int:
        """Ends every connection at once; new ones are possible. Returns how many there were."""
        with self._lock:
            ends = list(self._open)
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its other end was quicker
        return len(ends) // 2

    @contextmanager
    def down(self) -> Iterator[int]:
        """Every connection ends at once, and new ones end as they begin. Gives how many there were."""
        self._is_down.set()
        try:
            yield self.cut()
        finally:
            self._is_down.clear()

    @contextmanager
    def running(self) -> Iterator[Self]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self.cut()
            self._server.server_close()
            thread.join()
