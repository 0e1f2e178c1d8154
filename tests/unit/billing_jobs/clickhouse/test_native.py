"""Native as clients read it that name their version of the protocol: of every type the next column is found."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from billing_jobs.clickhouse.errors import Refused
from billing_jobs.clickhouse.native import for_protocol
from billing_jobs.embedded import connect

BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"
VALUES = """
number
-number
toUInt256(number)
toInt128(number)
number = 1
number / 3
toBFloat16(number)
toDecimal32(number, 2)
toDecimal64(number, 2)
toDecimal128(number, 2)
toDecimal256(number, 12)
toString(number)
repeat('x', number * 100)
repeat('é', 20000)
''
toFixedString(toString(number), 7)
toDate(number)
toDate32(number)
toDateTime(number)
toDateTime64(number, 3)
toDateTime64(number, 9, 'UTC')
toIntervalDay(number)
generateUUIDv4()
toIPv4('127.0.0.1')
toIPv6('::1')
CAST('a(b', 'Enum8(\\'a(b\\' = 1, \\'c,)\\\\\\'d\\' = 2)')
CAST('x', 'Enum16(\\'x\\' = 1000)')
NULL
if(number = 1, NULL, toString(number))
if(number = 1, NULL, number)
toLowCardinality(toString(number))
CAST(if(number = 1, NULL, toString(number)), 'LowCardinality(Nullable(String))')
tuple()
[]
range(number)
arrayMap(x -> range(x), range(number))
arrayMap(x -> toString(x), range(number))
arrayMap(x -> toLowCardinality(toString(x)), range(number))
CAST([], 'Array(LowCardinality(String))')
arrayMap(x -> if(x = 1, NULL, x), range(number))
map('a', number, 'b', 2)
map('a', toLowCardinality(toString(number)))
CAST(map(), 'Map(LowCardinality(String), Array(String))')
map('a', map('b', [number]))
(number, 'a')
CAST((number, 'a', [1]), 'Tuple(a UInt64, `b c` String, d Array(Decimal(38, 4)))')
[(number, toLowCardinality('a'))]
CAST((number, number), 'Point')
CAST([(number, number)], 'Ring')
CAST([[(number, number)]], 'Polygon')
CAST([[[(number, number)]]], 'MultiPolygon')
CAST([(number, 'x')], 'Nested(a UInt64, b String)')
CAST(number, 'SimpleAggregateFunction(sum, UInt64)')
CAST(toString(number), 'SimpleAggregateFunction(any, Nullable(String))')
""".strip().splitlines()


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with closing(connect(":memory:")) as engine:
        yield engine


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("rows", [1, 3])
def test_after_values_of_any_type_the_next_column_begins(engine: Any, value: str, rows: int) -> None:
    statement = f"SELECT {value} AS {{}}, 'end' AS {{}} FROM numbers({rows})"
    typed = engine.query(f"SELECT toTypeName({value}) FROM numbers(1)", "TabSeparatedRaw").bytes()
    kind = typed[:-1].replace(b"(\n    ", b"(").replace(b"\n    ", b" ")
    body = engine.query(statement.format("first_of_two", "last_of_two"), "Native").bytes()
    expected = BLOCK_INFO + body
    for head in (_said(b"first_of_two") + _said(kind), _said(b"last_of_two") + _said(b"String")):
        assert expected.count(head) == 1
        expected = expected.replace(head, head + b"\x00")
    assert for_protocol(body) == expected
    assert for_protocol(body + body) == expected + expected, "a block after a block"


def _said(text: bytes) -> bytes:
    assert len(text) < 128
    return bytes([len(text)]) + text


def test_nothing_is_nothing() -> None:
    assert for_protocol(b"") == b""


def test_what_is_written_otherwise_is_refused_by_its_type(engine: Any) -> None:
    for value, kind in (("sumState(1)", "AggregateFunction"), ("CAST(1, 'Dynamic')", "Dynamic")):
        body = engine.query(f"SELECT {value} AS a", "Native").bytes()
        with pytest.raises(Refused, match=kind):
            for_protocol(body)
