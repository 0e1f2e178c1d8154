"""No tenant can spend another's share of admission: turns at the intake, places, refusals remembered, memory."""

import asyncio
import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from agents.admission.in_order import MAX_BYTES_IN_WORK, InOrder
from agents.admission.pipeline import PLACES, places_among
from agents.admission.places import Place, Places, Taken
from agents.admission.turns import FairOrder
from agents.quota.port import Refusal
from agents.quota.store import RedisQuota
from schemas.endings import EndingCode
from streams.directory import Limits
from tests.unit.agents.admission.region_in_memory import IN_WORK, region
from tests.unit.agents.admission.world import NOW


async def test_a_job_waits_for_its_turn_at_the_intake_and_not_for_the_flood_before_it(redis_url: str) -> None:
    async with region(redis_url, "fused", jobs_per_second=50, heavy=Limits(), light=Limits()) as r:
        r.beat()
        r.submit("heavy", [f"line-{number}" for number in range(1_500)])
        r.submit("light", ["only"])
        await r.until(lambda: any(work.scope.tenant_id == "light" for work in r.in_lane()), "the other tenant's job")
        assert len(r.in_lane()) < 750


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_jobs_that_wait_for_their_tenant_leave_places_to_others(redis_url: str, placement: str) -> None:
    async with region(redis_url, placement, heavy=Limits(concurrent_jobs=1), light=Limits()) as r:
        r.beat()
        r.submit("heavy", [f"line-{number}" for number in range(2 * IN_WORK)])
        await r.until(lambda: r.records(r.topics.aside.name), "a job that steps aside")
        r.submit("light", [f"line-{number}" for number in range(20)])
        await r.until(lambda: len(r.in_lane()) == 21, "the other tenant's jobs")
        assert Counter(work.scope.tenant_id for work in r.in_lane()) == {"heavy": 1, "light": 20}
        assert not r.endings()


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_many_tenants_whose_jobs_wait_take_no_place_from_one_whose_jobs_need_not(
    redis_url: str, placement: str
) -> None:
    heavy = {f"heavy{number}": Limits(concurrent_jobs=1) for number in range(2 * IN_WORK // PLACES)}
    async with region(
        redis_url, placement, jobs_per_second=10**6, bytes_in_work=MAX_BYTES_IN_WORK, light=Limits(), **heavy
    ) as r:
        r.beat()
        r.pipeline.places.stay_ms = 10**12
        for tenant_id in heavy:
            r.submit(tenant_id, [f"line-{number}" for number in range(PLACES)])
        queue = r.topics.jobs("default").name
        await r.until(lambda: len(r.records(queue)) >= 2 * IN_WORK, "more jobs in the queue than are in work at once")
        await r.until(lambda: len(r.in_lane()) >= 3, "some of them")
        r.submit("light", [f"line-{number}" for number in range(20)])
        await r.until(
            lambda: len([w for w in r.in_lane() if w.scope.tenant_id == "light"]) == 20, "the other tenant's jobs"
        )
        assert not r.endings()


HOLDERS = ("acme", "beta", "gamma", "delta")


@given(st.lists(st.tuples(st.sampled_from(HOLDERS), st.integers(-12, 12), st.integers(1, 8)), max_size=50))
def test_of_few_who_wait_none_is_without_a_place_and_all_together_keep_their_bounds(
    steps: list[tuple[str, int, int]],
) -> None:
    """Each step leaves so many places, or takes them."""
    share, total = Taken(10, 40), Taken(16, 64)
    places = Places(share, total, stay_ms=0)
    held: dict[str, list[Place]] = {holder: [] for holder in HOLDERS}
    for holder, change, size_bytes in steps:
        own = held[holder]
        for _ in range(min(-change, len(own))):
            own.pop().leave()
        for _ in range(change):
            place = places.take("queue", holder, size_bytes, 0)
            assert place is not None or own
            own += [place] if place is not None else []
        everything = [place.size_bytes for each in held.values() for place in each]
        assert len(own) <= share.places
        assert len(everything) <= total.places
        assert sum(everything) <= total.size_bytes


@pytest.mark.parametrize("size_bytes", [400, 1_048_576])
def test_a_tenant_s_first_job_that_waits_finds_a_place_however_many_others_have(size_bytes: int) -> None:
    places = places_among(256)
    for number in range(8):
        while places.take("queue", f"heavy{number}", size_bytes, 0) is not None:
            pass
    assert places.take("queue", "light", size_bytes, 0) is not None
    assert places.take("queue", "light", size_bytes, 0) is None, "it waits as others do"


@pytest.mark.parametrize("placement", ["fused", "split"])
async def test_a_tenant_s_large_jobs_that_wait_leave_bytes_to_others(redis_url: str, placement: str) -> None:
    heavy = Limits(concurrent_jobs=1)
    async with region(redis_url, placement, bytes_in_work=30_000, heavy=heavy, light=Limits()) as r:
        r.beat()
        r.pipeline.places.stay_ms = 10**12
        r.submit("heavy", [f"line-{number}" for number in range(PLACES)])
        queue = r.topics.jobs("default").name
        await r.until(lambda: len(r.records(queue)) == PLACES, "jobs whose bytes are more than may be in work")
        assert sum(len(record.value or b"") for record in r.records(queue)) > 40_000
        r.submit("light", ["only"])
        await r.until(lambda: [w for w in r.in_lane() if w.scope.tenant_id == "light"], "the other tenant's job")
        assert not r.endings()


async def test_a_tenant_s_refusals_push_out_nobody_else_s(redis_url: str) -> None:
    async with Redis.from_url(redis_url, retry=None) as client:
        quota = RedisQuota(client, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW, refusals_kept=10)
        await quota.begin_epoch(await quota.new_epoch(), NOW)
        refusal = Refusal(code=EndingCode.PROMPT_REFUSED)
        await quota.refuse("light", Limits(), "resp_1", refusal, deadline_ms=NOW)
        for number in range(100):
            await quota.refuse("heavy", Limits(), f"resp_{number}", refusal, deadline_ms=NOW)
        assert await quota.reserve("light", Limits(), "resp_1", tokens=1, deadline_ms=NOW) == refusal
        assert await quota.reserve("heavy", Limits(), "resp_99", tokens=1, deadline_ms=NOW) == refusal


async def test_what_is_in_work_is_bounded_in_bytes_and_one_large_event_passes() -> None:
    window = InOrder(100, lambda _: None, limit_bytes=1_000)
    may_end = asyncio.Event()
    sizes: list[int] = []

    async def work(size: int) -> None:
        sizes.append(size)
        await may_end.wait()

    async def start() -> None:
        for size in (5_000, 400, 600, 1):
            await window.start("line", lambda size=size: work(size), lambda: None, size)  # type: ignore[misc]

    starting = asyncio.create_task(start())
    for _ in range(20):
        await asyncio.sleep(0)
    assert sizes == [5_000]
    may_end.set()
    await starting
    assert await window.close(10)
    assert sizes == [5_000, 400, 600, 1]


@given(
    weights=st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.floats(1, 50), min_size=30, max_size=60), min_size=2
    )
)  # fmt: skip
def test_holders_who_all_wait_are_served_alike_by_weight(weights: dict[str, list[float]]) -> None:
    order: FairOrder[str] = FairOrder()
    for holder, each in weights.items():
        for weight in each:
            order.put(holder, weight, holder)
    served, left = Counter[str](), {holder: len(each) for holder, each in weights.items()}
    while all(left.values()):
        weight, holder = order.take()
        served[holder] += weight  # type: ignore[assignment]
        left[holder] -= 1
        assert max(served[name] for name in weights) - min(served[name] for name in weights) <= 100


def test_who_comes_back_for_more_still_owes_what_it_had() -> None:
    order: FairOrder[str] = FairOrder()
    for number in range(4):
        order.put("light", 1, f"light {number}")
    order.put("heavy", 3, "heavy 0")
    taken = []
    while order:
        _, item = order.take()
        taken.append(item)
        if item.startswith("heavy"):
            order.put("heavy", 3, f"heavy {len(taken)}")
        if len(taken) == 6:
            break
    assert sum(item.startswith("light") for item in taken) == 4
