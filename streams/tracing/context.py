"""The W3C trace context of a response: what its records carry, and the ids of its spans. Pure."""

import hashlib
import re
from dataclasses import dataclass

from streams.ids import parse_response_id

ROOT = "response"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Which trace, which span of it caused what comes next, and whether spans are wanted."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"


def parse_traceparent(text: str) -> TraceContext | None:
    """None when it is not well formed."""
    match = _TRACEPARENT.fullmatch(text)
    return None if match is None else TraceContext(match[1], match[2], bool(int(match[3], 16) & 1))


def span_id_of(response_id: str, name: str) -> str:
    """The same for whoever asks: what is told twice is one span."""
    return hashlib.blake2b(f"{response_id}/{name}".encode(), digest_size=8).hexdigest()


def is_chosen(response_id: str, share: float) -> bool:
    """Whether it is of the share that is traced. Nobody outside can choose: an id's last digits are a MAC."""
    return int(response_id[-8:], 16) < share * 2**32


def context_of(response_id: str, given: TraceContext | None, share: float) -> TraceContext | None:
    """What the records of a response carry, whose client gave this context; None: nothing.

    A client that wants no spans gets none. Without a context of its own the trace has the id's 32 digits.
    """
    chosen = is_chosen(response_id, share)
    if given is None:
        trace_id = parse_response_id(response_id).unique
        return TraceContext(trace_id, span_id_of(response_id, ROOT), sampled=True) if chosen else None
    if given.sampled and chosen:
        return TraceContext(given.trace_id, span_id_of(response_id, ROOT), sampled=True)
    return TraceContext(given.trace_id, given.span_id, sampled=False)
