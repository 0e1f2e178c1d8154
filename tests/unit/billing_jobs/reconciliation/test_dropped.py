"""A month whose events left the tables differs from the log by right: it is left out, and said so, and nothing else."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from billing_jobs.invoices.desk import DropAsked
from billing_jobs.queries import read_settings
from billing_jobs.reconciliation import reconcile as module
from billing_jobs.reconciliation.figures import Placed, Recounted, Span
from billing_jobs.reconciliation.reconcile import Recounts, Report, all_left_out, equal_tables, reconcile
from billing_jobs.reconciliation.recount import Counted
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.store import Database
from streams.clocks import HOUR_MS
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import delivered_count
from tests.unit.billing_jobs.invoices.closing_world import NOVEMBER, OCTOBER, ClosingWorld, event_in
from tests.unit.billing_jobs.test_store import batch_of

DROP = DropAsked(month="2025-11", actor="kim", reason="13 months")
HOUR = Span(NOVEMBER.start_ms, NOVEMBER.start_ms + HOUR_MS)
SAID = "usage: 2025-11 was dropped on 2026-02-01 00:00 UTC: 2 events of the log are not compared"


@pytest.fixture
def world(database: Database) -> Iterator[ClosingWorld]:
    """November of two events was closed, summed and dropped."""
    with closing(ClosingWorld(database)) as opened:
        opened.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2)])
        opened.closed(NOVEMBER)
        opened.summed()
        opened.desk.drop_month(DROP)
        yield opened


@pytest.fixture
def tables(database: Database) -> Iterator[Tables]:
    with closing(database.connection(read_settings(10_000, 10))) as connection:
        yield Tables(asking(connection), page_rows=2)


def looked(world: ClosingWorld, tables: Tables, span: Span = HOUR, recounts: Recounts | None = None) -> Report:
    def read(wanted: Span) -> Iterator[LogRecord]:
        return (record for record in world.logged if record.timestamp_ms in wanted)

    return reconcile(span, read, tables, recounts)


def test_what_left_with_its_month_is_not_compared_and_that_is_said(world: ClosingWorld, tables: Tables) -> None:
    report = looked(world, tables)
    assert report.is_equal, report.differences
    assert all_left_out([report]) == [SAID]
    assert all_left_out([report, report]) == [SAID.replace("2 events", "4 events")], "one line of all hours"
    assert report.compared["usage"].rows == 0
    assert report.compared["hours"].rows == 1, "the sums that are kept"
    world.insert(world.logged)
    assert looked(world, tables).compared["usage"].rows == 0, "nor where a replay brought them back"


def test_what_comes_late_of_it_is_compared_as_ever(world: ClosingWorld, tables: Tables) -> None:
    late_ms = world.clock_ms()
    span = Span(late_ms, late_ms + HOUR_MS)
    world.stored([event_in(NOVEMBER, 10)], logged_at_ms=late_ms)
    assert looked(world, tables, span).compared["usage"].rows == 1
    assert looked(world, tables, span).is_equal
    lost = event_in(NOVEMBER, 11)
    world.logged.append(LogRecord("local.usage", 0, 99, None, lost.encode(), (), late_ms))
    report = looked(world, tables, span)
    assert [each.item_id for each in report.differences] == [lost.usage_id]
    assert all_left_out([report]) == []


def test_a_month_that_stays_is_compared_though_it_was_written_down_that_it_leaves(
    database: Database, tables: Tables
) -> None:
    with closing(ClosingWorld(database)) as world:
        world.stored([event_in(NOVEMBER, 1)])
        with database.connection().client() as client:
            client.command("INSERT INTO dropped_months VALUES ('2025-11-01', 1, 'kim', 'room', now64(3))")
        report = looked(world, tables)
        assert (report.is_equal, report.compared["usage"].rows, all_left_out([report])) == (True, 1, [])


def test_events_of_another_month_that_were_logged_in_that_time_are_compared(
    world: ClosingWorld, tables: Tables
) -> None:
    lost = event_in(OCTOBER, 7)
    world.logged.append(LogRecord("local.usage", 0, 99, None, lost.encode(), (), NOVEMBER.start_ms + 5))
    report = looked(world, tables)
    assert [each.item_id for each in report.differences] == [lost.usage_id]


def test_an_hour_too_large_to_be_read_is_left_out_like_a_small_one(
    world: ClosingWorld, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_ROWS", 0)
    lost = event_in(OCTOBER, 7)
    world.logged.append(LogRecord("local.usage", 0, 99, None, lost.encode(), (), NOVEMBER.start_ms + 5))
    assert [each.item_id for each in looked(world, tables).differences] == [lost.usage_id]


def test_what_viewers_had_of_it_and_what_is_counted_again_of_it_is_no_difference(
    world: ClosingWorld, tables: Tables
) -> None:
    world.store.insert(batch_of([delivered_count(1).encode()], 900), again=False)
    with world.database.connection().client() as client:
        [[at_ms]] = client.query("SELECT toUnixTimestamp64Milli(logged_at) FROM delivered_counts").result_rows
    hour = Span(at_ms - at_ms % HOUR_MS, at_ms - at_ms % HOUR_MS + HOUR_MS)
    assert hour.from_ms in Span(NOVEMBER.start_ms, NOVEMBER.end_ms)
    world.logged.append(LogRecord("local.usage", 0, 900, None, delivered_count(1).encode(), (), at_ms))
    counted = Counted()
    counted.add([Placed(Recounted(event_in(NOVEMBER, 1).response_id, "acme", 1, 32), at_ms)])
    report = looked(world, tables, hour, Recounts(counted, 0, hour.to_ms))
    assert report.is_equal, report.differences
    assert report.compared["delivered"].rows == 1
    assert all_left_out([report]) == ["generated: responses of 2025-11, which was dropped, may be among it"]


def test_tables_that_are_made_anew_of_the_log_have_it_and_that_is_no_difference(
    world: ClosingWorld, tables: Tables, engine_folder: Path
) -> None:
    with closing(Database.embedded(engine_folder, "rebuilt")) as beside:
        beside.open()
        with closing(ClosingWorld(beside)) as anew, closing(beside.connection()) as connection:
            anew.insert(world.logged)
            report = equal_tables(HOUR, Tables(asking(connection)), tables)
            assert report.is_equal, report.differences
            assert all_left_out([report]) == [SAID]
            lost = event_in(OCTOBER, 7)
            anew.insert([LogRecord("local.usage", 0, 99, None, lost.encode(), (), NOVEMBER.start_ms + 5)])
            report = equal_tables(HOUR, Tables(asking(connection)), tables)
            assert [each.item_id for each in report.differences] == [lost.usage_id]
