"""What can be the address of a receiver, as far as that can be told from how it is written."""

import re
from ipaddress import ip_address

import httpx

MAX_URL_CHARS = 2_000
_MAX_PORT = 65_535
_KIND = re.compile(r"https?://[^/?#\s@]+(/[^#\s]*)?")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?")


def webhook_url(text: str) -> httpx.URL:
    """Its `raw_host` is an address or a name that can be looked up. Raises ValueError, which says nothing of its path:
    that may be a secret.
    """
    if len(text) > MAX_URL_CHARS or not _KIND.fullmatch(text):
        raise ValueError("no URL of the kind https://host/path")
    try:
        parsed = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise ValueError("no URL") from None
    if parsed.port is not None and not 0 < parsed.port <= _MAX_PORT:
        raise ValueError(f"its port is none: 1 to {_MAX_PORT}")
    if not _is_host(parsed.raw_host.decode()):
        raise ValueError("its host is neither a name nor an address")
    return parsed


def _is_host(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return _NAME.fullmatch(host) is not None
    return True
