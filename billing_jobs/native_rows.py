"""Rows in ClickHouse's format Native, written column by column: the client's own writer goes value by value."""

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from struct import Struct
from typing import Any

from billing_jobs.columns import Numbers
from billing_jobs.rows import INSERT_SETTINGS, NAME, STAGES, TEXT, TIME, TableRows

_AS_IT_IS = {
    # Else each block is merged with itself, for a third of an insert's time, to drop rows of one identity in one batch.
    # FINAL, and merges, absorb these as they do those of several batches.
    "optimize_on_insert": 0,
    # One block is one thread's work: handing it from one to the next takes a tenth of an insert's time.
    "max_threads": 1,
}
_HEAD = Struct("<QQ")
_NEW_DICTIONARY = 1 << 9 | 1 << 10
_DICTIONARY_VERSION = (1).to_bytes(8, "little")


def insert_rows(client: Any, rows: TableRows, settings: dict[str, Any]) -> None:
    """Raises as the client does."""
    if len(rows):
        client.raw_insert(
            rows.table,
            column_names=rows.names,
            insert_block=native(rows),
            fmt="Native",
            settings={**INSERT_SETTINGS, **_AS_IT_IS, **settings},
        )


def native(rows: TableRows) -> bytes:
    """One block, of one row at least. Raises OverflowError, TypeError: a value that its type does not hold."""
    block = [_number(len(rows.columns)), _number(len(rows))]
    for name, type_, column in zip(rows.names, rows.types, rows.columns, strict=True):
        block += (_texts([name, type_]), _WRITERS[type_](column))
    return b"".join(block)


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    low = bytearray()
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low, value])


def _texts(column: Sequence[str]) -> bytes:
    """Each behind its length."""
    lengths = list(map(len, column))
    if max(lengths) <= 0x7F:
        # Characters are bytes, and so are lengths.
        told = "".join(chain.from_iterable(zip(map(chr, lengths), column, strict=True)))
        if told.isascii():
            return told.encode()
    return b"".join(chain.from_iterable((_number(len(value)), value) for value in map(str.encode, column)))


def _named(column: Sequence[str]) -> bytes:
    if column.count(column[0]) == len(column):
        return _DICTIONARY_VERSION + _dictionary(column[:1], bytes(len(column)))
    places = _places(column)
    return _DICTIONARY_VERSION + _dictionary(places, _index(places, column))


def _stages(column: Numbers) -> bytes:
    places = _places(chain.from_iterable(dict.fromkeys(column.names)))
    indexes = {names: _index(places, names) for names in set(column.names)}
    dictionary = _dictionary(places, b"".join(map(indexes.__getitem__, column.names))) if places else b""
    return b"".join((_DICTIONARY_VERSION, column.ends.tobytes(), dictionary, column.values.tobytes()))


def _places(values: Iterable[str]) -> dict[str, int]:
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


def _index_size(values: Collection[str]) -> int:
    """As a power of two: bytes of one place among them."""
    return (len(values).bit_length() - 1) // 8


def _index(places: Mapping[str, int], column: Sequence[str]) -> bytes:
    return _array("BHI"[_index_size(places)], list(map(places.__getitem__, column)))


def _dictionary(values: Collection[str], index: bytes) -> bytes:
    """Each value once, and where those of the column stand among them."""
    size = _index_size(values)
    rows = (len(index) >> size).to_bytes(8, "little")
    return b"".join((_HEAD.pack(_NEW_DICTIONARY | size, len(values)), _texts(list(values)), rows, index))


def _times_or_none(column: Sequence[int | None]) -> bytes:
    return bytes([at_ms is None for at_ms in column]) + _array("q", [at_ms or 0 for at_ms in column])


def _wide(column: Sequence[int]) -> bytes:
    """Of 128 bits."""
    if min(column) >= 0 and max(column) < 2**64:
        return _array("Q", list(chain.from_iterable(zip(column, repeat(0), strict=False))))
    return b"".join([value.to_bytes(16, "little", signed=True) for value in column])


def _array(code: str, values: Sequence[int]) -> bytes:
    return array(code, values).tobytes()


_WRITERS: dict[str, Callable[[Any], bytes]] = {
    TEXT: _texts,
    NAME: _named,
    TIME: partial(_array, "q"),
    f"Nullable({TIME})": _times_or_none,
    STAGES: _stages,
    "Bool": bytes,
    "UInt16": partial(_array, "H"),
    "UInt32": partial(_array, "I"),
    "UInt64": partial(_array, "Q"),
    "Int64": partial(_array, "q"),
    "Int128": _wide,
    "FixedString(64)": lambda column: "".join(column).encode(),
}
"""By the type of the table's column."""
