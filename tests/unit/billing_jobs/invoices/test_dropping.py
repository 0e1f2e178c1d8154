"""A month's events leave as one part, which the engine may merge or rewrite while it is looked at."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.invoices import tables as invoice_tables
from billing_jobs.invoices.amounts import InvoiceRefused
from billing_jobs.invoices.desk import DropAsked
from billing_jobs.metrics import BillingMetrics
from billing_jobs.rollups.roller import LOOK_PERIOD_S, PUT_OFF_S, Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS, have_left
from billing_jobs.store import Database
from tests.unit.billing_jobs.events import compute_record
from tests.unit.billing_jobs.invoices.closing_world import (
    COST_PICO,
    DECEMBER,
    JANUARY,
    NOVEMBER,
    OCTOBER,
    ClosingWorld,
    event_in,
)

DROP = DropAsked(month="2025-11", actor="kim", reason="13 months")
CLASSES = ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "released_tokens")
NO_TOKENS = dict.fromkeys(CLASSES, 0)
REWRITE = "OPTIMIZE TABLE usage_events PARTITION ID '202511' FINAL"


@pytest.fixture
def world(database: Database) -> Iterator[ClosingWorld]:
    """November of two events is closed and summed."""
    with closing(ClosingWorld(database)) as opened:
        opened.stored([event_in(NOVEMBER, 1), event_in(NOVEMBER, 2)])
        opened.closed(NOVEMBER)
        opened.summed()
        yield opened


def shown(world: ClosingWorld) -> tuple[int, int]:
    [(requests, cost_pico)] = world.rows("SELECT sum(requests), sum(cost_pico) FROM usage_by_hour")
    return requests, cost_pico


@pytest.fixture
def meanwhile(world: ClosingWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None], int], None]:
    """Has something happen so many times between the look at a part and its end, whereupon the part is merged."""
    write_down = invoice_tables._insert

    def set_up(happens: Callable[[], None], times: int) -> None:
        left = [happens] * times

        def struck(*arguments: Any) -> None:
            write_down(*arguments)
            if left:
                left.pop()()
                with world.database.connection().client() as client:
                    client.command(REWRITE)

        monkeypatch.setattr(invoice_tables, "_insert", struck)

    return set_up


def nothing() -> None:
    pass


Meanwhile = Callable[[Callable[[], None], int], None]


def test_a_part_that_is_merged_meanwhile_is_looked_at_again_and_dropped(
    world: ClosingWorld, meanwhile: Meanwhile
) -> None:
    meanwhile(nothing, 1)
    assert world.desk.drop_month(DROP)["events"] == 2
    assert world.rows("SELECT count() FROM usage_events") == [(0,)]
    assert shown(world) == (2, 2 * COST_PICO)
    assert world.desk.check("acme", "2025-11")["dropped_at"] is not None


def test_what_was_merged_with_a_late_event_stays_until_that_is_on_an_invoice(
    world: ClosingWorld, meanwhile: Meanwhile
) -> None:
    meanwhile(lambda: world.stored([event_in(NOVEMBER, 9)]), 1)
    with pytest.raises(InvoiceRefused, match="usage of acme in 2025-11 came after its invoice"):
        world.desk.drop_month(DROP)
    assert shown(world) == (3, 3 * COST_PICO)
    assert world.desk.check("acme", "2025-11")["dropped_at"] is None, "though it was written down that it would leave"
    world.closed(DECEMBER)
    world.summed()
    assert world.desk.drop_month(DROP)["events"] == 3
    assert shown(world) == (3, 3 * COST_PICO)


def test_a_month_that_stays_is_looked_at_seldom_and_may_be_dropped_later(
    world: ClosingWorld, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(nothing, 99)
    with pytest.raises(InvoiceRefused, match="is being rewritten, nothing was dropped; ask again"):
        world.desk.drop_month(DROP)
    monkeypatch.undo()
    looked_at_s: list[float] = []
    now_s = 0.0

    def counted(*arguments: Any) -> bool:
        looked_at_s.append(now_s)
        return have_left(*arguments)

    monkeypatch.setattr("billing_jobs.rollups.roller.have_left", counted)
    with closing(world.database.connection(ROLLER_SETTINGS)) as connection:
        roller = Roller(connection, BillingMetrics(CollectorRegistry()), lambda: now_s, lambda: 7)
        while now_s < 400 * LOOK_PERIOD_S:
            assert roller.step() == LOOK_PERIOD_S
            now_s += LOOK_PERIOD_S
        waits_s = [later - earlier for earlier, later in pairwise(looked_at_s)]
        assert waits_s[:3] == [LOOK_PERIOD_S, 2 * LOOK_PERIOD_S, 4 * LOOK_PERIOD_S]
        assert max(waits_s) <= PUT_OFF_S < sum(waits_s)
        assert len(looked_at_s) < 12
        assert shown(world) == (2, 2 * COST_PICO)
        assert world.desk.drop_month(DROP)["events"] == 2
        assert roller.step() >= 0
    assert shown(world) == (2, 2 * COST_PICO)


def test_margins_are_what_they_were_and_of_no_endpoint(world: ClosingWorld) -> None:
    world.store.append_gpu_prices([GpuPrice("default", "USD", 0, 3_600_000 * 4, 1)])
    used = [event_in(NOVEMBER, 3), event_in(NOVEMBER, 4, endpoint="embeddings")]
    refused = event_in(NOVEMBER, 5, pool="", model="", attempts=0, billable=False, **NO_TOKENS)
    world.stored([*used, refused], [compute_record(3), compute_record(4)])
    world.closed(DECEMBER)
    world.summed()
    by_endpoint = "SELECT endpoint, tokens > 0, gpu_cost_pico > 0 FROM margins WHERE tenant_id != '' ORDER BY ALL"
    by_all_else = (
        "SELECT day, pool, tenant_id, model, currency, sum(tokens), sum(engine_ms), sum(charged_pico),"
        " sum(gpu_cost_pico), sum(margin_pico) FROM margins GROUP BY ALL ORDER BY ALL"
    )
    before = world.rows(by_all_else)
    assert world.rows("SELECT sum(charged_pico) FROM margins") == [(4 * COST_PICO,)]
    assert ("embeddings", 1, 1) in world.rows(by_endpoint)
    for late in range(2):
        world.desk.drop_month(DROP)
        assert world.rows(by_all_else) == before
        assert {endpoint for endpoint, *_ in world.rows(by_endpoint)} == {""}
        world.stored([event_in(NOVEMBER, 10 + late)])
        [(tokens, charged_pico)] = world.rows("SELECT sum(tokens), sum(charged_pico) FROM margins")
        assert (tokens, charged_pico) == (46 * (5 + late), COST_PICO * (5 + late)), "what comes late is beside it"
        assert world.rows(f"SELECT sum(tokens) FROM margins WHERE endpoint = '{used[0].endpoint}'") == [(46,)]
        world.closed((JANUARY, OCTOBER)[late])
        world.summed()
        before = world.rows(by_all_else)
