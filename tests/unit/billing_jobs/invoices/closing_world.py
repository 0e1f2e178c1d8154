"""Tables with usage of any month, and the desk that closes months over them."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from billing_jobs.cut import cut_of, parse_batch
from billing_jobs.invoices.desk import CloseAsked, EntryAsked, InvoiceDesk
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.rollups.hours import SPAN_MS, next_rollup
from billing_jobs.rollups.tables import ROLLER_SETTINGS, seen_writers, store_rollup
from billing_jobs.store import ClickHouseStore, Database
from schemas.month import Month
from schemas.usage import ComputeRecord, UsageEvent
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import usage_event

TOPIC = "local.usage"
OCTOBER, NOVEMBER, DECEMBER, JANUARY = Month(2025, 10), Month(2025, 11), Month(2025, 12), Month(2026, 1)
TINY, EURO, LATER = (
    PriceRow(model, currency, 0, 100_000, 20_000, 400_000, 400_000)
    for model, currency in (("tiny", "USD"), ("euro", "EUR"), ("later", "USD"))
)
COST_PICO = 10 * 100_000 + 4 * 20_000 + 32 * 400_000
"""Of one event."""


def event_in(month: Month, number: int, **changes: Any) -> UsageEvent:
    at_ms = month.start_ms + 1_000 + number
    times = {"accepted_at_ms": at_ms, "first_token_at_ms": at_ms, "ended_at_ms": at_ms}
    return usage_event(number, **times, **changes)


@dataclass
class ClosingWorld:
    database: Database
    proven_through_ms: int = JANUARY.end_ms
    now_ms: int = JANUARY.end_ms
    offset: int = 0
    sink_ms: int = 1
    prices: list[PriceRow] = field(default_factory=lambda: [TINY, EURO])
    logged: list[LogRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = ClickHouseStore(self.database.connection(), lambda: self.sink_ms)
        self.store.append_prices(self.prices)
        self.tables = InvoiceTables(self.database.connection(), TOPIC)
        self.desk = self.another_desk()

    def close(self) -> None:
        self.tables.close()
        self.store.close()

    def clock_ms(self) -> int:
        """No two moments are one."""
        self.now_ms += 1
        return self.now_ms

    def another_desk(self, tables: InvoiceTables | None = None) -> InvoiceDesk:
        return InvoiceDesk(tables or self.tables, lambda: self.proven_through_ms, self.clock_ms)

    def stored(
        self, events: Sequence[UsageEvent], computed: Sequence[ComputeRecord] = (), logged_at_ms: int | None = None
    ) -> None:
        """Logged at the next offsets, when they ended if not said otherwise, and inserted."""
        logged = [(event.encode(), logged_at_ms or event.ended_at_ms) for event in events]
        logged += [(record.encode(), logged_at_ms or events[-1].ended_at_ms) for record in computed]
        records = [
            LogRecord(TOPIC, 0, self.offset + index, None, value, (), at_ms)
            for index, (value, at_ms) in enumerate(logged)
        ]
        self.offset += len(records)
        self.logged += records
        self.insert(records)

    def insert(self, records: Sequence[LogRecord]) -> None:
        """As billing does that reads them, once more or for the first time."""
        batch = parse_batch(cut_of(records, self.clock_ms()), records, PriceBook(self.prices))
        assert not batch.unusable
        self.store.insert(batch, again=False)

    def summed(self) -> None:
        """All hours, as some minutes after the last event of each."""
        self.sink_ms += SPAN_MS
        self.store.rest()
        with closing(self.database.connection(ROLLER_SETTINGS)) as connection, connection.client() as client:
            while (rollup := next_rollup(*seen_writers(client), lambda: 1)) is not None:
                store_rollup(client, rollup)

    def priced(self, price: PriceRow) -> None:
        """What waits for it gets it."""
        self.prices.append(price)
        self.store.append_prices([price])
        while self.store.reprice(1_000):
            pass

    def closed(self, month: Month, tenant: str = "acme", desk: InvoiceDesk | None = None) -> list[dict[str, Any]]:
        answer = (desk or self.desk).close_month(tenant, str(month), CloseAsked(actor="kim"))
        invoices: list[dict[str, Any]] = answer["invoices"]
        return invoices

    def recorded(self, amount: str, kind: str = "credit", **changes: Any) -> dict[str, Any]:
        asked = {
            "tenant_id": "acme", "kind": kind, "amount": amount, "currency": "USD", "reason": "an outage",
            "actor": "kim", "month": "2025-11",
        }  # fmt: skip
        return self.desk.record(EntryAsked.model_validate({**asked, **changes}))

    def rows(self, statement: str) -> list[Any]:
        with self.database.connection().client() as client:
            return list(client.query(statement).result_rows)
