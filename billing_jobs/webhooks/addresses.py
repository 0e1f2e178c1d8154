"""Where a message may go. A tenant's address is somebody else's word: it leads out of here, or nowhere. Pure, but for
`resolve`.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpx

_OF_IPV4 = IPv6Network("64:ff9b::/96")
"""Addresses of a gateway to the other protocol: the last 32 bits are where it leads (RFC 6052)."""
_MAX_URL_CHARS = 2_000


class Forbidden(Exception):
    """An address that nothing is sent to; the message says why, without the address's path."""


@dataclass(frozen=True, slots=True)
class Target:
    """Who is told, and where. `tenant_id` is empty of the operator, whose addresses are believed."""

    tenant_id: str
    url: str

    @property
    def name(self) -> str:
        """For logs: no path and no query, which may hold a secret."""
        return f"{self.tenant_id or 'operator'}@{httpx.URL(self.url).host}"


def check_url(url: str, *, is_open: bool) -> httpx.URL:
    """`is_open`: without TLS too. Raises Forbidden."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise Forbidden("it is no URL") from None
    if parsed.scheme not in ("https", "http") or not parsed.host or len(url) > _MAX_URL_CHARS or parsed.userinfo:
        raise Forbidden("it is no URL of the kind https://host/path")
    if parsed.scheme == "http" and not is_open:
        raise Forbidden("without TLS")
    return parsed


def leads_out(address: str) -> bool:
    """Whether it is of the public internet, whatever it is wrapped in."""
    found = ip_address(address.partition("%")[0])
    within = _within(found) if isinstance(found, IPv6Address) else None
    return _is_public(found) and (within is None or _is_public(within))


def _within(address: IPv6Address) -> IPv4Address | None:
    if address in _OF_IPV4:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    return address.is_global and not address.is_multicast


async def resolve(url: httpx.URL, *, is_open: bool) -> str:
    """The address to connect to, which is not looked up a second time: a name may lead elsewhere by then. Raises
    Forbidden, OSError.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    if not addresses or not (is_open or all(map(leads_out, addresses))):
        raise Forbidden("it leads to a machine or network of ours")
    return addresses[0]
