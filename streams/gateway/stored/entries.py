"""What a response told, as its row has it: entries of history, each behind its length. Pure.

So the next piece of it is read without what precedes it. A row that was written before stands there as one entry alone,
without its length: it begins as its JSON does, and no length is so large.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from schemas.responses import Started, Terminal
from streams.gateway.fan_out.backlog import ENTRY_BYTES
from streams.gateway.fan_out.spans import Span, first_part, join_runs, memory_bytes
from streams.gateway.history.replay import UnreadableEntry, pack

LENGTH_BYTES: Final = 4
_MOST_BYTES: Final = 2**30
_ALONE: Final = b"["


def entries_of(started: Started | None, spans: Sequence[Span], terminal: Terminal) -> bytes:
    """All of it. How it began stands in the first entry, how it ended in the last."""
    parts = list(_parts(join_runs(spans))) or [[]]
    told = bytearray()
    for number, part in enumerate(parts, 1):
        entry = pack(started if number == 1 else None, part, terminal if number == len(parts) else None)
        told += len(entry).to_bytes(LENGTH_BYTES, "big") + entry
    return bytes(told)


def entries(part: bytes, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Those that stand whole in a part of it, which begins with one, at that byte: each with where it begins."""
    if not begin and part.startswith(_ALONE):
        yield 0, part
        return
    at = 0
    while at + LENGTH_BYTES <= len(part):
        end = at + _size_bytes(part, at)
        if end > len(part):
            return
        yield begin + at, part[at + LENGTH_BYTES : end]
        at = end


def first_size_bytes(part: bytes) -> int:
    """How much must be read of it to have the first entry whole. Raises UnreadableEntry."""
    size_bytes = _size_bytes(part, 0) if len(part) >= LENGTH_BYTES else 0
    if not len(part) < size_bytes <= _MOST_BYTES:
        raise UnreadableEntry("no entry stands there")
    return size_bytes


def _size_bytes(part: bytes, at: int) -> int:
    return LENGTH_BYTES + int.from_bytes(part[at : at + LENGTH_BYTES], "big")


def _parts(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """What each entry holds of them: no more memory than ENTRY_BYTES, but for a token."""
    part: list[Span] = []
    room_bytes = ENTRY_BYTES
    for span in spans:
        rest: Span | None = span
        while rest is not None:
            first = first_part(rest, room_bytes)
            part.append(first)
            room_bytes -= memory_bytes((first,))
            rest = rest.after(first.sequence_number)
            if rest is not None or room_bytes <= 0:
                yield part
                part, room_bytes = [], ENTRY_BYTES
    if part:
        yield part
