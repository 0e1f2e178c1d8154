"""Claims: the Redis script against the table in memory, and what happens to claims in time."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
import redis as sync_redis
from hypothesis import HealthCheck, given, settings
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gpu_consumers.core.claims import AskClaim, Claim, ClaimsUnavailable, ClaimTable, FinishClaim, ReleaseClaim
from gpu_consumers.shell.redis_claims import RedisClaims
from streams import redis_keys
from streams.redis_client import connect_redis
from streams.script_pipeline import MAX_BATCH, ScriptPipeline

LONG_MS = 600_000


class _AnyMs(int):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and 0 < other <= LONG_MS

    __hash__ = int.__hash__


ANY_MS = _AnyMs()
"""Equal to any time for which a lease may still stand."""
_regions = count()

Step = tuple[Literal["begin", "take", "look", "finish", "release", "renew", "resign"], str, str, int]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "take", "look", "finish", "release", "renew", "resign"]),
        st.sampled_from(["a/1", "a/2", "b/1"]),
        st.sampled_from(["r1", "moved"]),
        st.integers(0, 5),
    ),
    max_size=25,
)


def claims(redis: Redis, region: str, incarnation: str = "a/1", lease_ms: int = LONG_MS) -> RedisClaims:
    return RedisClaims(redis, region=region, pool="p", incarnation=incarnation, lease_ms=lease_ms)


async def let_go(redis: Redis, region: str, incarnation: str) -> None:
    """Its lease ends, as by time: whoever waited for that would hope to be asked again before it does."""
    assert await redis.delete(redis_keys.lease(region, incarnation)) == 1


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    client = connect_redis(redis_url, timeout_ms=60_000, max_connections=64, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
def region() -> str:
    return f"claims{next(_regions)}"


@given(script=STEPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_redis_decides_as_the_table_does(redis_url: str, script: list[Step]) -> None:
    async def play() -> None:
        client = connect_redis(redis_url, timeout_ms=60_000, decode_responses=True)
        region = f"claims{next(_regions)}"
        stores = {name: claims(client, region, name) for name in ("a/1", "a/2", "b/1")}
        table = ClaimTable(LONG_MS)
        for what, incarnation, response_id, number in script:
            store, attempt_id, move = stores[incarnation], f"att_{number}", int(response_id == "moved")
            if what in ("begin", "take", "look"):
                most_begun = number if number < 3 else None
                held_as = f"att_{number ^ 1}" if number > 1 else ""
                ask = AskClaim(
                    "r1", attempt_id, what, generated_end=number, most_begun=most_begun, held_as=held_as, move=move
                )
                [found] = await store.claim([ask])
                expected = table.claim(incarnation, ask, 0)
                assert found is not None
                if found.state == "leased":
                    assert 0 < found.retry_in_ms <= LONG_MS
                assert dataclasses.replace(found, retry_in_ms=expected.retry_in_ms) == expected
            elif what == "finish":
                await store.finish([FinishClaim("r1", move=move)])
                table.finish(incarnation, FinishClaim("r1", move=move))
            elif what == "release":
                mark = ReleaseClaim("r1", attempt_id, uncount=bool(number % 2), move=move)
                await store.release([mark])
                table.release(incarnation, mark)
            elif what == "renew":
                assert await store.renew() == table.renew(incarnation, 0)
            else:
                await store.resign()
                table.resign(incarnation)
        await client.aclose()

    asyncio.run(play())


async def test_of_many_that_claim_at_once_one_gets_it(redis: Redis, region: str) -> None:
    workers = [claims(redis, region, f"w{number}/1") for number in range(20)]
    answers = await asyncio.gather(*(worker.claim([AskClaim("r", "att")]) for worker in workers))
    assert sorted(answer.state for [answer] in answers if answer is not None) == ["fresh"] + ["leased"] * 19


async def test_one_renewal_keeps_everything_and_its_absence_loses_everything(redis: Redis, region: str) -> None:
    holder, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    requests = [AskClaim(f"r{number}", f"att{number}") for number in range(50)]
    assert {claim and claim.state for claim in await holder.claim(requests)} == {"fresh"}
    await redis.pexpire(redis_keys.lease(region, "a/1"), LONG_MS // 2)
    assert await holder.renew()
    anew = [AskClaim(f"r{number}", f"new{number}") for number in range(50)]
    leased = [claim for claim in await other.claim(anew) if claim is not None]
    assert [claim.state for claim in leased] == ["leased"] * 50
    assert all(LONG_MS // 2 < claim.retry_in_ms <= LONG_MS for claim in leased)
    await let_go(redis, region, "a/1")
    assert await other.claim(anew) == [Claim("expired", f"att{number}", begun=1) for number in range(50)]


async def test_a_lease_ends_by_itself_when_it_was_said_to(redis: Redis, region: str) -> None:
    holder, other = claims(redis, region, "a/1", lease_ms=50), claims(redis, region, "b/1")
    await holder.claim([AskClaim("r", "att_a")])
    await asyncio.sleep(0.1)
    assert await other.claim([AskClaim("r", "att_b")]) == [Claim("expired", "att_a", begun=1)]


async def test_what_nobody_began_is_left_alone_by_who_asks_for_begun_work_only(redis: Redis, region: str) -> None:
    holder, heir = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    await holder.claim([AskClaim("begun", "att_old")])
    asked = [AskClaim(each, "att_new", "look") for each in ("begun", "unheard")]
    assert [claim and claim.state for claim in await heir.claim(asked)] == ["leased", "fresh"]
    await let_go(redis, region, "a/1")
    assert await heir.claim(asked) == [Claim("expired", "att_old", begun=1), Claim("fresh")]
    assert await holder.claim([AskClaim("unheard", "att")]) == [Claim("fresh", counted=True)]


async def test_what_another_has_begun_is_counted_once_it_enters_and_not_while_it_waits_for_that(
    redis: Redis, region: str
) -> None:
    """Whoever takes it over may be lost meanwhile, with another request in its engine."""
    holder, heir, third = (claims(redis, region, name) for name in ("a/1", "b/1", "c/1"))
    assert await holder.claim([AskClaim("r", "att_a")]) == [Claim("fresh", counted=True)]
    await let_go(redis, region, "a/1")
    assert await heir.claim([AskClaim("r", "att_b")]) == [Claim("expired", "att_a", begun=1)]
    await let_go(redis, region, "b/1")
    assert await third.claim([AskClaim("r", "att_c")]) == [Claim("expired", "att_b", begun=1)]
    enters = AskClaim("r", "att_d", held_as="att_c")
    assert await third.claim([enters]) == [Claim("expired", "att_c", begun=1, counted=True)]
    assert await third.claim([enters]) == [Claim("expired", "att_d", begun=2, counted=True)], (
        "told twice, it enters once"
    )
    taken = AskClaim("r", "att_e", "take", held_as="att_d")
    assert await third.claim([taken]) == [Claim("expired", "att_d", begun=2, counted=True)]
    assert await third.claim([AskClaim("r", "att_e")]) == [Claim("expired", "att_e", begun=2, counted=True)], (
        "taken under another name, it has not entered once more"
    )


async def test_what_was_taken_and_not_counted_is_counted_when_it_has_entered_all_the_same(
    redis: Redis, region: str
) -> None:
    """The answer was lost, and it began without: who keeps it asks again under the same name."""
    holder, heir, third = (claims(redis, region, name) for name in ("a/1", "b/1", "c/1"))
    await holder.claim([AskClaim("r", "att_a")])
    await let_go(redis, region, "a/1")
    assert await heir.claim([AskClaim("r", "att_b")]) == [Claim("expired", "att_a", begun=1)]
    assert await heir.claim([AskClaim("r", "att_b")]) == [Claim("expired", "att_b", begun=1, counted=True)]
    await let_go(redis, region, "b/1")
    assert await third.claim([AskClaim("r", "att_c")]) == [Claim("expired", "att_b", begun=2)]


async def test_who_forgives_what_was_counted_counts_its_own_entry_again(redis: Redis, region: str) -> None:
    holder = claims(redis, region, "a/1")
    await holder.claim([AskClaim("r", "att_a")])
    keeps = AskClaim("r", "att_a", most_begun=0)
    assert await holder.claim([keeps]) == [Claim("expired", "att_a", counted=True)]
    assert await holder.claim([dataclasses.replace(keeps, most_begun=1)]) == [
        Claim("expired", "att_a", begun=1, counted=True)
    ]


async def test_what_was_given_back_uncounted_is_counted_when_it_enters(redis: Redis, region: str) -> None:
    store, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    await store.claim([AskClaim("r", "att")])
    await store.release([ReleaseClaim("r", "att", uncount=True)])
    assert await store.claim([AskClaim("r", "att")]) == [Claim("expired", "att", counted=True)]
    assert await other.claim([AskClaim("r", "att_b")]) == [Claim("leased", "att", ANY_MS, 1)]


async def test_a_worker_that_was_overtaken_cannot_call_the_work_finished(redis: Redis, region: str) -> None:
    zombie, heir, third = (claims(redis, region, name) for name in ("a/1", "b/1", "c/1"))
    await zombie.claim([AskClaim("r", "att_zombie")])
    await let_go(redis, region, "a/1")
    assert await heir.claim([AskClaim("r", "att_heir")]) == [Claim("expired", "att_zombie", begun=1)]
    await zombie.finish([FinishClaim("r")])
    await let_go(redis, region, "b/1")
    assert await third.claim([AskClaim("r", "att_third")]) == [Claim("expired", "att_heir", begun=1)]


async def test_a_claim_is_of_the_response_whichever_pool_asks(redis: Redis, region: str) -> None:
    first = claims(redis, region, "a/1")
    second = RedisClaims(redis, region=region, pool="another", incarnation="b/1", lease_ms=LONG_MS)
    await first.claim([AskClaim("r", "att_a", generated_end=7)])
    assert await second.claim([AskClaim("r", "att_b")]) == [Claim("leased", "att_a", ANY_MS, 1, 7)]
    await let_go(redis, region, "a/1")
    assert await second.claim([AskClaim("r", "att_b", generated_end=99)]) == [Claim("expired", "att_a", 0, 1, 7)]


async def test_a_late_release_frees_no_newer_claim(redis: Redis, region: str) -> None:
    holder, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    await holder.claim([AskClaim("r", "att_old")])
    await holder.claim([AskClaim("r", "att_new", held_as="att_old")])
    await holder.release([ReleaseClaim("r", "att_old")])
    assert await other.claim([AskClaim("r", "att")]) == [Claim("leased", "att_new", ANY_MS, 2)]
    await holder.release([ReleaseClaim("r", "att_new", uncount=True)])
    assert await other.claim([AskClaim("r", "att")]) == [Claim("expired", "att_new", 0, 1)]


async def test_a_lease_that_was_lost_with_the_stores_memory_is_noticed(redis: Redis, region: str) -> None:
    store = claims(redis, region)
    assert not await store.renew()
    assert await store.renew()
    await redis.delete(*[key async for key in redis.scan_iter(f"sluice:{region}:*")])
    assert not await store.renew()


async def test_what_ended_is_remembered_beyond_its_deadline(redis: Redis, region: str) -> None:
    """A commit may be held for as long by another response: its record is read again until then."""
    store = claims(redis, region)
    day_ms = 24 * 3_600_000
    await store.claim([AskClaim("r", "att", keep_ms=day_ms)])
    await store.finish([FinishClaim("r", keep_ms=day_ms)])
    [key] = [key async for key in redis.scan_iter(f"sluice:{region}:*:claim:*")]
    assert day_ms - 300_000 < await redis.pttl(key) <= day_ms


async def claim_as_the_release_before(redis: Redis, region: str, response_id: str, *, lease_ms: int) -> None:
    await redis.hset(
        redis_keys.claim_of_the_release_before(region, "p", response_id),
        mapping={"incarnation": "old/1", "attempt": "att_old"},
    )
    await redis.set(redis_keys.lease_of_the_release_before(region, "p", "old/1"), "1", px=lease_ms)


@pytest.mark.parametrize("purpose", ["begin", "take", "look"])
async def test_what_a_worker_of_the_release_before_holds_is_left_to_it_while_it_lives(
    redis: Redis, region: str, purpose: Literal["begin", "take", "look"]
) -> None:
    """An upgrade: it leaves the lanes, and finishes what it has begun."""
    await claim_as_the_release_before(redis, region, "r", lease_ms=LONG_MS)
    store, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    ask = AskClaim("r", "att_new", purpose, generated_end=5)
    leased = Claim("leased", "att_old", ANY_MS)
    assert [claim and claim.state for claim in await store.claim([ask, AskClaim("s", "att_s")])] == ["leased", "fresh"]
    its_ask = dataclasses.replace(ask, attempt_id="att_other")
    assert await other.claim([its_ask]) == [leased], "nothing of the first ask is in its way"
    await redis.delete(redis_keys.lease_of_the_release_before(region, "p", "old/1"))
    [claim] = await other.claim([dataclasses.replace(ask, attempt_id="att_last")])
    assert claim is not None
    assert claim.state == "expired"
    assert claim.begun == 0, "who gave way has begun nothing"
    assert await store.claim([ask]) == [Claim("leased", "att_last", ANY_MS, 0, 5)]


async def test_a_claim_that_cannot_be_given_back_to_the_release_before_is_given_back_with_the_next_ask(
    redis: Redis, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim_as_the_release_before(redis, region, "r", lease_ms=60_000)
    store, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    ask = AskClaim("r", "att_new")
    with monkeypatch.context() as broken:

        async def fail(_marks: object) -> None:
            raise ClaimsUnavailable("scripted")

        broken.setattr(store, "release", fail)
        assert await store.claim([ask]) == [Claim("leased", "att_old", ANY_MS)]
    assert await store.claim([ask]) == [Claim("leased", "att_old", ANY_MS)]
    await redis.delete(redis_keys.lease_of_the_release_before(region, "p", "old/1"))
    [claim] = await other.claim([dataclasses.replace(ask, attempt_id="att_other")])
    assert claim is not None
    assert (claim.state, claim.begun) == ("expired", 0), "it is nobody's"


async def test_what_ended_in_the_release_before_has_ended(redis: Redis, region: str) -> None:
    key = redis_keys.claim_of_the_release_before(region, "p", "r")
    await redis.hset(key, mapping={"incarnation": "", "attempt": "att_old", "finished": "1"})
    assert await claims(redis, region).claim([AskClaim("r", "att")]) == [Claim("finished")]


async def test_every_key_ends_by_itself(redis: Redis, region: str) -> None:
    store = claims(redis, region)
    await store.claim([AskClaim("r1", "att1"), AskClaim("r2", "att2")])
    await store.finish([FinishClaim("r2"), FinishClaim("r3")])
    keys = [key async for key in redis.scan_iter(f"sluice:{region}:*")]
    assert len(keys) == 3
    assert all([await redis.pttl(key) > 0 for key in keys])


async def test_a_store_that_does_not_answer_says_so() -> None:
    client = connect_redis("redis://127.0.0.1:1/0", timeout_ms=200, decode_responses=True)
    store = claims(client, "nowhere")
    assert await store.claim([AskClaim("r1", "a"), AskClaim("r2", "b")]) == [None, None]
    for call in (store.renew(), store.finish([FinishClaim("r")]), store.release([ReleaseClaim("r", "att")])):
        with pytest.raises(ClaimsUnavailable):
            await call
    with pytest.raises(ClaimsUnavailable):
        await store.resign()
    await client.aclose()


async def test_all_calls_of_a_store_share_one_connection(redis: Redis, region: str) -> None:
    store = claims(redis, region)
    await store.claim([AskClaim("r", "att")])
    connections = len(await redis.client_list())
    await asyncio.gather(
        store.finish([FinishClaim("r")]), store.release([ReleaseClaim("r", "att")]), store.claim([AskClaim("s", "att")])
    )
    assert len(await redis.client_list()) == connections
    assert await store.claim([AskClaim("r", "att"), AskClaim("s", "att")]) == [
        Claim("finished"),
        Claim("expired", "att", begun=1, counted=True),
    ]


async def test_a_claim_that_failed_leaves_the_answers_of_the_others(
    redis: Redis, redis_url: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond `MAX_BATCH` a call is sent as several batches, of which one may fail alone."""
    holder, other = claims(redis, region, "a/1"), claims(redis, region, "b/1")
    requests = [AskClaim(f"r{number}", f"att{number}") for number in range(MAX_BATCH + 20)]
    await holder.claim(requests)
    await other.claim([AskClaim("warm", "att")])
    exchange = ScriptPipeline._exchange
    batches = count()

    async def second_fails(self: ScriptPipeline, calls: Any, *first: Any) -> object:
        if next(batches) == 1:
            raise RedisConnectionError("scripted")
        return await exchange(self, calls, *first)

    monkeypatch.setattr(ScriptPipeline, "_exchange", second_fails)
    answers = await other.claim(requests)
    assert [claim and claim.state for claim in answers] == ["leased"] * MAX_BATCH + [None] * 20


async def test_the_script_survives_a_flushed_script_cache(redis: Redis, redis_url: str, region: str) -> None:
    store = claims(redis, region)
    await store.claim([AskClaim("r1", "att1")])
    with sync_redis.Redis.from_url(redis_url) as admin:
        admin.script_flush()
    assert await store.claim([AskClaim("r2", "att2")]) == [Claim("fresh", counted=True)]
