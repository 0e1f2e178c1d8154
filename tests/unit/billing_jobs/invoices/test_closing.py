"""Months are closed over a real ClickHouse: once, wherever a closing dies, and whatever comes afterwards."""

from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.invoices.amounts import InvoiceRefused
from billing_jobs.invoices.desk import REPEATED_MS, CloseAsked, DropAsked
from billing_jobs.invoices.tables import InvoiceTables
from billing_jobs.metrics import BillingMetrics
from billing_jobs.reconciliation.tables import Tables
from billing_jobs.reconciliation.wiring import asking
from billing_jobs.rollups.roller import Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS
from billing_jobs.store import Database
from schemas.base import Scope
from schemas.money import decimal_units
from tests.unit.billing_jobs.events import compute_record, presence
from tests.unit.billing_jobs.invoices.closing_world import (
    COST_PICO,
    DECEMBER,
    JANUARY,
    LATER,
    NOVEMBER,
    OCTOBER,
    ClosingWorld,
    event_in,
)
from tests.unit.billing_jobs.test_store import batch_of


@pytest.fixture
def world(database: Database) -> Iterator[ClosingWorld]:
    with closing(ClosingWorld(database)) as opened:
        yield opened


def exact(invoice: dict[str, Any]) -> int:
    return int(Decimal(invoice["exact"]).scaleb(12))


def test_a_month_is_closed_once_and_then_says_the_same_for_good(world: ClosingWorld) -> None:
    euro = event_in(NOVEMBER, 3, model="euro")
    world.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2), euro, event_in(DECEMBER, 4)])
    world.stored([event_in(NOVEMBER, 5, scope=Scope(tenant_id="globex")), event_in(NOVEMBER, 6, billable=False)])
    draft = world.desk.draft("acme", "2025-11")["invoices"]
    invoices = world.closed(NOVEMBER)
    assert [(each["invoice_id"], exact(each), each["number"]) for each in invoices] == [
        ("acme-2025-11-EUR", COST_PICO, 1), ("acme-2025-11-USD", 2 * COST_PICO, 1),
    ]  # fmt: skip
    assert [each["lines"] for each in draft] == [each["lines"] for each in invoices]
    assert world.desk.shown("acme", "2025-11")["invoices"] == invoices
    with pytest.raises(InvoiceRefused, match="2025-11 of acme was closed at 2026") as again:
        world.closed(NOVEMBER)
    assert again.value.status == 409
    listed = world.desk.listed(None, None)
    assert [each["sha256"] for each in listed["invoices"]] == [each["sha256"] for each in invoices]
    assert [(each["tenant_id"], each["month"], each["events"]) for each in listed["open"]] == [
        ("globex", "2025-11", 1), ("acme", "2025-12", 1),
    ]  # fmt: skip


