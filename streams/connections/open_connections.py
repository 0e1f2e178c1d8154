"""How many connections a gateway holds open, idle ones too: bounded in all, and of each address."""

import ipaddress
from collections import Counter
from collections.abc import Collection
from typing import Protocol

from uvicorn.middleware.proxy_headers import _TrustedHosts


class Abortable(Protocol):
    def abort(self) -> None: ...


class OpenConnections:
    """Counts connections. A new one takes the place of the longest idle when there is no room.

    Addresses in `trusted_proxies` (or in networks there) stand for many peers: only the bound of all holds for them.
    """

    def __init__(self, most: int, most_per_peer: int, trusted_proxies: Collection[str] = ()) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._trusted = _TrustedHosts(list(trusted_proxies))
        """uvicorn's own: who is believed about its peers is who has many."""
        self._peers: dict[Abortable, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._idle: dict[Abortable, None] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def opened(self, connection: Abortable, address: str) -> bool:
        """Whether it may stay; it counts, and is idle, if so."""
        address = _as_it_was(address)
        peer = _peer_of(address)
        if address not in self._trusted and self._of_peer[peer] >= self._most_per_peer:
            return False
        if len(self._peers) >= self._most:
            longest_idle = next(iter(self._idle), None)
            if longest_idle is None:
                return False
            self.closed(longest_idle)
            longest_idle.abort()
        self._peers[connection] = peer
        self._of_peer[peer] += 1
        self._idle[connection] = None
        return True

    def is_busy(self, connection: Abortable) -> None:
        """It carries a request, or is a WebSocket."""
        self._idle.pop(connection, None)

    def is_idle(self, connection: Abortable) -> None:
        if connection in self._peers:
            self._idle[connection] = None

    def closed(self, connection: Abortable) -> None:
        """Idempotent."""
        self._idle.pop(connection, None)
        if (peer := self._peers.pop(connection, None)) is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]


def _as_it_was(address: str) -> str:
    """A socket that takes both families writes IPv4 as IPv6: all of it lies in one /64."""
    if not address.lower().startswith("::ffff:"):
        return address
    try:
        mapped = ipaddress.IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def _peer_of(address: str) -> str:
    """Who holds one address of a /64 of IPv6 holds all of them."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
