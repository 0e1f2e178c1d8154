"""Budgets in a real Redis: two processes at once, what comes late, and a store that has lost its memory."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping

import pytest
from redis.asyncio import Redis

from agents.quota.beside import Account, Beside, Hold, Spent
from agents.quota.port import Decided, EpochLost, Refusal, Reserved
from agents.quota.store import RedisQuota, Restored
from schemas.admission import Decision
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.month import Month
from schemas.request import Lane
from schemas.spent import SpentTotal
from streams.directory import Limits

NOW = 1_790_000_000_000
MONTH = Month.at(NOW)
LIMITS = Limits()
ROUTE = Decision(pool="default", lane=Lane.STANDARD, lane_partition=1, generated_partition=2)
New = Callable[[], Awaitable[RedisQuota]]


@pytest.fixture
def new(client: Redis) -> New:
    """A process's store, of one region; whoever is first begins its epoch."""
    region = f"t{uuid.uuid4().hex[:10]}"

    async def store() -> RedisQuota:
        quota = RedisQuota(client, region, now_ms=NOW)
        await quota.begin_epoch(await quota.new_epoch(), NOW)
        return quota

    return store


def held(nano: int, most: int = 1_000, choices: int = 1) -> Beside:
    return Beside(hold=Hold(NOW, "USD", nano, choices, "p", "k", {"tenant": most}))


def spent(nano: int, offset: int, partition: int = 0, log_id: str = "") -> Spent:
    return Spent(MONTH, "USD", nano, "p", "k", partition, offset, log_id)


async def reserve(
    quota: RedisQuota, id_: str, nano: int, *, route: Decision | None = ROUTE, most: int = 1_000
) -> object:
    return await quota.reserve(
        "acme", LIMITS, id_, tokens=1, deadline_ms=NOW + 1_000, decision=route, beside=held(nano, most)
    )


async def account(quota: RedisQuota, name: str = "tenant") -> Account:
    return (await quota.sums("acme", str(MONTH), "USD")).of(name)


async def test_of_many_at_once_by_two_processes_as_many_are_admitted_as_the_budget_holds(new: New) -> None:
    stores = [await new(), await new()]
    outcomes = await asyncio.gather(*(reserve(stores[n % 2], f"r{n}", 300) for n in range(20)))
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert len(refused) == 17
    assert {refusal.code for refusal in refused} == {EndingCode.BUDGET_EXHAUSTED}
    assert {refusal.message for refusal in refused} == {
        "What is left of this month's budget for this tenant is held for answers that still run."
    }
    assert await account(stores[0]) == Account(held=900)


async def test_what_is_settled_is_spent_and_the_rest_is_free_again(new: New) -> None:
    quota = await new()
    await reserve(quota, "r1", 900)
    refusal = await reserve(quota, "r2", 200)
    assert isinstance(refusal, Refusal)
    assert refusal.held, "what runs may leave something"
    assert await quota.settle("acme", LIMITS, "r1", 0, 1, spent(500, 0)) == "settled"
    assert await account(quota) == Account(spent=500)
    assert await quota.settle("acme", LIMITS, "r1", 0, 1, spent(500, 0)) == "duplicate"
    assert await account(quota, "key:k") == Account(spent=500)
    refusal = await reserve(quota, "r3", 501)
    assert isinstance(refusal, Refusal)
    assert not refusal.held
    assert refusal.message == (
        "What is left of this month's budget for this tenant has no room for what this may cost: its prompt and "
        "max_tokens at their prices. Fewer max_tokens may fit; it renews on 2026-10-01 (UTC)."
    )
    assert refusal.retry_after_ms is None, "nobody is to ask again by himself"
    assert isinstance(await reserve(quota, "r4", 500), Decided)


async def test_only_a_budget_of_which_nothing_is_left_is_said_to_be_used_up(new: New) -> None:
    quota = await new()
    for number, nano in enumerate((999, 1)):
        id_ = f"r{number}"
        await reserve(quota, id_, nano)
        await quota.settle("acme", LIMITS, id_, 0, 1, spent(nano, number))
        refusal = await reserve(quota, f"after-{id_}", 2)
        assert isinstance(refusal, Refusal)
        assert refusal.spent == refusal.message.startswith("The budget of this month is used up") == (number == 1)
        assert refusal.message.endswith("it renews on 2026-10-01 (UTC).")


