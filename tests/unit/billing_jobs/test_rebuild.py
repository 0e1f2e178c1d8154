"""The tables are made anew of the log alone, beside those in use, and found to be the same."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from billing_jobs.price_tables import MadeChange
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.queries import read_settings
from billing_jobs.rebuild import copy_rows, rebuild
from billing_jobs.reconciliation.figures import Span
from billing_jobs.reconciliation.reconcile import REBUILT, equal_tables
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Record
from streams.clocks import HOUR_MS
from streams.log.memory import MemoryLog
from streams.log.reading import kept_offsets
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, presence, usage_event
from tests.unit.billing_jobs.test_store import batch_of

TOPIC = "local.usage"
SPAN = Span(NOON_MS, NOON_MS + HOUR_MS)
EVENTS: list[Record] = [
    usage_event(1), usage_event(2, model="dear"), usage_event(3, model="unpriced"), compute_record(1),
    delivered_count(1), presence(), usage_event(1),
]  # fmt: skip
PRICES = [PriceRow("tiny", "USD", 0, 100, 20, 400, 400), PriceRow("dear", "EUR", 0, 2**40, 1, 2**50, 3)]


@pytest.fixture
def beside(engine_folder: Path, database: Database) -> Iterator[Database]:
    with closing(Database.embedded(engine_folder, "rebuilt")) as fresh:
        fresh.open()
        yield fresh


def test_what_the_log_says_is_what_stands_in_the_tables_and_what_they_lack_is_named(
    database: Database, beside: Database
) -> None:
    log = MemoryLog(lambda: NOON_MS)
    log.create_topic(TOPIC, 1)
    for event in EVENTS:
        log.append(TOPIC, event.encode(), partition=0)
    log.append(TOPIC, b"{", partition=0)
    limits = read_settings(10_000, 10)
    with (
        closing(ClickHouseStore(database.connection())) as in_use,
        closing(ClickHouseStore(beside.connection())) as anew,
        closing(database.connection(limits)) as asked, closing(beside.connection(limits)) as asked_anew,
        closing(beside.connection()) as prices, closing(log.consumer(None, "rebuild")) as consumer,
    ):  # fmt: skip
        in_use.change_prices(MadeChange(3, "ann", "spring", tuple(PRICES), ()))
        billed = batch_of([event.encode() for event in EVENTS[:-1]], book=PriceBook(PRICES))
        in_use.insert(billed, again=False)
        with asked.client() as client:
            copied = client.raw_query("SELECT * FROM prices", fmt="JSONEachRow").splitlines()
        copy_rows("prices", [orjson.loads(row) for row in copied], prices)
        assert anew.prices() == in_use.prices()
        assert anew.price_version() == 3
        offsets = kept_offsets(consumer, consumer.partitions(TOPIC))
        done = rebuild(consumer, offsets, anew, lambda record: record.timestamp_ms in SPAN, batch_rows=2)
        assert (done.records, done.usage, done.unusable) == (8, 4, 1)
        rebuilt, live = Tables(asking(asked_anew)), Tables(asking(asked))
        report = equal_tables(SPAN, rebuilt, live)
        assert report.is_equal, report.differences
        assert [report.compared[source].rows for source in REBUILT] == [3, 1, 1, 1]
        log.append(TOPIC, compute_record(2).encode(), partition=0)
        log.append(TOPIC, usage_event(7).encode(), partition=0)
        log.append(TOPIC, presence().encode(), partition=0)
        log.append(TOPIC, presence("worker-2").encode(), partition=0)
        rebuild(consumer, kept_offsets(consumer, consumer.partitions(TOPIC)), anew, lambda _: True)
        report = equal_tables(SPAN, rebuilt, live)
        assert [(each.source, each.item_id) for each in report.differences] == [
            ("usage", usage_event(7).usage_id), ("compute", compute_record(2).attempt_id),
            ("presence", f"local/default/worker-2/{NOON_MS}"),
        ]  # fmt: skip


def test_without_prices_there_is_nothing_to_copy(beside: Database) -> None:
    with closing(beside.connection()) as connection:
        copy_rows("prices", [], connection)
