"""A month ends by the log's time: how the clock of billing's machine goes closes none early and drops none."""

from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal

import pytest

from billing_jobs.invoices.amounts import InvoiceRefused
from billing_jobs.invoices.desk import CloseAsked, DropAsked, InvoiceDesk
from billing_jobs.store import Database
from schemas.month import Month
from streams.clocks import HOUR_MS
from streams.log.memory import MemoryLog
from tests.unit.billing_jobs import sink_world
from tests.unit.billing_jobs.invoices.closing_world import COST_PICO, DECEMBER, NOVEMBER, TINY, ClosingWorld, event_in
from tests.unit.billing_jobs.sink_world import DEAD_LETTERS, PARTITIONS, TOPIC

MINUTE_MS = 60_000
DROP = DropAsked(month="2025-11", actor="kim", reason="13 months")


class Billing:
    """A sink over real tables whose machine's clock is `ahead_ms` of the log's."""

    def __init__(self, tables: ClosingWorld, ahead_ms: int) -> None:
        self.world = sink_world.World(prices=[TINY])
        self.clock, self.ahead_ms = self.world.clock, ahead_ms
        self.world.store = tables.store  # type: ignore[assignment]
        self.world.log = MemoryLog(lambda: self.clock.now_ms - ahead_ms)
        self.world.log.create_topic(TOPIC, PARTITIONS)
        self.world.log.create_topic(DEAD_LETTERS, 1)
        self.member = self.world.member()
        self.desk = InvoiceDesk(
            tables.tables, lambda: self.member.sink.progress.proven_through_ms, lambda: self.clock.now_ms
        )

    def at(self, log_ms: int, *used: Month) -> None:
        """By the log's time a request of each of these months ends, and is stored."""
        self.clock.now_ms = log_ms + self.ahead_ms
        for number, month in enumerate(used):
            self.world.append(event_in(month, log_ms % 10**6 + number).encode(), number % PARTITIONS)
        self.world.steps(self.member, 12)
        assert self.member.sink.progress.lag_records == 0

    def closed(self) -> int:
        """What November costs, in pico."""
        [invoice] = self.desk.close_month("acme", "2025-11", CloseAsked(actor="kim"))["invoices"]
        return int(Decimal(invoice["usage"]).scaleb(12))

    def refuses(self) -> None:
        with pytest.raises(InvoiceRefused, match="2025-11 is not over"):
            self.closed()
        with pytest.raises(InvoiceRefused, match="2025-11 is not over"):
            self.desk.drop_month(DROP)


@pytest.fixture
def tables(database: Database) -> Iterator[ClosingWorld]:
    with closing(ClosingWorld(database)) as opened:
        yield opened


def test_a_clock_that_is_hours_ahead_ends_no_month_before_the_log_does(tables: ClosingWorld) -> None:
    billing = Billing(tables, 3 * HOUR_MS)
    billing.at(NOVEMBER.end_ms - HOUR_MS, NOVEMBER)
    assert billing.member.sink.progress.stored_through_ms > NOVEMBER.end_ms, "as that clock has it"
    billing.refuses()
    billing.at(NOVEMBER.end_ms - MINUTE_MS, NOVEMBER, NOVEMBER)
    billing.refuses()
    billing.at(NOVEMBER.end_ms + HOUR_MS)
    billing.refuses()  # nothing has been logged that tells how late it is
    billing.at(NOVEMBER.end_ms + HOUR_MS + MINUTE_MS, DECEMBER)
    assert billing.closed() == 3 * COST_PICO, "all of them are on it, none comes late"
    [shown] = billing.desk.shown("acme", "2025-11")["invoices"]
    assert shown["finalized_through"].startswith("2025-12-01T01:0"), "by the log's clock"


def test_a_clock_that_is_hours_behind_closes_late(tables: ClosingWorld) -> None:
    billing = Billing(tables, -3 * HOUR_MS)
    billing.at(NOVEMBER.end_ms - HOUR_MS, NOVEMBER)
    billing.at(NOVEMBER.end_ms + MINUTE_MS, NOVEMBER, DECEMBER)
    billing.refuses()
    billing.at(NOVEMBER.end_ms + 3 * HOUR_MS + MINUTE_MS)
    assert billing.closed() == 2 * COST_PICO


def test_a_month_of_which_nothing_is_charged_is_not_dropped_while_it_lasts(tables: ClosingWorld) -> None:
    tables.stored([event_in(NOVEMBER, 1, billable=False)])
    tables.summed()
    tables.proven_through_ms = NOVEMBER.end_ms - 1
    with pytest.raises(InvoiceRefused, match="2025-11 is not over"):
        tables.desk.drop_month(DROP)
    assert tables.rows("SELECT count() FROM usage_events") == [(1,)]
    tables.proven_through_ms = NOVEMBER.end_ms
    assert tables.desk.drop_month(DROP)["events"] == 1