def test_no_month_is_closed_before_all_that_was_logged_in_it_is_stored(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    world.proven_through_ms = NOVEMBER.end_ms - 1
    with pytest.raises(
        InvoiceRefused, match=r"not all .* is stored: the tables are complete up to 2025-11-30T23:59:59"
    ):
        world.closed(NOVEMBER)
    assert world.rows("SELECT count() FROM invoice_usage") == [(0,)]
    world.proven_through_ms = NOVEMBER.end_ms
    assert exact(world.closed(NOVEMBER)[0]) == COST_PICO


def test_replays_and_merges_change_nothing_that_was_invoiced(world: ClosingWorld) -> None:
    events = [event_in(NOVEMBER, number) for number in range(4)]
    world.stored(events)
    world.closed(NOVEMBER)
    world.stored(events)
    with world.database.connection().client() as client:
        client.command("OPTIMIZE TABLE usage_events FINAL")
    assert world.rows("SELECT min(log_offset), count() FROM usage_events") == [(4, 4)], "the later copies are left"
    found = world.desk.check("acme", "2025-11")
    assert (found["reproduced"], found["to_be_added"], found["missing_events"]) == (True, [], 0)


def test_what_comes_late_is_on_the_next_invoice_once_with_lines_of_its_own(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1), event_in(DECEMBER, 2), event_in(JANUARY, 9)])
    first = world.closed(NOVEMBER)
    world.stored([event_in(NOVEMBER, 3), event_in(NOVEMBER, 4, model="euro")])
    pending = world.desk.check("acme", "2025-11")
    assert pending["reproduced"]
    assert [(each["kind"], each["currency"], each["amount"]) for each in pending["to_be_added"]] == [
        ("late", currency, decimal_units(COST_PICO)) for currency in ("EUR", "USD")
    ]  # fmt: skip
    euro, usd = world.closed(DECEMBER)
    assert (exact(euro), euro["lines"]) == (COST_PICO, [])
    late = usd["entries"][0]
    assert (late["kind"], late["month"], late["amount"]) == ("late", "2025-11", decimal_units(COST_PICO))
    assert [line["quantity"] for line in late["lines"]] == [10, 4, 30, 2]
    carried = exact(first[0])
    assert exact(usd) == 2 * COST_PICO + carried, "what the first invoice was rounded by is on this one"
    assert world.desk.check("acme", "2025-11")["to_be_added"] == []
    assert world.desk.shown("acme", "2025-11")["invoices"] == first
    [last] = (each for each in world.closed(JANUARY) if each["currency"] == "USD")
    assert [each["kind"] for each in last["entries"]] == ["carried"]


def test_what_comes_late_does_not_hide_behind_one_like_it_that_is_gone(world: ClosingWorld) -> None:
    world.stored([event_in(OCTOBER, 1), event_in(NOVEMBER, 2)])
    world.closed(OCTOBER)
    world.summed()
    world.desk.drop_month(DropAsked(month="2025-10", actor="kim", reason="old"))
    world.stored([event_in(OCTOBER, 3)])
    [pending] = world.desk.check("acme", "2025-10")["to_be_added"]
    assert (pending["kind"], pending["amount"]) == ("late", decimal_units(COST_PICO))
    [drafted], [closed] = world.desk.draft("acme", "2025-11")["invoices"], world.closed(NOVEMBER)
    for invoice in (drafted, closed):
        assert [each["amount"] for each in invoice["entries"] if each["kind"] == "late"] == [pending["amount"]]
    assert world.desk.check("acme", "2025-10")["to_be_added"] == []


def test_what_had_no_price_is_told_and_invoiced_once_it_has_one(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2, model="later")])
    [first] = world.closed(NOVEMBER)
    assert (exact(first), first["events_without_price"]) == (COST_PICO, 1)
    world.priced(LATER)
    [second] = world.closed(DECEMBER)
    assert [(each["kind"], each["amount"]) for each in second["entries"]] == [
        ("re-rated", decimal_units(COST_PICO)), ("carried", decimal_units(COST_PICO)),
    ]  # fmt: skip
    assert "got its price" in second["entries"][0]["reason"]
    assert world.desk.check("acme", "2025-12")["reproduced"]
    assert world.desk.check("acme", "2025-11") == {
        "reproduced": True, "sha256": [first["sha256"]], "to_be_added": [], "missing_events": 0, "dropped_at": None,
        "closed_at": first["closed_at"],
    }  # fmt: skip


def test_rows_that_are_gone_are_missed_and_never_credited(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2)])
    [first] = world.closed(NOVEMBER)
    with world.database.connection().client() as client:
        client.command("ALTER TABLE usage_events DROP PARTITION 202511")
    found = world.desk.check("acme", "2025-11")
    assert (found["reproduced"], found["to_be_added"], found["missing_events"]) == (True, [], 2)
    assert world.closed(DECEMBER) == []
    assert world.desk.shown("acme", "2025-11")["invoices"] == [first]
    world.stored([event_in(NOVEMBER, 1)])
    assert world.desk.check("acme", "2025-11")["missing_events"] == 1, "what comes again is known"