async def test_what_is_not_billed_is_given_back(new: New) -> None:
    quota = await new()
    await reserve(quota, "r1", 900)
    await quota.settle("acme", LIMITS, "r1", 0, 0, None)
    assert await account(quota) == Account()


async def test_a_refund_keeps_the_money_of_what_was_routed_until_that_is_charged_or_forgotten(new: New) -> None:
    """However late it is settled, its budget is not given to others meanwhile."""
    quota = await new()
    await reserve(quota, "r1", 600)
    await reserve(quota, "r2", 300)
    await reserve(quota, "undecided", 100, route=None)
    for id_ in ("r1", "r2", "undecided"):
        assert await quota.refund("acme", LIMITS, id_)
    assert await account(quota) == Account(held=900)
    await quota.settle("acme", LIMITS, "r1", 0, 1, spent(550, 0))
    assert await account(quota) == Account(spent=550, held=300)
    await quota.refund("acme", LIMITS, "r2", is_forgotten=True)
    assert await account(quota) == Account(spent=550)
    assert await quota.holds("acme") == {}


async def test_a_refund_leaves_the_choices_that_may_be_charged_still_what_they_hold(new: New) -> None:
    quota = await new()
    limits, beside = Limits(), held(600, choices=2)
    await quota.reserve("acme", limits, "r1", tokens=1, deadline_ms=NOW + 1_000, decision=ROUTE, beside=beside)
    await quota.settle("acme", limits, "r1", 0, 1, spent(100, 0))
    assert not await quota.refund("acme", limits, "r1")
    assert await account(quota) == Account(spent=100, held=500)


async def test_what_nobody_knows_any_more_is_counted_once_when_it_is_settled(new: New) -> None:
    quota = await new()
    assert await quota.settle("acme", LIMITS, "r1", 0, 5, spent(70, 0)) == "unknown"
    assert await quota.settle("acme", LIMITS, "r1", 0, 5, spent(70, 0)) == "duplicate"
    assert await account(quota) == Account(spent=70)


async def test_a_late_settlement_counts_for_the_month_of_its_acceptance(new: New) -> None:
    quota = await new()
    await reserve(quota, "r1", 600)
    quota.now_ms = MONTH.end_ms + 1
    await quota.settle("acme", LIMITS, "r1", 0, 1, spent(500, 0))
    assert await account(quota) == Account(spent=500)
    assert (await quota.sums("acme", str(Month.at(MONTH.end_ms)), "USD")).accounts == {}


async def test_a_store_without_memory_begins_with_what_was_spent_and_with_what_runs(new: New, client: Redis) -> None:
    quota = await new()
    await reserve(quota, "ended", 400)
    await quota.settle("acme", LIMITS, "ended", 0, 1, spent(350, 6))
    await reserve(quota, "runs", 300)
    total = total_of((await quota.told_by("acme", str(MONTH), "USD", 0, "")).nano, offset=7)
    async for key in client.scan_iter(f"{quota.epoch_key.rpartition(':')[0]}:*"):
        await client.delete(key)

    epoch = await quota.new_epoch()
    for _ in range(2):
        # Two processes may rebuild.
        await quota.restore_spent(epoch, total)
        await quota.restore(epoch, Restored("runs", "acme", False, 1, NOW + 1_000, ROUTE), LIMITS, held(300))
        await quota.restore(epoch, Restored("ended", "acme", True, 1, NOW + 1_000, ROUTE), LIMITS)
    again = await new()
    assert await account(again) == Account(spent=350, held=300)
    assert isinstance(await reserve(again, "r3", 351), Refusal)
    await again.settle("acme", LIMITS, "ended", 0, 1, spent(350, 6))
    await again.settle("acme", LIMITS, "runs", 0, 1, spent(200, 7))
    assert await account(again) == Account(spent=550), "what was told below the offset counts once"


