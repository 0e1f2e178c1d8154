"""A quota store that has lost its memory knows what was spent, and what runs, before anything is decided."""

import uuid

import pytest
from redis.asyncio import Redis

from agents.admission.budgets import PricesUnread, beside_of_opened
from agents.admission.recovery import Recovery
from agents.quota.beside import Account, Month
from agents.quota.store import RedisQuota
from schemas.base import Scope
from schemas.spent import SpentTotal
from streams.directory import Budget
from streams.log.memory import MemoryLog
from streams.price_list import PriceList, told_of
from streams.pricing import PriceRow
from tests.unit.agents.admission.test_recovery import NOW, opened
from tests.unit.agents.admission.world import World

MONTH = Month.of(NOW)


async def test_what_was_spent_is_back_and_what_runs_holds_its_money_again(redis_url: str) -> None:
    world = World()
    world.change(budget=Budget(amount="1"))
    runs = opened("runs")
    prices = PriceList(are_read=True)
    prices.take(told_of(PriceRow(runs.model, "USD", 0, 100_000, 20_000, 400_000, 400_000)))
    total = SpentTotal(
        scope=Scope(tenant_id="acme", project_id=""), month=MONTH.name, currency="USD", partition=2, offset=9,
        nano={"tenant": 700_000, "project:default": 700_000, "key:k": 700_000}, told=["tenant/50/1000000000"],
    )  # fmt: skip
    log = MemoryLog(lambda: NOW)
    log.create_topic("generated", 1)
    log.append("generated", runs.model_copy(update={"deadline_ms": NOW + 60_000}).encode())
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}")
        await Recovery(
            quota, world.directory, lambda: log.consumer(None, "t"), "generated", 30, lambda: NOW,
            beside_of=lambda each: beside_of_opened(each, world.directory, world.catalog, prices),
            read_spent=lambda _patience_s: [total],
        ).run()  # fmt: skip
        sums = await quota.sums("acme", Month.of(runs.accepted_at_ms).name, "USD")
        spent = await quota.sums("acme", MONTH.name, "USD")
    prompt, rest = runs.prompt_tokens, runs.reserved_tokens - runs.prompt_tokens
    assert sums.of("tenant").held == (prompt * 100_000 + rest * 400_000) // 1_000
    assert spent.of("key:k") == Account(spent=700_000, held=spent.of("key:k").held)
    assert spent.told == {"tenant/50/1000000000"}


def test_nothing_is_put_back_by_prices_that_are_not_read() -> None:
    world = World()
    world.change(budget=Budget(amount="1"))
    with pytest.raises(PricesUnread):
        beside_of_opened(opened("runs"), world.directory, world.catalog, PriceList())
