"""Where a message may go. A tenant's address is somebody else's word: it leads out of here, or nowhere. Pure, but for
`resolve`.
"""

import asyncio
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

from streams.webhook_urls import webhook_url

_OF_IPV4 = IPv6Network("64:ff9b::/96")
"""Addresses of a gateway to the other protocol: the last 32 bits are where it leads (RFC 6052)."""
_INTERNET = IPv6Network("2000::/3")
"""All that is assigned of it. What else may hold an address of the other protocol (`::/96`, `::ffff:0:0/96`,
`::ffff:0:0:0/96`, `64:ff9b:1::/48`) is of a machine or a network, wherever it leads.
"""
_INSIDE = (
    IPv4Network("192.0.0.0/24"),  # protocols' own (RFC 6890): of the nearest network
    IPv4Network("168.63.129.16/32"),  # the host of a machine in Azure
    IPv6Network("3fff::/20"),  # for documents (RFC 9637)
)
"""What Python's registry takes for public and is not."""


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
        try:
            host = webhook_url(self.url).raw_host.decode()
        except ValueError:
            host = "?"
        return f"{self.tenant_id or 'operator'}@{host}"


def check_url(url: str, *, is_open: bool) -> httpx.URL:
    """`is_open`: without TLS too. Raises Forbidden."""
    try:
        parsed = webhook_url(url)
    except ValueError as error:
        raise Forbidden(str(error)) from None
    if parsed.scheme == "http" and not is_open:
        raise Forbidden("without TLS")
    return parsed


def leads_out(address: str) -> bool:
    """Whether it is of the public internet, whatever it is wrapped in."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return _is_public(found)
    if found in _OF_IPV4:
        return _is_public(IPv4Address(int(found) & 0xFFFF_FFFF))
    within = found.sixtofour
    return found in _INTERNET and _is_public(found) and (within is None or _is_public(within))


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    return address.is_global and not address.is_multicast and not any(address in network for network in _INSIDE)


async def resolve(url: httpx.URL, *, is_open: bool) -> str:
    """The address to connect to, which is not looked up a second time: a name may lead elsewhere by then. Raises
    Forbidden, OSError.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode()  # as the message names it: `url.host` would be encoded anew, by an older standard
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    if not addresses or not (is_open or all(map(leads_out, addresses))):
        raise Forbidden("it leads to a machine or network of ours")
    return addresses[0]