def test_what_gpus_cost_in_a_month_that_was_dropped_is_still_told(world: ClosingWorld) -> None:
    idle = presence(hour_ms=NOVEMBER.start_ms + 3_600_000)
    world.store.append_gpu_prices([GpuPrice("default", "USD", 0, 10**12, 2)])
    world.store.insert(batch_of([idle.encode(), compute_record(1).encode()], 900), again=False)
    world.stored([event_in(NOVEMBER, 1)])
    world.closed(NOVEMBER)
    world.summed()
    costs = "SELECT * FROM gpu_costs ORDER BY hour, kind"
    before = world.rows(costs)
    assert {line[0].day for line in before} == {1, 21}
    world.desk.drop_month(DropAsked(month="2025-11", actor="kim", reason="13 months"))
    assert world.rows(costs) == before


def by_hour(world: ClosingWorld) -> list[Any]:
    return world.rows(
        "SELECT tenant_id, model, hour, sum(requests), sum(cost_pico) FROM usage_by_hour GROUP BY ALL ORDER BY ALL"
    )


def test_a_late_event_of_a_month_that_was_dropped_is_shown_beside_the_others(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2)])
    world.closed(NOVEMBER)
    asked = DropAsked(month="2025-11", actor="kim", reason="13 months")
    hour_of_november = event_in(NOVEMBER, 1).accepted_at_ms // 3_600_000 * 3_600_000
    for late in range(3):
        world.summed()
        world.desk.drop_month(asked)
        world.stored([event_in(NOVEMBER, 10 + late)])
        for is_summed in (False, True):
            if is_summed:
                world.summed()
            [(*_, requests, cost_pico)] = by_hour(world)
            assert (requests, cost_pico) == (3 + late, (3 + late) * COST_PICO)
            with closing(world.database.connection()) as connection:
                assert Tables(asking(connection)).hours_apart({hour_of_november}) == [], "reconciliation finds it so"
        world.closed((DECEMBER, JANUARY, OCTOBER)[late])


class _Killed(BaseException):
    pass


KILLED_BEFORE = {
    "it is written down": "billing_jobs.invoices.tables._insert",
    "events leave": "billing_jobs.invoices.tables.format_str",
    "what is kept counts": "billing_jobs.invoices.tables.count_kept",
}


@pytest.mark.parametrize("is_summed_first", [False, True])
@pytest.mark.parametrize("before", KILLED_BEFORE)
def test_no_hour_is_shown_twice_where_dropping_its_month_dies_and_a_late_event_comes(
    world: ClosingWorld, monkeypatch: pytest.MonkeyPatch, before: str, is_summed_first: bool
) -> None:
    def dies(*_: Any) -> None:
        raise _Killed

    def shown() -> tuple[int, int]:
        [(requests, cost_pico)] = world.rows("SELECT sum(requests), sum(cost_pico) FROM usage_by_hour")
        return requests, cost_pico

    def is_told_of_all(events: int) -> None:
        assert shown() == (events, events * COST_PICO)
        world.summed()
        assert shown() == (events, events * COST_PICO)

    world.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2)])
    world.closed(NOVEMBER)
    world.summed()
    asked = DropAsked(month="2025-11", actor="kim", reason="13 months")
    with monkeypatch.context() as patched:
        patched.setattr(InvoiceTables, "end_drops", lambda _tables: None)
        patched.setattr(KILLED_BEFORE[before], dies)
        with pytest.raises(_Killed):
            world.desk.drop_month(asked)
    assert shown() == (2, 2 * COST_PICO), "until something comes"
    world.stored([event_in(NOVEMBER, 10)])
    if is_summed_first:
        world.summed()
    if before == "what is kept counts":
        assert shown() == (1, COST_PICO), "the two are seen again in seconds"
    with closing(world.database.connection(ROLLER_SETTINGS)) as connection:
        roller = Roller(connection, BillingMetrics(CollectorRegistry()), lambda: 0.0, lambda: 7)
        roller.step()
    is_told_of_all(3)
    world.closed(DECEMBER)
    assert world.desk.drop_month(asked)["events"] == (1 if before == "what is kept counts" else 3)
    is_told_of_all(3)
    world.stored([event_in(NOVEMBER, 11)])
    is_told_of_all(4)


