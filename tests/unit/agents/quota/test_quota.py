"""What a tenant may spend, as the Lua script on a real Redis decides it."""

import asyncio
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from agents.quota.port import Decided, EpochLost, Finished, NotYet, QuotaUnavailable, Refunded, Refusal, Reserved
from agents.quota.store import RedisQuota, Restored
from deploy.local.plan import redis_command
from schemas.admission import Decision
from schemas.endings import EndingCode
from schemas.request import Lane
from streams.directory import Limits
from streams.topics import LONGEST_OUTAGE_MS
from tests.servers import free_ports, server

NOW = 1_790_000_000_000
LIMITS = Limits(requests_per_minute=60, tokens_per_minute=1_000, concurrent_responses=3)
ROUTE = Decision(pool="default", lane=Lane.STANDARD, lane_partition=1, generated_partition=2, worker_id="worker-1")
OTHER_ROUTE = ROUTE.model_copy(update={"generated_partition": 7})
REFUSAL = Refusal(code=EndingCode.PROMPT_REFUSED, param="messages")
BARE = Refusal(code=REFUSAL.code)
"""What is left of it in the store."""
OTHER_REFUSAL = Refusal(code=EndingCode.DEADLINE_EXCEEDED)


def fresh_region() -> str:
    return f"t{uuid.uuid4().hex[:10]}"


async def new_quota(client: Redis, now_ms: int | None = NOW) -> RedisQuota:
    quota = RedisQuota(client, fresh_region(), now_ms=now_ms)
    await quota.begin_epoch(await quota.new_epoch(), NOW)
    return quota


@pytest.fixture
async def quota(client: Redis) -> RedisQuota:
    return await new_quota(client)


async def reserve(quota: RedisQuota, response_id: str, tokens: int = 100, limits: Limits = LIMITS) -> object:
    return await quota.reserve("acme", limits, response_id, tokens=tokens, deadline_ms=NOW + 60_000)


async def decide(quota: RedisQuota, response_id: str, decision: Decision = ROUTE) -> object:
    return await quota.decide("acme", LIMITS, response_id, decision, tokens=100, deadline_ms=NOW + 60_000)


async def refuse(quota: RedisQuota, response_id: str, refusal: Refusal = REFUSAL) -> object:
    return await quota.refuse("acme", LIMITS, response_id, refusal, deadline_ms=NOW + 60_000)


async def test_a_reservation_is_taken_once_however_often_it_is_asked_for(quota: RedisQuota) -> None:
    limits = Limits(requests_per_minute=60, tokens_per_minute=150)
    assert [await reserve(quota, "r1", 100, limits) for _ in range(3)] == [Reserved(100)] * 3
    refusal = await reserve(quota, "r2", 100, limits)
    assert isinstance(refusal, Refusal)
    assert refusal.limits["tokens_remaining"] == 50
    assert refusal.limits["requests_remaining"] == 59


async def test_a_refusal_takes_nothing_and_stands_even_when_there_is_room_later(quota: RedisQuota) -> None:
    refusal = await reserve(quota, "big", 1_001)
    assert isinstance(refusal, Refusal)
    assert refusal.code is EndingCode.RATE_LIMITED_TOKENS
    assert await reserve(quota, "fits", 1_000) == Reserved(1_000)
    assert quota.now_ms is not None
    quota.now_ms += 60_000
    again = await reserve(quota, "big", 1)
    assert isinstance(again, Refusal)
    assert again.code is refusal.code
    assert again.retry_after_ms is not None, "advice for now: the figures of then are not kept"


async def test_the_first_route_wins(quota: RedisQuota) -> None:
    await reserve(quota, "r1")
    assert await decide(quota, "r1", ROUTE) == Decided(ROUTE, 100, is_new=True)
    assert await decide(quota, "r1", OTHER_ROUTE) == Decided(ROUTE, 100)
    assert await reserve(quota, "r1") == Decided(ROUTE, 100)
    assert await refuse(quota, "r1", REFUSAL) == Decided(ROUTE, 100)


async def test_a_refused_response_is_never_routed(quota: RedisQuota) -> None:
    await reserve(quota, "r1")
    assert await refuse(quota, "r1", REFUSAL) == REFUSAL
    assert await decide(quota, "r1") == BARE
    assert await reserve(quota, "whole budget again", 1_000) == Reserved(1_000)
    assert await quota.active_count("acme") == 1


