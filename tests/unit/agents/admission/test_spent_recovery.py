"""A quota store that has lost its memory knows what was spent, and what runs, before anything is decided."""

import uuid

import pytest
from redis.asyncio import Redis

from agents.admission.budgets import PricesUnread, beside_of_opened
from agents.admission.recovery import UNBILLED_MS, Recovery
from agents.admission.spent_recovery import SpentRead
from agents.quota.beside import Account, Beside
from agents.quota.store import RedisQuota, Restored
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.month import Month
from schemas.spent import SpentTotal
from streams.directory import Budget, Limits
from streams.log.memory import MemoryLog
from streams.price_list import PriceList, told_of
from streams.pricing import PriceRow
from tests.unit.agents.admission.test_recovery import NOW, ending, opened
from tests.unit.agents.admission.world import World
from tests.unit.agents.quota.test_budgets import ROUTE

MONTH = Month.at(NOW)


async def test_what_was_spent_is_back_and_what_runs_holds_its_money_again(redis_url: str) -> None:
    world = World()
    world.change(budget=Budget(amount="1"))
    runs = opened("runs")
    prices = PriceList(are_read=True)
    prices.take(told_of(PriceRow(runs.model, "USD", 0, 100_000, 20_000, 400_000, 400_000)))
    total = SpentTotal(
        scope=Scope(tenant_id="acme", project_id=""), month=str(MONTH), currency="USD", partition=2, offset=9,
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
            read_spent=lambda *_: SpentRead([total], frozenset()),
        ).run()  # fmt: skip
        sums = await quota.sums("acme", str(Month.at(runs.accepted_at_ms)), "USD")
        spent = await quota.sums("acme", str(MONTH), "USD")
    prompt, rest = runs.prompt_tokens, runs.reserved_tokens - runs.prompt_tokens
    assert sums.of("tenant").held == (prompt * 100_000 + rest * 400_000) // 1_000
    assert spent.of("key:k") == Account(spent=700_000, held=spent.of("key:k").held)
    assert spent.told == {"tenant/50/1000000000"}


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_ended_holds_its_money_until_it_is_charged(redis_url: str, *, restarted: bool) -> None:
    """Post-safety is behind: `generated` shows the end, `usage` does not tell yet what it costs."""
    world = World()
    world.change(budget=Budget(amount="1"))
    prices, now_ms = PriceList(are_read=True), NOW
    prices.take(told_of(PriceRow(opened("r").model, "USD", 0, 100_000, 20_000, 400_000, 400_000)))
    log = MemoryLog(lambda: now_ms)
    log.create_topic("generated", 1)

    def ended(response_id: str, at_ms: int) -> None:
        nonlocal now_ms
        now_ms = at_ms
        log.append("generated", runs(response_id).encode())
        log.append("generated", ending(response_id, EndingCode.CANCELLED).encode())

    def runs(response_id: str) -> Opened:
        return opened(response_id).model_copy(update={"deadline_ms": NOW + 60_000, "choices": 2})

    def beside(each: Opened) -> Beside:
        return beside_of_opened(each, world.directory, world.catalog, prices)

    for response_id, at_ms in (("long ago", NOW - UNBILLED_MS - 1), ("unbilled", NOW), ("half", NOW), ("billed", NOW)):
        ended(response_id, at_ms)
    charged = frozenset({"billed/0", "billed/1", "half/0"})
    async with Redis.from_url(redis_url) as redis:
        quota = RedisQuota(redis, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW)
        if restarted:
            # Only the end of its memory was lost: all of them are held, and of one the second choice is not settled.
            epoch = await quota.new_epoch()
            for response_id in ("long ago", "unbilled", "half", "billed"):
                held = Restored(response_id, "acme", False, 8, NOW + 60_000, ROUTE)
                await quota.restore(epoch, held, Limits(), beside(runs(response_id)))
            first = await quota.begin_epoch(epoch, NOW)
            await quota.settle("acme", Limits(), "billed", 0, 4)
            await redis.delete(quota.epoch_key)
            assert first == epoch
        await Recovery(
            quota, world.directory, lambda: log.consumer(None, "t"), "generated", 30, lambda: NOW, beside_of=beside,
            read_spent=lambda *_: SpentRead([], charged),
        ).run()  # fmt: skip
        assert set(await quota.holds("acme")) == {"unbilled", "half"}
        assert await quota.active_count("acme") == 0
        for choice in range(2):
            await quota.settle("acme", Limits(), "unbilled", choice, 4)
        assert set(await quota.holds("acme")) == {"half"}


def test_nothing_is_put_back_by_prices_that_are_not_read() -> None:
    world = World()
    world.change(budget=Budget(amount="1"))
    with pytest.raises(PricesUnread):
        beside_of_opened(opened("runs"), world.directory, world.catalog, PriceList())