def test_events_leave_once_each_is_on_an_invoice_and_invoices_are_made_again_without_them(world: ClosingWorld) -> None:
    asked = DropAsked(month="2025-11", actor="kim", reason="13 months")
    other = event_in(NOVEMBER, 2, scope=Scope(tenant_id="globex"))
    world.stored([event_in(NOVEMBER, 1, model="later"), event_in(NOVEMBER, 0), other, event_in(DECEMBER, 3)])

    def refused(why: str) -> None:
        with pytest.raises(InvoiceRefused, match=why):
            world.desk.drop_month(asked)

    world.closed(NOVEMBER, "globex")
    refused("2025-11 of acme is not closed")
    world.closed(NOVEMBER)
    refused("1 events of acme in 2025-11 have no price yet")
    world.priced(LATER)
    refused("usage of acme in 2025-11 came after its invoice")
    world.closed(DECEMBER)
    refused("not all hours of 2025-11 are summed yet; ask again later")
    assert world.desk.check("acme", "2025-11")["dropped_at"] is None, "nothing was done"
    world.summed()
    before, shown = world.desk.shown("acme", "2025-11"), by_hour(world)
    assert world.desk.drop_month(asked) == {"month": "2025-11", "events": 3}
    assert world.rows("SELECT count() FROM usage_events") == [(1,)]
    assert by_hour(world) == shown, "views show what they showed"
    found = world.desk.check("acme", "2025-11")
    assert (found["reproduced"], found["to_be_added"], found["missing_events"]) == (True, [], 0)
    assert found["dropped_at"].startswith("2026-")
    assert world.desk.shown("acme", "2025-11") == before
    refused("usage of 2025-11 was dropped already, at .*, and none has come since")
    world.stored([event_in(NOVEMBER, 0), event_in(NOVEMBER, 7)])
    assert [each["events"] for each in world.desk.check("acme", "2025-11")["to_be_added"]] == [1]


class Killed(BaseException):
    """The process is gone."""


STEPS: dict[str, tuple[str, bool]] = {
    "1 looked at what is stored": ("count", False),
    "2 events that count written down": ("count", True),
    "3 entries added to the ledger": ("add", True),
    "4 decided": ("decide", True),
}
"""Of `close_month`: which call a process is killed at, before or after it is done."""


def killed_at(tables: InvoiceTables, method: str, *, is_after: bool) -> Callable[..., Any]:
    call = getattr(tables, method)

    def struck(*arguments: Any) -> Any:
        if is_after:
            call(*arguments)
        raise Killed

    return struck


