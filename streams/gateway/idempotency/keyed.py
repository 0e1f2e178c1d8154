"""A request that has a key: what about it must be the same when it comes again. Pure."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from streams.dialects.neutral import NeutralRequest

CHATS: Final = "chat/completions"
"""The path of chats, also of those that a socket asks for."""
HOW_TOLD: Final = frozenset(("stream", "stream_options"))
"""Fields that change how an answer is told, and not the answer: whoever comes back may choose anew."""

_Asked = TypeVar("_Asked", bound=NeutralRequest)


class Keyed(NamedTuple):
    """A client's key, and the digest of what it asks for."""

    key: str
    digest: bytes


def digest_of(path: str, body: Mapping[str, Any]) -> bytes:
    """Of the body as it was sent, whatever its blanks and the order of its fields, and of the path behind `/v1/`.

    Not of what this release makes of it: gateways of two releases stand beside each other.
    """
    asked = {name: value for name, value in body.items() if name not in HOW_TOLD}
    told = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{path}\0{told}".encode()).digest()


def understood(
    key: str | None, path: str, body: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], _Asked]
) -> tuple[_Asked, Keyed | None]:
    """What `parse` makes of it. With a key it goes on without viewers unless it says otherwise: its client comes back.

    Raises what `parse` raises.
    """
    if key is None:
        return parse(body), None
    keyed, says = Keyed(key, digest_of(path, body)), body.get("on_disconnect") is not None
    asked = parse(body)
    return asked if says else asked.model_copy(update={"on_disconnect": "continue"}), keyed