async def test_a_refusal_before_any_reservation_stands_too(quota: RedisQuota) -> None:
    assert await refuse(quota, "r1", REFUSAL) == REFUSAL
    assert await reserve(quota, "r1") == BARE


async def test_concurrency_is_released_by_settling(quota: RedisQuota) -> None:
    for name in ("r1", "r2", "r3"):
        assert await reserve(quota, name, 1) == Reserved(1)
    refusal = await reserve(quota, "r4", 1)
    assert isinstance(refusal, Refusal)
    assert refusal.code is EndingCode.RATE_LIMITED_CONCURRENCY
    assert await quota.settle("acme", LIMITS, "r1", 0, 1) == "settled"
    assert await reserve(quota, "r5", 1) == Reserved(1)


async def test_work_of_the_batch_lane_takes_no_place_of_who_waits_for_an_answer_and_is_not_refused_but_told_to_wait(
    quota: RedisQuota,
) -> None:
    limits = Limits(concurrent_responses=1, concurrent_jobs=2)

    async def job(response_id: str) -> object:
        return await quota.reserve(
            "acme", limits, response_id, tokens=1, deadline_ms=NOW + 60_000, lane=Lane.BATCH, may_wait=True
        )

    assert [await job(name) for name in ("j1", "j2")] == [Reserved(1)] * 2
    later = await job("j3")
    assert isinstance(later, NotYet)
    assert later.refusal.code is EndingCode.RATE_LIMITED_CONCURRENCY
    assert await reserve(quota, "r1", 1, limits) == Reserved(1)
    assert isinstance(await reserve(quota, "r2", 1, limits), Refusal)
    assert await quota.settle("acme", limits, "j1", 0, 1) == "settled"
    assert await job("j3") == Reserved(1), "nothing was held against it"
    due = await quota.overdue("acme", NOW + 60_000, 10)
    assert {overdue.response_id for overdue in due} == {"j2", "j3", "r1"}
    assert [await quota.refund("acme", limits, name) for name in ("j2", "j3")] == [True, True]
    assert await quota.active_count("acme") == 1


async def test_who_is_lowered_into_the_batch_lane_stays_a_response_of_its_tenant(quota: RedisQuota) -> None:
    limits = Limits(concurrent_responses=1, concurrent_jobs=5)
    lowered = ROUTE.model_copy(update={"lane": Lane.BATCH, "lowered_from": Lane.STANDARD})
    decided = await quota.decide("acme", limits, "r1", lowered, tokens=1, deadline_ms=NOW + 60_000)
    assert isinstance(decided, Decided)
    assert decided.decision == lowered
    assert isinstance(await reserve(quota, "r2", 1, limits), Refusal)


async def test_work_that_may_wait_leaves_half_a_minute_to_who_may_not(quota: RedisQuota) -> None:
    limits = Limits(requests_per_minute=10, tokens_per_minute=1_000)

    async def job(response_id: str, tokens: int) -> object:
        return await quota.reserve(
            "acme", limits, response_id, tokens=tokens, deadline_ms=NOW + 60_000, lane=Lane.BATCH, may_wait=True
        )

    assert await job("j1", 500) == Reserved(500)
    waits = await job("j2", 1)
    assert isinstance(waits, NotYet)
    assert waits.refusal.code is EndingCode.RATE_LIMITED_TOKENS
    assert await reserve(quota, "r1", 500, limits) == Reserved(500)
    await quota.settle("acme", limits, "j1", 0, 0)
    await quota.settle("acme", limits, "r1", 0, 0)
    assert [await job(f"j{number}", 1) for number in range(3, 6)] == [Reserved(1)] * 3
    waits = await job("j6", 1)
    assert isinstance(waits, NotYet)
    assert waits.refusal.code is EndingCode.RATE_LIMITED_REQUESTS
    assert [await reserve(quota, f"r{number}", 1, limits) for number in range(2, 7)] == [Reserved(1)] * 5


