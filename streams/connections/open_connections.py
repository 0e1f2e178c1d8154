"""How many connections a gateway holds open, idle ones too: bounded in all, and of each address."""

import ipaddress
from collections import Counter
from collections.abc import Collection
from itertools import chain
from typing import Final, Protocol

from starlette.types import Scope
from uvicorn.middleware.proxy_headers import _TrustedHosts

STRANGERS_SHARE = 10
"""Strangers take the places of idle tenants up to this part of all places."""


class Abortable(Protocol):
    def abort(self) -> None: ...


CONNECTION: Final = "sluice.connection"
"""In the scope's `extensions`: the connection that brought the request."""


def admit(scope: Scope) -> None:
    """To be called by an application once it knows the key that a request showed: its connection stays."""
    if (connection := scope.get("extensions", {}).get(CONNECTION)) is not None:
        connection.admit()


class OpenConnections:
    """Counts connections. When there is no room a new one takes the place of another: of the longest idle of those that
    showed a key; but of the stranger that has been there, or has not been answered, for the longest, where there is
    none, or where strangers are more than a tenth of all.

    Addresses in `trusted_proxies` (or in networks there) stand for many peers: only the bound of all holds for them.
    """

    def __init__(self, most: int, most_per_peer: int, trusted_proxies: Collection[str] = ()) -> None:
        self._most = most
        self._most_per_peer = most_per_peer
        self._trusted = _TrustedHosts(list(trusted_proxies))
        """uvicorn's own: who is believed about its peers is who has many."""
        self._peers: dict[Abortable, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._strangers: dict[Abortable, None] = {}
        self._idle: dict[Abortable, None] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def opened(self, connection: Abortable, address: str) -> bool:
        """Whether it may stay; it counts, as a stranger, if so."""
        address = _as_it_was(address)
        peer = _peer_of(address)
        if address not in self._trusted and self._of_peer[peer] >= self._most_per_peer:
            return False
        if len(self._peers) >= self._most:
            # Who comes in is a stranger for a moment: few of them must not put each other out.
            are_many = len(self._strangers) > self._most // STRANGERS_SHARE
            in_turn = (self._strangers, self._idle) if are_many else (self._idle, self._strangers)
            gives_way = next(chain(*in_turn), None)
            if gives_way is None:
                return False
            self.closed(gives_way)
            gives_way.abort()
        self._peers[connection] = peer
        self._of_peer[peer] += 1
        self._strangers[connection] = None
        return True

    def admit(self, connection: Abortable) -> None:
        """It carries what a known key asks, and gives way to nobody until it is idle."""
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)

    def is_idle(self, connection: Abortable) -> None:
        """What it carried is answered."""
        if connection in self._peers:
            waits_among = self._strangers if connection in self._strangers else self._idle
            waits_among.pop(connection, None)
            waits_among[connection] = None

    def closed(self, connection: Abortable) -> None:
        """Idempotent."""
        self._strangers.pop(connection, None)
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