async def test_money_that_was_lost_is_not_taken_for_nothing(new: New, client: Redis) -> None:
    """Whoever would tell it, note something of it or look after it is told that it is gone, until it is rebuilt."""
    quota = await new()
    await quota.settle("acme", LIMITS, "r1", 0, 1, spent(350, 6))
    await quota.note_told("acme", str(MONTH), "USD", "tenant/50/1000")
    told = await quota.told_by("acme", str(MONTH), "USD", 0, "")
    assert told.nano["tenant"] == 350
    assert told.alerts == {"tenant/50/1000"}
    async for key in client.scan_iter(f"{quota.epoch_key.rpartition(':')[0]}:*"):
        await client.delete(key)

    async def all_are_refused() -> None:
        for asked in (
            quota.told_by("acme", str(MONTH), "USD", 0, ""), quota.sums("acme", str(MONTH), "USD"), quota.holds("acme"),
            quota.note_told("acme", str(MONTH), "USD", "tenant/80/1000"),
        ):  # fmt: skip
            with pytest.raises(EpochLost):
                await asked

    await all_are_refused()
    total = total_of(told.nano, offset=7).model_copy(update={"told": sorted(told.alerts)})
    await quota.restore_spent(await quota.new_epoch(), total)
    await all_are_refused()
    assert await (await new()).told_by("acme", str(MONTH), "USD", 0, "") == told


@pytest.mark.parametrize(("counted", "stands"), [(200, 500), (500, 500), (600, 600)])
async def test_a_store_that_lost_its_last_second_takes_what_the_log_proves_beyond_it(
    new: New, counted: int, stands: int
) -> None:
    quota = await new()
    await quota.settle("acme", LIMITS, "r1", 0, 1, spent(counted, 0))
    await quota.settle("acme", LIMITS, "r2", 0, 1, spent(50, 0, partition=1))
    await quota.restore_spent(
        await quota.new_epoch(), total_of({"tenant": 500, "project:p": 500, "key:k": 500}, offset=9)
    )
    again = await new()
    assert await account(again) == Account(spent=stands + 50), "other partitions as they were"
    assert await account(again, "key:k") == Account(spent=stands + 50)


async def test_a_sum_of_nothing_can_be_given_back(new: New) -> None:
    quota = await new()
    await quota.restore_spent(await quota.new_epoch(), total_of({}, offset=7))
    assert await account(await new()) == Account()


async def test_offsets_are_those_of_one_log(new: New) -> None:
    """Of a log that was begun anew all is counted, and how far it is says nothing of the one before."""
    quota = await new()
    await quota.restore_spent(
        await quota.new_epoch(), total_of({"tenant": 500, "project:p": 500, "key:k": 500}, offset=9)
    )
    again = await new()
    await again.settle("acme", LIMITS, "r1", 0, 1, spent(70, 8))
    assert await account(again) == Account(spent=500)
    await again.settle("acme", LIMITS, "r2", 0, 1, spent(70, 3, log_id="second"))
    assert await account(again) == Account(spent=570)
    counted = [(await again.told_by("acme", str(MONTH), "USD", 0, log)).counted for log in ("", "second", "third")]
    assert counted == [9, 4, 0]


async def test_who_may_wait_waits_for_what_runs_and_is_refused_where_the_month_is_over(new: New) -> None:
    quota = await new()
    await reserve(quota, "r1", 900)

    async def job(id_: str, nano: int) -> object:
        return await quota.reserve(
            "acme", LIMITS, id_, tokens=1, deadline_ms=NOW + 1_000, lane=Lane.BATCH, may_wait=True, beside=held(nano)
        )

    assert type(await job("fits later", 500)).__name__ == "NotYet"
    assert isinstance(await job("never fits", 1_001), Refusal)
    await quota.settle("acme", LIMITS, "r1", 0, 1, spent(100, 0))
    assert isinstance(await job("fits later", 500), Reserved)


def total_of(nano: Mapping[str, int], offset: int) -> SpentTotal:
    scope = Scope(tenant_id="acme", project_id="")
    return SpentTotal(scope=scope, month=str(MONTH), currency="USD", partition=0, offset=offset, nano=dict(nano))
