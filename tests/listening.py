"""Where processes listen, as the kernel tells it."""

import ipaddress
from collections.abc import Iterable

import psutil


def listens_beyond_loopback(pids: Iterable[int]) -> list[str]:
    """Which of these processes, or of those that they have started, can be reached from elsewhere, and where."""
    found, open_ports = [], 0
    for pid in pids:
        own = psutil.Process(pid)
        for process in (own, *own.children(recursive=True)):
            for connection in process.net_connections("inet"):
                if connection.status != psutil.CONN_LISTEN:
                    continue
                open_ports += 1
                if not _is_loopback(connection.laddr.ip):
                    found.append(f"{process.name()}: {connection.laddr.ip} {connection.laddr.port}")
    assert open_ports, "nothing listens at all"
    return found


def _is_loopback(address: str) -> bool:
    """A socket of both families tells IPv4 as IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