async def test_a_large_job_gets_its_turn_beside_chats_that_go_on(quota: RedisQuota) -> None:
    limits = Limits(tokens_per_minute=1_000)

    async def job(response_id: str, tokens: int) -> object:
        return await quota.reserve(
            "acme", limits, response_id, tokens=tokens, deadline_ms=NOW + 60_000, lane=Lane.BATCH, may_wait=True
        )

    assert await reserve(quota, "chat", 100, limits) == Reserved(100)
    assert isinstance(await job("larger", 750), NotYet), "it would leave less than two thirds of the rest"
    assert await job("large", 600) == Reserved(600)


async def test_settling_returns_what_was_not_used_and_happens_once_per_choice(quota: RedisQuota) -> None:
    await reserve(quota, "r1", 900)
    assert await quota.settle("acme", LIMITS, "r1", 0, 100) == "settled"
    assert await quota.settle("acme", LIMITS, "r1", 0, 100) == "duplicate"
    assert await quota.settle("acme", LIMITS, "r1", 1, 50) == "settled"
    refusal = await reserve(quota, "r2", 851)
    assert isinstance(refusal, Refusal)
    assert refusal.limits["tokens_remaining"] == 850
    assert await reserve(quota, "r1") == Finished()


async def test_a_late_settlement_of_a_refund_debits(quota: RedisQuota) -> None:
    await reserve(quota, "r1", 900)
    assert await quota.refund("acme", LIMITS, "r1")
    assert not await quota.refund("acme", LIMITS, "r1")
    assert await quota.settle("acme", LIMITS, "r1", 0, 1_400) == "settled"
    refusal = await reserve(quota, "r2", 1)
    assert isinstance(refusal, Refusal)
    assert refusal.code is EndingCode.RATE_LIMITED_TOKENS
    # 400 in debt and one more to gain, at 1,000 per minute.
    assert refusal.retry_after_ms == 24_060


async def test_a_refund_is_no_outcome_so_the_response_can_still_be_refused(quota: RedisQuota) -> None:
    await reserve(quota, "r1", 900)
    assert await quota.refund("acme", LIMITS, "r1")
    assert await reserve(quota, "r1", 900) == Refunded()
    assert await decide(quota, "r1") == Refunded()
    assert await refuse(quota, "r1", REFUSAL) == REFUSAL
    assert await refuse(quota, "r1", OTHER_REFUSAL) == BARE
    assert await reserve(quota, "r1", 900) == BARE
    assert await reserve(quota, "the whole budget, and not more", 1_000) == Reserved(1_000)
    assert await quota.active_count("acme") == 1


async def test_a_refund_does_not_forget_where_the_response_was_opened(quota: RedisQuota) -> None:
    await reserve(quota, "r1", 900)
    await decide(quota, "r1", ROUTE)
    assert await quota.refund("acme", LIMITS, "r1")
    assert await reserve(quota, "r1", 900) == Refunded()
    assert await decide(quota, "r1", OTHER_ROUTE) == Refunded()
    assert await refuse(quota, "r1", REFUSAL) == Decided(ROUTE, 0)
    assert await quota.settle("acme", LIMITS, "r1", 0, 100) == "settled"
    assert await refuse(quota, "r1", REFUSAL) == Finished()


async def test_a_full_bucket_gains_nothing_however_long_it_waits(quota: RedisQuota) -> None:
    await reserve(quota, "small", 0)
    assert quota.now_ms is not None
    quota.now_ms += 3_000
    refusal = await reserve(quota, "more than a minute's worth", 1_001)
    assert isinstance(refusal, Refusal)
    assert refusal.code is EndingCode.RATE_LIMITED_TOKENS


async def test_requests_flow_at_their_rate_after_a_burst_of_a_minute(quota: RedisQuota) -> None:
    limits = Limits(requests_per_minute=2)
    assert [type(await reserve(quota, f"r{i}", 1, limits)) for i in range(3)] == [Reserved, Reserved, Refusal]
    assert quota.now_ms is not None
    quota.now_ms += 29_999
    assert isinstance(await reserve(quota, "early", 1, limits), Refusal)
    quota.now_ms += 1
    assert await reserve(quota, "in time", 1, limits) == Reserved(1)


