"""The format Native as clients read it that name their version of the protocol (`client_protocol_version`).

The embedded engine writes it as for a client that names none. From version 54454 on each block begins with what is told
of it, and each column has a byte before its values that says that these are written the ordinary way. So where each
column ends has to be found: by its type, as `NativeReader` would.
"""

from billing_jobs.clickhouse.errors import Refused

SINCE = 54_454
"""DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION. What versions before it expect is not written."""
_BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"
"""No overflows, no number of a bucket, the end of the fields."""
_ORDINARY = b"\x00"
_FIXED_BYTES = {
    name: size
    for size, names in {
        1: "Int8 UInt8 Bool Enum8 Nothing",
        2: "Int16 UInt16 Enum16 BFloat16 Date",
        4: "Int32 UInt32 Float32 Date32 DateTime Time IPv4",
        8: "Int64 UInt64 Float64 DateTime64 Time64",
        16: "Int128 UInt128 UUID IPv6",
        32: "Int256 UInt256",
    }.items()
    for name in names.split()
}
_SAME_AS = {
    "Point": "Tuple(Float64, Float64)",
    "Ring": "Array(Point)",
    "LineString": "Array(Point)",
    "Polygon": "Array(Ring)",
    "MultiLineString": "Array(LineString)",
    "MultiPolygon": "Array(Polygon)",
}
_MOST_DIGITS = {9: 4, 18: 8, 38: 16, 76: 32}
"""Digits of a Decimal, at most → its bytes."""
_INDEX_BYTES = (1, 2, 4, 8)


def for_protocol(body: bytes) -> bytes:
    """Blocks as the engine wrote them, as a client of version `SINCE` or later reads them. Raises Refused: a type that
    is not written so.
    """
    blocks = _Blocks(body)
    told: list[bytes | memoryview] = []
    while not blocks.at_end():
        told.append(_BLOCK_INFO)
        since = blocks.at
        columns, rows = blocks.number(), blocks.number()
        for _ in range(columns):
            blocks.skip_strings(1)
            kind = blocks.text()
            told += (blocks.since(since), _ORDINARY)
            since = blocks.at
            if rows:
                blocks.skip_prefix(kind)
                blocks.skip_values(kind, rows)
        told.append(blocks.since(since))
    return b"".join(told)


class _Blocks:
    """Reads over what the engine wrote: it is whole, and not looked at for errors."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.at = 0

    def at_end(self) -> bool:
        return self.at >= len(self._body)

    def since(self, start: int) -> memoryview:
        return memoryview(self._body)[start : self.at]

    def number(self) -> int:
        """Seven bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        size = self.number()
        self.at += size
        return self._body[self.at - size : self.at].decode()

    def skip_strings(self, count: int) -> None:
        body, at = self._body, self.at
        for _ in range(count):
            size = body[at]
            if size < 0x80:
                at += size + 1
            else:
                self.at = at
                size = self.number()
                at = self.at + size
        self.at = at

    def skip_prefix(self, kind: str) -> None:
        """Comes before all values of a column, also of the columns within it."""
        name, inner = _parts(kind)
        if name == "LowCardinality":
            self.at += 8
        else:
            for each in inner:
                self.skip_prefix(each)

    def skip_values(self, kind: str, rows: int) -> None:
        if not rows:
            return
        kind = _plain(kind)
        name, inner = _parts(kind)
        match name:
            case "String":
                self.skip_strings(rows)
            case "Nullable":
                self.at += rows
                self.skip_values(inner[0], rows)
            case "Array" | "Map":
                self.at += 8 * rows
                within = int.from_bytes(self._body[self.at - 8 : self.at], "little")
                for each in inner:
                    self.skip_values(each, within)
            case "Tuple":
                for each in inner:
                    self.skip_values(each, rows)
                self.at += 0 if inner else rows
            case "LowCardinality":
                self._skip_low_cardinality(inner[0])
            case _:
                self.at += rows * _bytes_of(kind)

    def _skip_low_cardinality(self, kind: str) -> None:
        """Which size its indices have, the distinct values, the indices."""
        index_bytes = _INDEX_BYTES[self._body[self.at]]
        self.at += 8
        name, inner = _parts(kind)
        self.skip_values(inner[0] if name == "Nullable" else kind, self._count())
        indices = self._count()
        self.at += indices * index_bytes

    def _count(self) -> int:
        self.at += 8
        return int.from_bytes(self._body[self.at - 8 : self.at], "little")


def _plain(kind: str) -> str:
    """The type as which it is written."""
    name, _, rest = kind.partition("(")
    if name == "SimpleAggregateFunction":
        return _plain(_pieces(rest[:-1], ",")[-1])
    return f"Array(Tuple({rest})" if name == "Nested" else _SAME_AS.get(kind, kind)


def _parts(kind: str) -> tuple[str, list[str]]:
    """The name of a type, and the types that it is made of, without the names that they have in it."""
    name, _, rest = _plain(kind).partition("(")
    if name not in ("Array", "LowCardinality", "Map", "Nullable", "Tuple"):
        return name, []
    return name, [_pieces(each, " ")[-1] for each in _pieces(rest[:-1], ",") if each]


def _pieces(text: str, between: str) -> list[str]:
    """Split at what stands between, but in brackets and quotes."""
    pieces, start, depth, quote, escaped = [], 0, 0, "", False
    for at, char in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "'`\"":
            quote = char
        elif char == between and not depth:
            pieces.append(text[start:at].strip())
            start = at + 1
        else:
            depth += (char == "(") - (char == ")")
    return [*pieces, text[start:].strip()]


def _bytes_of(kind: str) -> int:
    """Of a value. Raises Refused."""
    name, _, rest = kind.partition("(")
    if name.startswith("Interval"):
        return 8
    if name == "FixedString":
        return int(rest[:-1])
    if name == "Decimal":
        digits = int(rest.split(",")[0])
        return next(size for most, size in _MOST_DIGITS.items() if digits <= most)
    if name not in _FIXED_BYTES:
        raise Refused(
            "NOT_IMPLEMENTED", f"columns of the type {kind} are not written in Native for this client; use toString"
        )
    return _FIXED_BYTES[name]