@pytest.mark.parametrize("step", STEPS)
def test_killed_after_any_step_the_month_is_invoiced_once(
    world: ClosingWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world.stored([event_in(OCTOBER, 0)])
    world.closed(OCTOBER)
    world.stored([event_in(OCTOBER, 1), event_in(NOVEMBER, 2)])
    world.recorded("1.50")
    method, is_after = STEPS[step]
    with monkeypatch.context() as patch:
        patch.setattr(world.tables, method, killed_at(world.tables, method, is_after=is_after))
        with pytest.raises(Killed):
            world.closed(NOVEMBER)
    world.stored([event_in(NOVEMBER, 3)])
    if step.startswith("4"):
        with pytest.raises(InvoiceRefused, match="was closed"):
            world.closed(NOVEMBER)
        [invoice] = world.desk.shown("acme", "2025-11")["invoices"]
        used = 1
    else:
        [invoice] = world.closed(NOVEMBER)
        used = 2
    assert [each["kind"] for each in invoice["entries"]] == ["late", "carried", "credit"]
    assert exact(invoice) == (used + 2) * COST_PICO - 15 * 10**11
    [(sums,)] = world.rows("SELECT sum(cost_pico) FROM invoiced_usage")
    assert sums == (used + 2) * COST_PICO
    kinds = [kind for (kind,) in world.rows("SELECT kind FROM ledger ORDER BY recorded_at, kind")]
    assert kinds == ["carried", "credit", "carried", "late"]
    assert world.desk.check("acme", "2025-11")["reproduced"]


@pytest.mark.parametrize("month", [NOVEMBER, OCTOBER], ids=["the same month", "another month"])
def test_of_two_that_close_at_once_one_counts_and_the_other_is_told(
    world: ClosingWorld, monkeypatch: pytest.MonkeyPatch, month: Any
) -> None:
    world.stored([event_in(OCTOBER, 1), event_in(NOVEMBER, 2)])
    world.recorded("1.50")
    with closing(InvoiceTables(world.database.connection(), "local.usage")) as others:
        add = world.tables.add

        def meanwhile(*arguments: Any) -> None:
            monkeypatch.undo()
            world.closed(month, desk=world.another_desk(others))
            add(*arguments)

        monkeypatch.setattr(world.tables, "add", meanwhile)
        with pytest.raises(InvoiceRefused, match="was just closed; ask again"):
            world.closed(NOVEMBER)
    if month == OCTOBER:
        world.closed(NOVEMBER)
    else:
        world.closed(OCTOBER)
    assert world.rows("SELECT number, month = '2025-11-01' FROM invoices ORDER BY number") == [
        (1, month == NOVEMBER), (2, month == OCTOBER),
    ]  # fmt: skip
    assert world.rows("SELECT kind, count() FROM ledger WHERE kind = 'credit' GROUP BY kind") == [("credit", 1)]
    [(sums,)] = world.rows("SELECT sum(cost_pico) FROM invoiced_usage")
    assert sums == 2 * COST_PICO
    assert all(world.desk.check("acme", each)["reproduced"] for each in ("2025-10", "2025-11"))


def test_a_closing_whose_row_was_dropped_with_its_token_kept_is_written_again(world: ClosingWorld) -> None:
    """The engine's own crash window: it notes the token first."""
    world.stored([event_in(NOVEMBER, 1)])
    world.closed(NOVEMBER)
    with world.database.connection().client() as client:
        client.command("ALTER TABLE invoice_closings DELETE WHERE 1", settings={"mutations_sync": 1})
    assert exact(world.closed(NOVEMBER)[0]) == COST_PICO
    assert world.desk.check("acme", "2025-11")["reproduced"]


def test_an_invoice_that_somebody_changed_is_found(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    world.closed(NOVEMBER)
    with world.database.connection().client() as client:
        client.command(
            "ALTER TABLE invoice_closings UPDATE"
            " documents = arrayMap(each -> replaceAll(each, '\"quantity\":30', '\"quantity\":20'), documents) WHERE 1",
            settings={"mutations_sync": 1},
        )
    assert not world.desk.check("acme", "2025-11")["reproduced"]


def test_an_entry_is_recorded_once_and_stands_on_the_next_invoice(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    entry = world.recorded("1.50")
    assert (entry["amount"], entry["is_repeat"]) == ("-1.5", False)
    assert world.recorded("1.50", actor="somebody else") == {**entry, "is_repeat": True}
    world.recorded("-0.25", "correction", reason="a wrong price")
    waiting = world.desk.ledger("acme")["entries"]
    assert [(each["kind"], each["amount"], each["is_invoiced"]) for each in waiting] == [
        ("credit", "-1.5", False), ("correction", "-0.25", False),
    ]  # fmt: skip
    [invoice] = world.closed(NOVEMBER)
    assert (exact(invoice), invoice["total"]) == (COST_PICO - 175 * 10**10, "0.00")
    assert [each["is_invoiced"] for each in world.desk.ledger("acme")["entries"]] == [True, True, False]
    world.recorded("2", "correction", reason="a licence")
    [next_one] = world.closed(DECEMBER)
    assert next_one["total"] == "0.25", "what credits exceed the usage by goes on to the next invoice"


def test_a_credit_that_is_given_again_behind_the_end_of_its_month_is_recognised(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    world.now_ms = DECEMBER.end_ms - 1_000
    entry = world.recorded("1.50", month=None)
    world.now_ms = DECEMBER.end_ms + 1_000
    assert world.recorded("1.50", month=None) == {**entry, "is_repeat": True}
    assert entry["month"] == "2025-12"
    world.now_ms += REPEATED_MS
    assert world.recorded("1.50", month=None)["month"] == "2026-01", "the next month's, by then"


def test_a_month_is_not_closed_as_nobody_has_seen_it(world: ClosingWorld) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    [draft] = world.desk.draft("acme", "2025-11")["invoices"]
    world.stored([event_in(NOVEMBER, 2)])
    asked = CloseAsked(actor="kim", expected={"USD": draft["exact"]})
    with pytest.raises(InvoiceRefused, match="look at the draft again") as refused:
        world.desk.close_month("acme", "2025-11", asked)
    assert refused.value.status == 409
    [draft] = world.desk.draft("acme", "2025-11")["invoices"]
    [invoice] = world.desk.close_month("acme", "2025-11", CloseAsked(actor="kim", expected={"USD": draft["exact"]}))[
        "invoices"
    ]
    assert (exact(invoice), len(invoice["lines"])) == (2 * COST_PICO, len(draft["lines"]))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"amount": "a dollar"}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({"currency": "XYZ"}, "currency"),
        ({"month": "2025-13"}, "month"),
        ({"tenant_id": "acmee"}, "tenant_id"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_by_name(world: ClosingWorld, changes: dict[str, Any], param: str) -> None:
    world.stored([event_in(NOVEMBER, 1)])
    with pytest.raises(InvoiceRefused) as refused:
        world.recorded(**{"amount": "1", **changes})
    assert refused.value.param == param
    assert world.rows("SELECT count() FROM ledger_entries") == [(0,)]


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_in_whatever_order_all_that_is_owed_is_asked_for_once(world: ClosingWorld, seed: int) -> None:
    """Events of three months, copies, prices that come later, credits, closings and deaths of closings; in the end the
    totals and what is left of them are what the tables hold, to the last pico.
    """
    random = Random(seed)
    events = [event_in(random.choice([OCTOBER, NOVEMBER, DECEMBER]), number, output_tokens=random.randrange(1, 10**6),
                       model=random.choice(["tiny", "euro", "later"])) for number in range(60)]  # fmt: skip
    credits_pico = 0
    months = [OCTOBER, NOVEMBER, DECEMBER]
    for turn in range(12):
        world.stored(random.choices(events, k=random.randrange(1, 12)))
        if turn == 6:
            world.priced(LATER)
        if random.random() < 0.4:
            world.recorded(f"{turn + 1}.{turn}1", reason=str(turn))
            credits_pico += int(Decimal(f"{turn + 1}.{turn}1").scaleb(12))
        if random.random() < 0.5 and months:
            orphan = world.tables.count(f"orphan-{turn}", "acme", months[0], [])
            assert all(each.events > 0 for each in orphan)
        if random.random() < 0.4 and months:
            world.closed(months.pop(0))
    for month in [*months, JANUARY]:
        world.closed(month)
    listed = world.desk.listed("acme", None)
    asked_pico = sum(
        int(Decimal(each["total"]).scaleb(12)) for each in listed["invoices"] if each["currency"] == "USD"
    )  # fmt: skip
    left = [each for each in world.desk.ledger("acme")["entries"] if not each["is_invoiced"]]
    left_pico = sum(int(Decimal(each["amount"]).scaleb(12)) for each in left if each["currency"] == "USD")
    [(used_pico,)] = world.rows("SELECT sum(cost_pico) FROM usage WHERE currency = 'USD'")
    assert asked_pico + left_pico == used_pico - credits_pico
    assert listed["open"] == []
    for each in ("2025-10", "2025-11", "2025-12", "2026-01"):
        found = world.desk.check("acme", each)
        assert (found["reproduced"], found["to_be_added"], found["missing_events"]) == (True, [], 0)
