"""The log and real tables of ClickHouse are compared: what differs is found, whatever it is, and nothing else."""

from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.queries import read_settings
from billing_jobs.reconciliation import reconcile as module
from billing_jobs.reconciliation.figures import Figures, Key, Placed, Recounted, Span
from billing_jobs.reconciliation.reconcile import Recounts, Report, reconcile, slices
from billing_jobs.reconciliation.recount import Counted
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Record, Scope
from streams.clocks import HOUR_MS
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, usage_event
from tests.unit.billing_jobs.test_store import batch_of

PRICE = PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000)
SPAN = Span(NOON_MS, NOON_MS + HOUR_MS)
GLOBEX = {"scope": Scope(tenant_id="globex")}


@dataclass
class World:
    """A log of one partition, whose records come a millisecond apart, and tables, into which they go if told to."""

    database: Database
    store: ClickHouseStore
    tables: Tables
    records: list[LogRecord] = field(default_factory=list)

    def log(self, *events: Record, at_ms: int | None = None) -> None:
        for event in events:
            offset = len(self.records)
            written_ms = NOON_MS + offset if at_ms is None else at_ms
            self.records.append(LogRecord("local.usage", 0, offset, None, event.encode(), (), written_ms))

    def bill(self, *events: Record) -> None:
        """Puts them where they would stand if they were logged next."""
        self.store.insert(batch_of([event.encode() for event in events], first=len(self.records)), again=False)

    def both(self, *events: Record) -> None:
        self.bill(*events)
        self.log(*events)

    def read(self, span: Span) -> Iterator[LogRecord]:
        return (record for record in self.records if record.timestamp_ms in span)

    def look(self, recounts: Recounts | None = None, span: Span = SPAN) -> Report:
        return reconcile(span, self.read, self.tables, recounts)


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with (
        closing(ClickHouseStore(database.connection())) as store,
        closing(database.connection(read_settings(10_000, 10))) as connection,
    ):
        store.append_prices([PRICE])
        yield World(database, store, Tables(asking(connection), page_rows=2))


def told(report: Report) -> list[tuple[str, str, str]]:
    """Of each difference: by which source, of which tenant and item."""
    return [(each.source, each.tenant_id, each.item_id) for each in report.differences]


def usage_id(number: int) -> str:
    return usage_event(number).usage_id


def test_what_was_billed_as_it_stands_in_the_log_is_equal_whatever_it_is(world: World) -> None:
    refused = usage_event(4, model="", attempts=0, billable=False, output_tokens=0)
    embedded = usage_event(6, endpoint="embeddings", output_tokens=0, reasoning_tokens=0, released_tokens=0)
    second = {"usage_id": usage_event(1).usage_id[:-1] + "1", "choice": 1, "released_tokens": 2}
    world.both(
        usage_event(1), usage_event(1, **second), usage_event(2, **GLOBEX), usage_event(3, model="unpriced"), refused,
        usage_event(5, billable=False), compute_record(1), delivered_count(1), embedded,
        delivered_count(6),
    )  # fmt: skip
    report = world.look()
    assert report.is_equal
    assert report.differences == []
    assert (report.compared["usage"].rows, report.compared["delivered"].rows) == (7, 2)


def test_a_record_that_the_log_holds_twice_is_one_bill_in_whichever_hour_its_copy_stands(world: World) -> None:
    event = usage_event(1)
    world.both(event, event)
    world.log(event, at_ms=NOON_MS + HOUR_MS)
    assert world.look().is_equal
    assert world.look(span=Span(NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS)).is_equal


def test_an_answers_bill_counts_beside_a_refusal_of_the_same_id(world: World) -> None:
    world.both(usage_event(1))
    world.both(usage_event(1, model="", attempts=0, billable=False, output_tokens=0))
    assert world.look().is_equal


def test_a_bill_that_was_lost_one_that_was_invented_and_one_that_differs_are_each_named(world: World) -> None:
    world.both(usage_event(1), usage_event(5))
    world.log(usage_event(2))
    world.bill(usage_event(3))
    world.log(compute_record())
    world.bill(usage_event(4, output_tokens=31))
    world.log(usage_event(4))
    report = world.look()
    assert told(report) == [("usage", "acme", usage_id(number)) for number in (2, 4, 3)]
    [lost, differing, invented] = [each.what for each in report.differences]
    assert lost == "the log has it (partition 0, offset 2) and the tables have not"
    assert "output_tokens is 30 in the log and 31 in the tables" in differing
    assert "cost_pico is 13880000000 in the log and" not in differing, "prices are per token"
    assert invented.startswith("the tables have it and the log has not")
    [gap] = report.hours["usage"]
    assert (gap.log.rows, gap.tables.rows) == (4, 4), "as many, and not the same"


def test_two_errors_that_cancel_out_are_found(world: World) -> None:
    world.bill(usage_event(1, output_tokens=31), usage_event(2, output_tokens=29))
    world.log(usage_event(1), usage_event(2))
    assert told(world.look()) == [("usage", "acme", usage_id(1)), ("usage", "acme", usage_id(2))]


