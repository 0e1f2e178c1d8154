"""Every query that the analysts' guide shows runs through the operator's endpoint, over rows of each kind."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.pricing import price_row
from billing_jobs.queries import Reader, SqlResult, read_settings
from billing_jobs.store import ClickHouseStore, Database
from tests.unit.billing_jobs.events import compute_record, delivered_count, presence, usage_event
from tests.unit.billing_jobs.test_store import MODEL, batch_of

GUIDE = (Path(__file__).parents[3] / "docs" / "analysts.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)


def ask(database: Database, query: str) -> SqlResult:
    with closing(Reader(database.connection(read_settings(100, 10)), 100)) as reader:
        return reader.sql(query)


def columns_of(database: Database, query: str) -> dict[str, Any]:
    """The first row, by name."""
    answer = ask(database, query)
    return dict(zip(answer.columns, answer.rows[0], strict=True))


@pytest.fixture
def filled(database: Database) -> Database:
    events = [
        usage_event(1, stage_ms={"admission": 2, "gateway": 1}),
        usage_event(2, model="unpriced"),
        usage_event(3, billable=False, ending="engine_failed"),
    ]
    there = [presence(), presence("worker-2")]
    records = [*events, *(compute_record(n) for n in (1, 2, 3, 4)), delivered_count(1), *there]
    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([price_row(MODEL, 0)])
        store.append_gpu_prices([GpuPrice("default", "USD", 0, 2 * 10**12, 1)])
        store.insert(batch_of([record.encode() for record in records]), again=False)
    return database


@pytest.mark.parametrize("query", QUERIES, ids=lambda text: text[:40])
def test_a_query_of_the_guide_runs(filled: Database, query: str) -> None:
    assert ask(filled, query).columns


def test_the_guide_shows_what_the_tables_hold(filled: Database) -> None:
    answers = {query: ask(filled, query).rows for query in QUERIES}
    [saved] = (rows for query, rows in answers.items() if "AS saved" in query)
    assert saved[0][:3] == ["tiny", "USD", "4"]
    assert saved[0][4] == "0.00000032"
    [suspense] = (rows for query, rows in answers.items() if "charge_state = 'suspense'" in query)
    assert [row[0] for row in suspense] == ["unpriced"]
    [waste] = (rows for query, rows in answers.items() if "percent_unbilled" in query)
    assert waste == [["tiny", "2800", "1400", 50]]
    [audited] = (columns_of(filled, query) for query in answers if "counted_again_pico" in query)
    assert audited["counted_again_pico"] == audited["cost_pico"] != "0"
    assert list(zip(audited["stages"], audited["finished_at_ms"], strict=True)) == [
        ("gateway", "1"),
        ("admission", "2"),
    ]
    [cohorts] = (rows for query, rows in answers.items() if "months_later" in query)
    assert [row[1:] for row in cohorts] == [["0", "1"]], "one end user, seen in one month"
    [idle] = (rows for query, rows in answers.items() if "AS idle" in query)
    # Four attempts were logged within a few milliseconds of noon, so two hours of one worker are touched; another one
    # had nothing to do in the second.
    assert [[*row[:5], row[7]] for row in idle] == [["default", "2025-11-21", "USD", "3", "6", "1"]]
    assert 5.99 < float(idle[0][5]) < 6
    [gaps] = (rows for query, rows in answers.items() if "missing_from" in query)
    assert gaps == []


def test_the_audit_finds_a_hole(filled: Database) -> None:
    [audit] = (query for query in QUERIES if "missing_from" in query)
    with closing(ClickHouseStore(filled.connection())) as store:
        store.insert(batch_of([usage_event(9).encode()], first=20), again=False)
    assert ask(filled, audit).rows == [["local.usage", 0, "10", "19"]]


def test_every_column_is_in_the_data_dictionary(database: Database) -> None:
    rows = ask(database, "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'usage'").rows
    assert len(rows) > 40
    assert [name for [name] in rows if f"`{name}`" not in GUIDE] == []
    tables = ask(database, "SELECT name FROM system.tables WHERE database = currentDatabase()").rows
    assert [name for [name] in tables if f"`{name}`" not in GUIDE and name != "schema_version"] == []
