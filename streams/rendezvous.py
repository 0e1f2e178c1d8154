"""Who of several has a key, with no table of that: rendezvous hashing (Thaler and Ravishankar, 1998). Pure."""

import hashlib


def score(key: str, name: str) -> tuple[bytes, str]:
    """Of several names the one with the greatest has the key. One that comes or goes moves its own keys alone."""
    return hashlib.blake2b(f"{key} {name}".encode(), digest_size=8).digest(), name
