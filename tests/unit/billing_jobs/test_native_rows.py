"""What is written of rows is, to the byte, what the client's own writer would write, value by value."""

from typing import Any

import pytest
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.insert import InsertContext
from clickhouse_connect.driver.transform import NativeTransform
from hypothesis import given, settings
from hypothesis import strategies as st

from billing_jobs.columns import Numbers
from billing_jobs.native_rows import native
from billing_jobs.rows import NAME, STAGES, TEXT, TIME, TableRows, tables_of
from tests.unit.billing_jobs.events import compute_record, delivered_count, usage_event
from tests.unit.billing_jobs.test_store import batch_of


def by_the_client(rows: TableRows) -> bytes:
    types = [get_from_name(type_) for type_ in rows.types]
    context = InsertContext(rows.table, list(rows.names), types, rows.columns, True, block_size=2**30)
    return b"".join(NativeTransform.build_insert(context)).partition(b"\n")[2]


def numbers(rows: list[dict[str, int]]) -> Numbers:
    column = Numbers()
    for row in rows:
        column.extend([row])
    return column


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 2**bits - 1), st.sampled_from([0, 1, 2**bits - 1]))


TEXTS = st.one_of(
    st.sampled_from(["", "a", "a", "é", "\0", "x" * 127, "x" * 128, "ü" * 64, "y" * 20_000]), st.text(max_size=4)
)
TIMES = st.one_of(st.just(0), st.integers(0, 2**53))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    TEXT: TEXTS,
    NAME: TEXTS,
    TIME: TIMES,
    f"Nullable({TIME})": st.none() | st.integers(1, 2**53),
    STAGES: st.dictionaries(TEXTS, TIMES, max_size=3),
    "Bool": st.booleans(),
    "UInt16": unsigned(16),
    "UInt32": unsigned(32),
    "UInt64": unsigned(64),
    "Int64": st.integers(-(2**63), 2**63 - 1),
    "Int128": st.one_of(unsigned(64), st.integers(-(2**127), 2**127 - 1)),
    "FixedString(64)": st.text("0123456789abcdef", min_size=64, max_size=64),
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_the_values_are(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    columns: list[Any] = [data.draw(st.lists(values, min_size=count, max_size=count)) for values in VALUES.values()]
    columns[[*VALUES].index(STAGES)] = numbers(columns[[*VALUES].index(STAGES)])
    rows = TableRows("t", "c0", tuple(f"c{place}" for place in range(len(VALUES))), tuple(VALUES), columns)
    assert native(rows) == by_the_client(rows)


@pytest.mark.parametrize("names", [1, 2, 255, 256, 257, 65_535, 65_536])
def test_however_many_names_a_column_has(names: int) -> None:
    column = [f"name-{number}" for number in range(names)]
    rows = TableRows("t", "name", ("name",), (NAME,), [column + column[::-1]])
    assert native(rows) == by_the_client(rows)


def test_every_table_of_a_batch() -> None:
    batch = batch_of([usage_event(1).encode(), compute_record(1).encode(), delivered_count(1).encode(), b"poison"])
    for rows in tables_of(batch):
        assert native(rows) == by_the_client(rows)


@pytest.mark.parametrize(("type_", "value"), [("UInt32", 2**32), ("UInt32", -1), ("Int128", 2**127), ("UInt16", "1")])
def test_what_a_column_cannot_hold_is_not_written(type_: str, value: Any) -> None:
    with pytest.raises((OverflowError, TypeError)):
        native(TableRows("t", "c", ("c",), (type_,), [[value]]))