async def test_memory_that_was_lost_is_noticed_before_anything_is_decided(client: Redis, quota: RedisQuota) -> None:
    await reserve(quota, "r1")
    keys = [key async for key in client.scan_iter(match=f"{quota.epoch_key.removesuffix(':epoch')}:*")]
    await client.delete(*keys)
    with pytest.raises(EpochLost):
        await reserve(quota, "r1")
    restored = Restored("r1", "acme", ended=False, tokens=100, deadline_ms=NOW + 60_000, decision=ROUTE)
    epoch = await quota.new_epoch()
    assert await quota.restore(epoch, restored, LIMITS)
    assert not await quota.restore(epoch, restored, LIMITS)
    with pytest.raises(EpochLost):
        await RedisQuota(client, quota.epoch_key.split(":")[1], now_ms=NOW).reserve(
            "acme", LIMITS, "r2", tokens=1, deadline_ms=NOW
        )
    await quota.begin_epoch(epoch, NOW)
    assert await reserve(quota, "r1") == Decided(ROUTE, 100)
    assert await quota.active_count("acme") == 1


async def test_two_that_rebuild_at_once_lose_nothing_of_each_other(client: Redis, redis_url: str) -> None:
    names = [f"r{number}" for number in range(3_000)]
    region = fresh_region()

    async def rebuild(quota: RedisQuota, epoch: str, together: int) -> int:
        restored = 0
        for start in range(0, len(names), together):
            reservations = (
                Restored(name, "acme", ended=False, tokens=1, deadline_ms=NOW + 60_000, decision=ROUTE)
                for name in names[start : start + together]
            )
            answers = await asyncio.gather(*(quota.restore(epoch, reservation, LIMITS) for reservation in reservations))
            restored += sum(answers)
        return restored

    async with Redis.from_url(redis_url, retry=None) as other_client:
        one, other = RedisQuota(client, region, now_ms=NOW), RedisQuota(other_client, region, now_ms=NOW)
        epochs = await one.new_epoch(), await other.new_epoch()
        restored = await asyncio.gather(rebuild(one, epochs[0], 100), rebuild(other, epochs[1], 170))
        assert sum(restored) == len(names), "each by one of them"
        assert await one.active_count("acme") == len(names)
        assert await one.begin_epoch(epochs[0], NOW) == await other.begin_epoch(epochs[1], NOW) == epochs[0]
        for quota in (one, other):
            assert [await reserve(quota, name) for name in names[::100]] == [Decided(ROUTE, 1)] * 30


async def test_restored_refusals_and_ended_responses_hold_nothing(quota: RedisQuota) -> None:
    refused = Restored("no", "acme", ended=True, tokens=0, deadline_ms=0, decision=None, refusal=REFUSAL)
    ended = Restored("done", "acme", ended=True, tokens=500, deadline_ms=NOW + 60_000, decision=ROUTE)
    epoch = await quota.new_epoch()
    assert await quota.restore(epoch, refused, LIMITS)
    assert await quota.restore(epoch, ended, LIMITS)
    assert await reserve(quota, "no") == BARE
    assert await reserve(quota, "done") == Finished()
    assert await reserve(quota, "all", 1_000) == Reserved(1_000)


async def test_an_end_whose_settlement_was_lost_gives_back_what_was_held(quota: RedisQuota) -> None:
    await reserve(quota, "done", 800)
    await decide(quota, "done")
    ended = Restored("done", "acme", ended=True, tokens=800, deadline_ms=NOW + 60_000, decision=ROUTE)
    epoch = await quota.new_epoch()
    assert await quota.restore(epoch, ended, LIMITS)
    assert not await quota.restore(epoch, ended, LIMITS)
    assert await quota.active_count("acme") == 0
    assert await reserve(quota, "done") == Finished()
    # Its usage, should it come after all, is debited once, and nothing is given back again.
    assert await quota.settle("acme", LIMITS, "done", 0, 300) == "settled"
    assert await quota.settle("acme", LIMITS, "done", 0, 300) == "duplicate"
    assert await reserve(quota, "next", 700) == Reserved(700)


