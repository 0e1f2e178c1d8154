"""A change of prices that came to the tables too late is void, so nothing was charged by who could not know it."""

from contextlib import closing, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.price_changes import PriceRefused, check_recorded
from billing_jobs.price_desk import PriceDesk, PricesApplied
from billing_jobs.price_topic import LostPrices, PriceSource, PriceTeller
from billing_jobs.pricing import PRICES_SETTLE_MS, PriceRow
from billing_jobs.store import ClickHouseStore, Database
from streams.clocks import now_ms
from streams.log.memory import MemoryLog
from tests.unit.billing_jobs.test_price_changes import GPU_HOURS, OLD, asked, nothing_lost


def dearer(valid_from_ms: int | None, **more: object) -> PricesApplied:
    named = {"version": 0, "actor": "kim", "reason": "dearer chips"} | more
    return PricesApplied.model_validate(asked("0.80", valid_from_ms=valid_from_ms, gpu_hours=GPU_HOURS, **named))


def test_who_stands_still_on_the_way_to_the_tables_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would begin before others see it, and what was charged by the old price until then is never charged again."""
    stood_still_ms = 0

    def prices() -> list[PriceRow]:
        nonlocal stood_still_ms
        stood_still_ms = PRICES_SETTLE_MS
        return [OLD]

    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([OLD])
        store.append_gpu_prices([GpuPrice("default", "USD", 0, 1, 1)])
        monkeypatch.setattr(store, "prices", prices)
        with pytest.raises(PriceRefused, match=r"is void.* came to the tables -?\d+ ms before it begins"):
            PriceDesk(store, lambda: now_ms() + stood_still_ms, lambda _rows: None, nothing_lost).apply(dearer(None))
        assert store.price_version() == 0


@pytest.mark.parametrize("began_ago_ms", [PRICES_SETTLE_MS, PRICES_SETTLE_MS * 2 // 3, 200_000])
def test_what_the_tables_recorded_too_late_is_void_for_every_reader(database: Database, began_ago_ms: int) -> None:
    """The statement was given up, and made later; or all stood still while it was on its way."""
    log = MemoryLog(now_ms)
    log.create_topic("prices", 1)
    teller = PriceTeller(log.producer("billing"), "prices")
    with (
        closing(ClickHouseStore(database.connection())) as store,
        closing(ClickHouseStore(database.connection())) as other,
    ):
        store.append_prices([OLD])
        store.append_gpu_prices([GpuPrice("default", "USD", 0, 1, 1)])
        with pytest.raises(PriceRefused, match=r"is void.* came to the tables -?\d+ ms before it begins"):
            PriceDesk(store, lambda: now_ms() - began_ago_ms, teller.tell, nothing_lost).apply(dearer(None))
        for each in (store, other):
            lost = LostPrices(lambda: log.consumer(None, "lost"), "prices")
            assert PriceSource(each, lost, teller).load() == [OLD]
            assert [row.gpu_hour_pico for row in each.gpu_prices()] == [1]
        with database.connection().client() as client:
            assert client.query("SELECT count() FROM prices").first_row == (1,), "so views find none either"
        with pytest.raises(PriceRefused, match="at version 1, the plan is of 0"):
            PriceDesk(other, now_ms, teller.tell, nothing_lost).apply(dearer(None))
        assert PriceDesk(other, now_ms, teller.tell, nothing_lost).apply(dearer(None, version=1))["version"] == 2
        assert [row.output_pico for row in store.prices()] == [400_000, 800_000]


@given(st.lists(st.integers(0, 10**9), max_size=3), st.integers(0, 10**9))
def test_a_change_is_void_unless_it_is_recorded_well_before_each_begin_that_is_not_the_beginning(
    begins: list[int], recorded_at: int
) -> None:
    is_void = any(each and recorded_at + PRICES_SETTLE_MS // 2 > each for each in begins)
    with pytest.raises(PriceRefused) if is_void else nullcontext():
        check_recorded(begins, recorded_at)
