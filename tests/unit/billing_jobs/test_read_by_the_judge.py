"""The judge of histories finds in ClickHouse what stands there: all rows, and what each of them costs."""

from contextlib import closing
from dataclasses import asdict
from typing import Any

from billing_jobs.pricing import price_row
from billing_jobs.queries import Reader, read_settings
from billing_jobs.store import ClickHouseStore, Database
from tests.history.bills import of_bills
from tests.history.collect import bills_of
from tests.history.log import Log, Logged
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.test_store import MODEL, batch_of

HOUR_MS = 3_600_000
PRICES = {
    "tiny": {
        name: str(getattr(MODEL.price, name)) for name in ("uncached_input", "cached_input", "output", "reasoning")
    }
}
EVENTS = [usage_event(1), usage_event(2, model="unpriced"), usage_event(3, billable=False, ending="engine_failed")]


def bills(database: Database, most: int) -> list[dict[str, Any]]:
    with closing(Reader(database.connection(read_settings(100, 10)), 100)) as reader:
        return [*bills_of(lambda text: asdict(reader.sql(text)), most)]


def test_every_row_is_read_and_found_as_it_was_billed(database: Database) -> None:
    log = Log()
    for offset, event in enumerate(EVENTS):
        log.take(Logged("usage", 0, offset, 0, event.model_dump(mode="json")))
    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([price_row(MODEL, 0)])
        store.insert(batch_of([event.encode() for event in EVENTS]), again=False)
        assert [*of_bills(log, bills(database, 2), PRICES)] == []
        # Of another hour: the engine does not take it for the same.
        again = usage_event(2, model="unpriced", accepted_at_ms=NOON_MS + HOUR_MS)
        store.insert(batch_of([again.encode()], first=10), again=False)
    for most in (1, 2, 3, 100):
        read = bills(database, most)
        assert [row["log_offset"] for row in read] == [0, 1, 10, 2]
        assert "doubled" in {violation.kind for violation in of_bills(log, read, PRICES)}
    dear = {"tiny": {**PRICES["tiny"], "reasoning": "4"}}
    assert "billed" in {violation.kind for violation in of_bills(log, read[:1], dear)}