async def test_what_took_work_before_it_was_refused_counts_as_a_request(quota: RedisQuota) -> None:
    limits = Limits(requests_per_minute=2)

    async def look(response_id: str) -> object:
        return await quota.look("acme", limits, response_id, deadline_ms=NOW + 60_000)

    async def refuse_after_work(response_id: str) -> None:
        assert await look(response_id) is None
        for _ in range(2):
            await quota.refuse("acme", limits, response_id, REFUSAL, deadline_ms=NOW + 60_000, spends_request=True)

    await refuse_after_work("one")
    await refuse_after_work("two")
    assert await look("one") == BARE, "what is refused already is not looked at again"
    refused = await look("three")
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.retry_after_ms) == (EndingCode.RATE_LIMITED_REQUESTS, 30_000)
    assert quota.now_ms is not None
    quota.now_ms += 30_000
    assert await look("three") == Refusal(
        code=EndingCode.RATE_LIMITED_REQUESTS, retry_after_ms=1_000, limits=refused.limits | {
            "requests_remaining": 1, "requests_reset_ms": 30_000
        }
    )  # fmt: skip
    assert await look("four") is None
    assert await reserve(quota, "four", 1, limits) == Reserved(1)
    assert await look("four") == Reserved(1)


async def answers(client: Redis) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(RedisError):
                await client.ping()
                return
            await asyncio.sleep(0.02)


async def test_a_store_that_was_started_again_decides_nothing_before_it_is_rebuilt(tmp_path: Path) -> None:
    [port] = free_ports(1)
    command = redis_command(tmp_path, port)
    region = fresh_region()
    async with Redis.from_url(f"redis://127.0.0.1:{port}/0", retry=None) as client:
        one, other = RedisQuota(client, region, now_ms=NOW), RedisQuota(client, region, now_ms=NOW)

        with server(command, tmp_path / "first.log"):
            await answers(client)
            before = await one.begin_epoch(await one.new_epoch(), NOW)
            for quota in (one, other):
                await reserve(quota, "opened", 100)
                await reserve(quota, "refused", 100)
            assert await one.keep_epoch(NOW + 5_000)
            # The decision and the refusal came in the last second, and were lost.
        with server(command, tmp_path / "second.log"):
            await answers(client)
            assert before in str(await client.get(one.epoch_key)), "the key has survived"
            with suppress(QuotaUnavailable):
                await one.read_epoch()  # the connection has not
            assert not await one.keep_epoch(NOW + 9_000)
            assert await one.intact_until_ms() == NOW + 5_000
            for quota in (one, other):
                with suppress(QuotaUnavailable):
                    await quota.read_epoch()
                with pytest.raises(QuotaUnavailable):
                    await reserve(quota, "opened")  # its connection went with the first server
                with pytest.raises(EpochLost):
                    await reserve(quota, "opened")
            with pytest.raises(EpochLost):
                await one.begin_epoch(before, NOW)
            epoch = await one.new_epoch()
            opened = Restored("opened", "acme", ended=False, tokens=100, deadline_ms=NOW + 60_000, decision=ROUTE)
            refused = Restored("refused", "acme", ended=True, tokens=0, deadline_ms=NOW, decision=None, refusal=REFUSAL)
            assert await one.restore(epoch, opened, LIMITS)
            assert await one.restore(epoch, refused, LIMITS)
            await one.begin_epoch(epoch, NOW)
            for quota in (one, other):
                assert await reserve(quota, "opened") == Decided(ROUTE, 100)
                assert await reserve(quota, "refused") == BARE
            assert await one.active_count("acme") == 1


@pytest.mark.parametrize("may_wait", [False, True], ids=["refused", "waits"])
async def test_a_clock_that_was_ahead_and_is_set_back_locks_nobody_out(quota: RedisQuota, may_wait: bool) -> None:
    async def ask(response_id: str) -> object:
        return await quota.reserve(
            "acme", LIMITS, response_id, tokens=1_000, deadline_ms=NOW + 60_000, may_wait=may_wait
        )

    quota.now_ms = NOW + 3_600_000
    assert await ask("r1") == Reserved(1_000)
    for second in range(60):
        quota.now_ms = NOW + second * 1_000
        assert isinstance(await ask(f"early{second}"), NotYet if may_wait else Refusal), "a minute's tokens are spent"
    quota.now_ms = NOW + 60_000
    assert await ask("r2") == Reserved(1_000)