def test_what_was_priced_otherwise_than_the_prices_say_is_found(world: World) -> None:
    event = usage_event(1).encode()
    dear = PriceBook([PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_001, 400_000)])
    world.store.insert(batch_of([event], book=dear), again=False)
    world.log(usage_event(1))
    [difference] = world.look().differences
    assert difference.what.startswith("cost_pico is")


def test_one_tenants_difference_is_not_anothers(world: World) -> None:
    world.both(usage_event(1))
    world.log(usage_event(2, **GLOBEX))
    assert [(source, tenant) for source, tenant, _ in told(world.look())] == [("usage", "globex")]


def test_a_viewer_cannot_have_had_more_than_was_released_nor_what_was_never_billed(world: World) -> None:
    world.both(usage_event(1, released_tokens=29), delivered_count(1), usage_event(2), delivered_count(2))
    world.both(delivered_count(3))
    report = world.look()
    assert [each.what for each in report.differences] == [
        "a viewer had 30 of its tokens, and 29 are billed as released",
        "a viewer had 30 of its tokens, and 0 are billed as released",
    ]


def test_an_hour_that_is_not_the_sum_of_its_events_is_found(world: World) -> None:
    world.both(usage_event(1), usage_event(2, **GLOBEX))
    assert world.look().is_equal
    apart = Apart(world.tables)
    report = reconcile(SPAN, world.read, apart)
    assert [(source, tenant) for source, tenant, _ in told(report)] == [("hours", "acme")]
    assert report.differences[0].what == (
        "the sum of its events has 1 rows, 46 tokens, 13880000 pico, the hour has 1 rows, 46 tokens, 13880001 pico"
    )
    apart.times = 1
    assert reconcile(SPAN, world.read, apart).is_equal, "whoever writes meanwhile makes no difference"


class Apart(Tables):
    """Of one tenant's hour something else is told, so many times."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables._ask)
        self.times = 99

    def hours_apart(self, hours: Collection[int]) -> list[tuple[Key, Figures, Figures]]:
        self.times -= 1
        sums = self.figures("usage", SPAN, 0)
        apart = [(key, figures._replace(digest=0)) for key, figures in sums.items() if key.tenant_id == "acme"]
        assert super().hours_apart(hours) == []
        return [(key, each, each._replace(cost_pico=each.cost_pico + 1)) for key, each in apart if self.times >= 0]


def test_a_record_that_is_no_bill_is_counted_and_no_difference(world: World) -> None:
    world.both(usage_event(1))
    world.records.append(LogRecord("local.usage", 0, 1, None, b"{", (), NOON_MS + 1))
    report = world.look()
    assert (report.is_equal, report.unreadable) == (True, 1)


def test_a_large_hour_is_compared_in_parts_and_still_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_ROWS", 3)
    world.both(*(usage_event(number) for number in range(8)))
    world.log(usage_event(9))
    assert told(world.look()) == [("usage", "acme", usage_id(9))]


def test_where_there_is_no_room_for_the_bills_the_sums_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ITEMS", 1)
    world.both(usage_event(1))
    world.log(usage_event(2))
    [difference] = world.look().differences
    assert difference.item_id == ""
    assert difference.what == (
        "the log has 2 rows, 92 tokens, 27760000 pico, the tables have 1 rows, 46 tokens, 13880000 pico"
    )


def recounts(*ended: tuple[int, int], opened: int = 1, complete_to_ms: int = SPAN.to_ms) -> Recounts:
    """So many tokens of the response of that number."""
    counted = Counted()
    counted.add(
        Placed(Recounted(usage_event(number).response_id, "acme", opened, tokens), NOON_MS + 900)
        for number, tokens in ended
    )
    return Recounts(counted, NOON_MS, complete_to_ms)


def test_tokens_that_were_counted_again_are_those_that_are_billed(world: World) -> None:
    world.both(usage_event(1), usage_event(2, accepted_at_ms=NOON_MS - 1))
    assert world.look(recounts((1, 32))).is_equal, "what was accepted before counting began is left out"
    [difference] = world.look(recounts((1, 33))).differences
    assert (difference.source, difference.response_id) == ("generated", usage_event(1).response_id)
    assert "output_tokens is 33" in difference.what
    [unbilled] = world.look(recounts((1, 32), (3, 5))).differences
    assert unbilled.response_id == usage_event(3).response_id
    [unknown] = world.look(recounts()).differences
    assert unknown.what.startswith("the tables have it and what was generated, counted again, has not")


def test_what_was_not_yet_counted_again_is_left_out_and_said(world: World) -> None:
    world.both(usage_event(1))
    report = world.look(recounts((1, 40), complete_to_ms=SPAN.to_ms - 1))
    assert report.is_equal
    assert report.left_out == ["generated: it has not been counted again up to there"]


def test_a_long_time_is_cut_at_full_hours() -> None:
    span = Span(NOON_MS - 5, NOON_MS + HOUR_MS + 7)
    assert [*slices(span, HOUR_MS)] == [
        Span(NOON_MS - 5, NOON_MS), Span(NOON_MS, NOON_MS + HOUR_MS), Span(NOON_MS + HOUR_MS, NOON_MS + HOUR_MS + 7),
    ]  # fmt: skip
