"""What a request holds of budgets, and what it is told where that cannot be known, or does not fit."""

from dataclasses import replace
from typing import Any

import pytest

from agents.admission.budgets import PricesUnread, beside
from agents.admission.validation import validation
from agents.quota.beside import Beside, Further, Hold
from schemas.admission import Admission
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Opened
from streams.directory import ApiKey, Budget, ScopedLimits
from streams.price_list import PriceList, told_of
from streams.pricing import PriceRow
from tests.unit.agents.admission.world import NOW, World

BUDGET = Budget(amount="1")
KEYS = [ApiKey(key_id="k", sha256="0" * 64, budget=Budget(amount="0.5"))]


def price(model: str = "tiny", output: int = 400, **fields: Any) -> PriceRow:
    """In pico per token: 100, 20 where it is cached, `output` and half of that for reasoning."""
    values: dict[str, Any] = {"currency": "USD", "valid_from_ms": 0, **fields}
    return PriceRow(
        model=model, uncached_input_pico=100_000, cached_input_pico=20_000, output_pico=output * 1_000,
        reasoning_pico=output * 500, **values,
    )  # fmt: skip


def know(world: World, *rows: PriceRow) -> None:
    world.services.prices.take(*map(told_of, rows))


async def asked(world: World, **fields: Any) -> Admission:
    found = await validation(world.request(scope=Scope(tenant_id="acme", key_id="k"), **fields), world.services)
    assert isinstance(found, Admission)
    return found


async def hold(world: World, **fields: Any) -> Hold:
    found = beside(await asked(world, **fields), world.services)
    assert isinstance(found, Beside)
    assert found.hold is not None
    return found.hold


async def test_the_prompt_and_every_answer_at_full_length_are_held_of_each_budget(world: World) -> None:
    world.change(budget=BUDGET, api_keys=KEYS, project_budgets={"other": BUDGET})
    know(world, price())
    found = await hold(world)
    assert found.nano == (5 * 100_000 + 10 * 400_000) // 1_000, "five tokens in, ten out"
    assert found.most == {"tenant": 10**9, "key:k": 5 * 10**8}, "not of another project"
    assert (found.currency, found.project, found.key, found.choices) == ("USD", "default", "k", 1)


async def test_the_dearest_price_that_may_be_charged_is_held(world: World) -> None:
    """Of each lane that it may wait in, and of the smaller model that may answer: by its tokens as they may fall."""
    world.change(budget=BUDGET)
    know(world, price(), price(output=900, lane="batch"), price(output=5_000, tenant_id="globex"))
    assert (await hold(world)).nano == (5 * 100_000 + 10 * 900_000) // 1_000
    world.change(fallback=True)
    know(world, price("big", output=100))
    assert (await hold(world, model="big")).nano == 15 * 900_000 // 1_000


async def test_a_price_that_begins_later_holds_for_what_is_accepted_then(world: World) -> None:
    world.change(budget=BUDGET)
    know(world, price(), price(output=800, valid_from_ms=NOW + 1))
    assert (await hold(world)).nano == (5 * 100_000 + 10 * 400_000) // 1_000
    assert (await hold(world, accepted_at_ms=NOW + 1)).nano == (5 * 100_000 + 10 * 800_000) // 1_000


async def test_who_has_no_budget_needs_no_price(world: World) -> None:
    services = replace(world.services, prices=PriceList())
    assert beside(await asked(world), services) == Beside()
    world.change(budget=Budget(amount="1", hard=False))
    assert beside(await asked(world), services) == Beside(), "a soft one holds nothing"


async def test_before_prices_are_read_nothing_is_decided_that_depends_on_one(world: World) -> None:
    world.change(budget=BUDGET)
    with pytest.raises(PricesUnread):
        beside(await asked(world), replace(world.services, prices=PriceList()))


async def test_the_limits_of_its_key_and_its_model_go_with_it(world: World) -> None:
    few = ScopedLimits(requests_per_minute=3)
    world.change(
        api_keys=[ApiKey(key_id="k", sha256="0" * 64, limits=few)],
        model_limits={"tiny": ScopedLimits(tokens_per_minute=99), "big": few},
    )
    found = beside(await asked(world), world.services)
    assert found == Beside((Further("key:k", few), Further("model:tiny", ScopedLimits(tokens_per_minute=99))))


async def test_a_model_without_a_price_is_refused_where_a_budget_holds_and_answered_elsewhere(world: World) -> None:
    world.beat()
    world.change(budget=BUDGET)
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert ending.code is EndingCode.UNAVAILABLE
    assert "No price is known of tiny" in ending.message
    assert ending.retry_after_ms


async def test_a_price_in_another_currency_fits_no_budget(world: World) -> None:
    world.beat()
    world.change(budget=BUDGET)
    know(world, price(currency="EUR"))
    await world.pipeline.handle_request(world.record(world.request()))
    [ending] = world.log.endings
    assert (ending.code, ending.retry_after_ms) == (EndingCode.BUDGET_EXHAUSTED, None)
    assert ending.message == "The budget is in USD; tiny may be charged in EUR."


async def test_what_was_admitted_stays_so_when_its_price_is_in_another_currency_by_then(world: World) -> None:
    world.beat()
    record = world.record(world.request())
    await world.crash_after(record, 1)
    world.change(budget=Budget(amount="1", currency="EUR"))
    know(world, price())
    await world.pipeline.handle_request(record)
    assert world.log.endings == []
    assert len(world.log.of(Opened, world.topics.generated.name)) == 2
