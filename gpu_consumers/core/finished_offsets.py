"""What a commit says of the offsets above it: which of them have ended, so that nobody looks at them again.

A text of at most `MAX_METADATA_BYTES`: `1`, then in base 85 and compressed the lengths of runs, in turn open and ended,
from the committed offset on. What does not fit is left out at the far end, and read again.
"""

import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator

from streams.log.port import MAX_METADATA_BYTES

_VERSION = "1"


def encode(committed: int, ended: Iterable[range]) -> tuple[str, int]:
    """`ended` are disjoint, ascending and above `committed`. Returns the text, and how many offsets it leaves out."""
    ranges = list(ended)
    told = len(ranges)
    while told:
        text = _VERSION + b85encode(zlib.compress(_runs(committed, ranges[:told]))).decode()
        if len(text) <= MAX_METADATA_BYTES:
            return text, sum(map(len, ranges[told:]))
        told -= max(told // 4, 1)
    return "", sum(map(len, ranges))


def decode(committed: int, text: str) -> list[range]:
    """Of a text in another form, as another release may write it, nothing is known: all is read again."""
    if not text.startswith(_VERSION):
        return []
    try:
        lengths = list(_varints(zlib.decompress(b85decode(text[1:]))))
    except (ValueError, zlib.error):
        return []
    ranges = []
    offset = committed
    for open_length, ended_length in zip(lengths[::2], lengths[1::2], strict=False):
        first = offset + open_length
        offset = first + ended_length
        ranges.append(range(first, offset))
    return ranges


def _runs(committed: int, ranges: Iterable[range]) -> bytes:
    runs = bytearray()
    offset = committed
    for ended in ranges:
        for length in (ended.start - offset, len(ended)):
            while length > 0x7F:
                runs.append(length & 0x7F | 0x80)
                length >>= 7
            runs.append(length)
        offset = ended.stop
    return bytes(runs)


def _varints(runs: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in runs:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