async def test_an_outcome_outlives_the_longest_outage_and_a_flood_of_refusals_does_not(
    client: Redis, quota: RedisQuota
) -> None:
    await reserve(quota, "answered")
    await decide(quota, "answered")
    await quota.settle("acme", LIMITS, "answered", 0, 10)
    await reserve(quota, "too big", 2_000)
    await refuse(quota, "refused")
    prefix = quota.epoch_key.removesuffix(":epoch") + ":quota:{acme}:response:"
    assert await client.pttl(prefix + "answered") > LONGEST_OUTAGE_MS
    left_ms = await client.pttl(prefix.replace("response:", "refused:1"))
    assert 900_000 < left_ms < 1_000_000
    size_bytes = await client.memory_usage(prefix + "answered")
    assert size_bytes is not None
    assert size_bytes < 200, "the bytes that a response costs for all that time"


async def test_memory_is_bounded_by_time(client: Redis) -> None:
    quota = RedisQuota(client, fresh_region(), keep_ms=50)
    await quota.begin_epoch(await quota.new_epoch(), NOW)
    await quota.reserve("acme", LIMITS, "r1", tokens=1, deadline_ms=0)
    await refuse(quota, "r2", REFUSAL)
    left = [1]
    for _ in range(200):
        left = [key async for key in client.scan_iter(match=f"*{quota.epoch_key.split(':')[1]}*response*")]
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left


async def test_a_store_that_is_down_is_unavailable_and_nothing_else() -> None:
    async with Redis.from_url("redis://127.0.0.1:1/0", retry=None, socket_connect_timeout=0.2) as client:
        with pytest.raises(QuotaUnavailable):
            await reserve(RedisQuota(client, "nowhere"), "r1")


async def test_the_script_survives_a_restart_of_the_server(client: Redis, quota: RedisQuota) -> None:
    await client.script_flush()
    assert await reserve(quota, "r1") == Reserved(100)


async def test_a_connection_that_is_cut_costs_one_call_and_no_answer_goes_to_another(
    client: Redis, quota: RedisQuota
) -> None:
    await reserve(quota, "r1", 100)
    await client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(QuotaUnavailable):
        await reserve(quota, "r2", 200)
    answers = await asyncio.gather(reserve(quota, "r2", 200), reserve(quota, "r1", 5))
    assert list(answers) == [Reserved(200), Reserved(100)]


async def test_a_store_that_is_slow_is_unavailable_in_time_and_its_late_answer_is_nobodys(redis_url: str) -> None:
    async with Redis.from_url(redis_url, retry=None, socket_timeout=1) as client:
        quota = await new_quota(client)
        await reserve(quota, "r1", 100)
        async with Redis.from_url(redis_url) as operator:
            await operator.client_pause(60_000, all=False)  # scripts, which write
            with pytest.raises(QuotaUnavailable):
                await reserve(quota, "r1", 100)
            await operator.client_unpause()
        assert await reserve(quota, "r2", 200) == Reserved(200)


def test_a_budget_is_exact_under_concurrency_and_retries(redis_url: str) -> None:
    """400 requests of 10 tokens, each sent twice, by 8 threads, against 1,000 tokens: 100 are admitted."""
    region, limits = fresh_region(), Limits(tokens_per_minute=1_000)
    admitted: set[str] = set()
    answers: dict[str, set[object]] = {}
    lock = threading.Lock()

    async def one_thread(number: int) -> None:
        async with Redis.from_url(redis_url, retry=None) as client:
            quota = RedisQuota(client, region, now_ms=NOW)
            await quota.begin_epoch(await quota.new_epoch(), NOW)
            for attempt in range(2):
                for i in range(50):
                    # The second attempt of a request comes from another thread.
                    response_id = f"r{(number + attempt) % 8 * 50 + i}"
                    outcome = await quota.reserve("acme", limits, response_id, tokens=10, deadline_ms=NOW + 60_000)
                    with lock:
                        heard = outcome.code if isinstance(outcome, Refusal) else outcome
                        answers.setdefault(response_id, set()).add(heard)
                        if isinstance(outcome, Reserved):
                            admitted.add(response_id)

    threads = [threading.Thread(target=lambda n=n: asyncio.run(one_thread(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 100
    assert len(answers) == 400
    assert all(len(heard) == 1 for heard in answers.values()), "both attempts hear the same"
