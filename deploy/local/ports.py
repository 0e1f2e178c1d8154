"""TCP ports on loopback: free ones, and who holds one that is taken."""

import errno
import random
import socket
from collections.abc import Collection, Iterator

import psutil

# Below Linux's range for outgoing connections (32768 and up). A client that retries a dead server's port inside that
# range may be given the very same port as its own, connect to itself, and keep the server from coming back.
FIRST_PORT, LAST_PORT = 20_000, 32_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now. Raises OSError for a host that is not one of this machine's."""
    family, _, _, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def free_ports(rng: random.Random, taken: Collection[int] = ()) -> Iterator[int]:
    """Different free ports, without end until the range is used up. Raises RuntimeError then."""
    ports = list(range(FIRST_PORT, LAST_PORT))
    rng.shuffle(ports)
    for port in ports:
        if port not in taken and is_free(port):
            yield port
    raise RuntimeError(f"no free port between {FIRST_PORT} and {LAST_PORT}")


def owner(port: int) -> str:
    """`name (pid n)` of who listens there, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return "another process"
    return "another process"
