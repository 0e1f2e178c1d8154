"""Where the model that was asked for has no room a smaller one answers: whom it may, what it says, what that costs."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from agents.admission.brownout import Brownouts
from agents.admission.routing import QueueBound
from agents.admission.stages import FUSED, STAGES, Stage
from agents.quota.port import Decided
from billing_jobs.pricing import PICO_PER_TOKEN_OF_PRICE, PriceBook, charge, first_prices
from schemas.brownout import Brownout, PoolLevel
from schemas.endings import EndingCode
from schemas.fallback import Fallback
from schemas.generated import Opened
from schemas.request import AdmittedRequest, Message, Sampling, Tool
from streams.brownout import BrownoutPolicy
from streams.directory import Limits, Price
from tests.unit.agents.admission.world import IDS, RESPONSE, Words, World
from tests.unit.billing_jobs.events import usage_event

PLACEMENTS = pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "stage by stage"])
BUSY: dict[str, Any] = {"queued_tokens": 10**6}


@pytest.fixture
def crowded(world: World) -> World:
    """The pool of `big` is full, that of `tiny` is not, and its tenant is of the tier `free`."""
    world.beat("worker-2", pool="other", model="big", home_partitions=[6], max_running=4, **BUSY)
    world.change(tier="free")
    return world


async def asked(world: World, text: str = "tell me", stages: Sequence[Stage] = FUSED, **fields: Any) -> None:
    await world.pipeline.handle_request(world.record(world.request(text, **{"model": "best", **fields})), stages)


def opened(world: World) -> Opened:
    [(_, record)] = world.log.of(Opened, "local.generated")
    return record


@PLACEMENTS
async def test_it_is_answered_by_the_smaller_one_and_says_so(crowded: World, stages: Sequence[Stage]) -> None:
    await asked(crowded, stages=stages)
    assert (opened(crowded).model, opened(crowded).requested_model, opened(crowded).pool) == ("tiny", "best", "default")
    assert opened(crowded).fallback == Fallback(asked="big", reason="overloaded")
    [(_, work)] = crowded.log.of(AdmittedRequest, "local.inference.default.standard")
    assert (work.model, work.requested_model, work.max_tokens) == ("tiny", "best", 10)
    assert [load.routed_answers for load in crowded.workers.live("default", crowded.now_ms)] == [1]
    assert [load.routed_answers for load in crowded.workers.live("other", crowded.now_ms)] == [0]


async def test_while_its_own_workers_are_away_the_smaller_one_answers(world: World) -> None:
    world.change(fallback=True)
    await asked(world)
    assert opened(world).fallback == Fallback(asked="big", reason="no_worker")


async def test_who_can_have_what_was_asked_for_has_it(crowded: World) -> None:
    crowded.beat("worker-2", pool="other", model="big", home_partitions=[6])
    await asked(crowded)
    assert (opened(crowded).model, opened(crowded).pool, opened(crowded).fallback) == ("big", "other", None)


@PLACEMENTS
@pytest.mark.parametrize(
    ("tenant", "request_", "hint"),
    [
        ({"tier": "paid"}, {}, True),
        ({"tier": "premium"}, {}, True),
        ({"fallback": False}, {}, True),
        ({}, {"fallback": False}, True),
        ({"models": ["big"]}, {}, False),
        ({}, {"sampling": Sampling(max_tokens=10, logit_bias={5: 1.0})}, True),
        ({}, {"messages": [], "prompt": [5, 6, 7], "endpoint": "completions"}, True),
    ],
    ids=["paid", "premium", "tenant", "request", "may not use it", "names tokens", "is tokens"],
)  # fmt: skip
async def test_whom_it_may_not_answer_is_refused_with_advice_and_may_be_told_its_name(
    crowded: World, stages: Sequence[Stage], tenant: dict[str, Any], request_: dict[str, Any], hint: bool
) -> None:
    crowded.change(**tenant)
    await asked(crowded, stages=stages, **request_)
    [ending] = crowded.log.endings
    assert ending.code is EndingCode.OVERLOADED
    assert ending.retry_after_ms is not None
    assert ("tiny may have room" in ending.message) == hint
    assert not crowded.log.of(Opened, "local.generated")


async def test_a_policy_of_its_tenant_lets_a_paid_one_be_answered(crowded: World) -> None:
    crowded.change(tier="paid", fallback=True)
    await asked(crowded)
    assert opened(crowded).model == "tiny"


async def test_what_the_smaller_one_does_not_take_is_refused(crowded: World) -> None:
    crowded.catalog.change_model("big", tool_parser="hermes")
    await asked(crowded, tools=[Tool(name="look_up")])
    [ending] = crowded.log.endings
    assert ending.code is EndingCode.OVERLOADED


async def test_a_job_waits_for_what_it_asked_for(crowded: World) -> None:
    body = {"model": "best", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
    await crowded.pipeline.handle_job(crowded.job(body, expires_ms=crowded.now_ms + 3_000))
    [job] = [record for record in crowded.log.records if record.topic == "local.admission.jobs.other"]
    await crowded.pipeline.handle_queued_job(job)
    [ending] = crowded.log.endings
    assert ending.code is EndingCode.DEADLINE_EXCEEDED
    assert not crowded.log.of(Opened, "local.generated")


async def test_a_job_waits_in_the_lane_of_a_model_whose_workers_are_away(world: World) -> None:
    world.change(tier="free")
    await world.submit(
        world.job({"model": "best", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10})
    )
    assert (opened(world).model, opened(world).pool) == ("big", "other")


@PLACEMENTS
@pytest.mark.parametrize("tier", ["free", "paid"])
async def test_at_a_saturated_premium_pool_paid_tenants_wait_and_free_ones_go_to_the_smaller_model(
    world: World, stages: Sequence[Stage], tier: str
) -> None:
    world.catalog.change_pool("other", queues_for=["paid", "premium"])
    world.beat("worker-2", pool="other", model="big", home_partitions=[6], max_running=2, running=2)
    world.change(tier=tier)
    await asked(world, stages=stages)
    assert opened(world).model == ("tiny" if tier == "free" else "big")


async def test_a_free_tenant_that_finds_no_room_anywhere_is_told_when_to_come_again(world: World) -> None:
    world.catalog.change_pool("other", queues_for=["paid", "premium"])
    world.beat("worker-2", pool="other", model="big", home_partitions=[6], max_running=2, running=2)
    world.beat(**BUSY)
    world.change(tier="free")
    await asked(world)
    [ending] = world.log.endings
    assert (ending.code, ending.retry_after_ms is not None) == (EndingCode.OVERLOADED, True)
    assert "may have room" not in ending.message, "it was asked, and has none"


@PLACEMENTS
@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_delivered_again_it_is_answered_by_the_same_model_whatever_has_room_by_then(
    crowded: World, stages: Sequence[Stage], writes: int
) -> None:
    record = crowded.record(crowded.request(model="best"))
    await crowded.crash_after(record, writes)
    crowded.beat("worker-2", pool="other", model="big", home_partitions=[6])
    crowded.beat(**BUSY)
    await crowded.pipeline.handle_request(record, stages)
    records = [entry for _, entry in crowded.log.of(Opened, "local.generated")]
    assert {(each.model, each.max_tokens, each.pool) for each in records} == {("tiny", 10, "default")}
    assert {each.fallback for each in records} == {Fallback(asked="big", reason="overloaded")}
    works = crowded.log.of(AdmittedRequest, "local.inference.default.standard")
    assert {(place.partition, work.model) for place, work in works} == {(2, "tiny")}
    assert not crowded.log.of(AdmittedRequest, "local.inference.other.standard")


async def test_delivered_again_when_its_tenant_may_not_ask_any_more_it_is_what_was_decided(crowded: World) -> None:
    record = crowded.record(crowded.request(model="best"))
    await crowded.crash_after(record, 1)
    crowded.change(models=["elsewhere"])
    await crowded.pipeline.handle_request(record)
    assert {each.model for _, each in crowded.log.of(Opened, "local.generated")} == {"tiny"}
    assert not crowded.log.endings


async def test_where_the_smaller_one_is_gone_by_then_its_ending_stands_beside_what_was_opened(crowded: World) -> None:
    record = crowded.record(crowded.request(model="best"))
    await crowded.crash_after(record, 1)
    crowded.catalog.drop_model("tiny")
    await crowded.pipeline.handle_request(record)
    [ending] = crowded.log.endings
    assert ending.code is EndingCode.UNAVAILABLE
    assert {place.partition for place in crowded.log.records if place.topic == "local.generated"} == {5}


@pytest.fixture
def degraded(crowded: World) -> World:
    """Both pools have room, and that of `big` is degraded so far that free tenants have the smaller model first."""
    crowded.beat("worker-2", pool="other", model="big", home_partitions=[6], max_running=4)
    return at_level(crowded, 2)


def at_level(world: World, level: int) -> World:
    levels = Brownouts(BrownoutPolicy(free_max_tokens=8))
    levels.take(PoolLevel(pool="other", level=level, since_ms=world.now_ms))
    world.services = replace(world.services, brownout=levels)
    world.pipeline = replace(world.pipeline, services=world.services)
    return world


@PLACEMENTS
async def test_from_the_second_level_on_a_free_tenant_has_the_smaller_one_first(
    degraded: World, stages: Sequence[Stage]
) -> None:
    await asked(degraded, stages=stages)
    record = opened(degraded)
    assert (record.model, record.max_tokens, record.brownout) == ("tiny", 8, Brownout(level=2, max_tokens=8))
    assert record.fallback == Fallback(asked="big", reason="preferred")


@pytest.mark.parametrize(
    ("level", "tenant", "request_"),
    [(1, {}, {}), (2, {"tier": "paid", "fallback": True}, {}), (2, {}, {"fallback": False})],
    ids=["level 1", "paid", "forbidden"],
)
async def test_who_is_not_degraded_so_far_has_what_was_asked_for(
    degraded: World, level: int, tenant: dict[str, Any], request_: dict[str, Any]
) -> None:
    at_level(degraded, level).change(**tenant)
    await asked(degraded, **request_)
    assert (opened(degraded).model, opened(degraded).fallback) == ("big", None)


async def test_where_the_smaller_one_has_no_room_what_was_asked_for_answers_on_every_level(degraded: World) -> None:
    degraded.beat(**BUSY)
    await asked(degraded)
    assert (opened(degraded).model, opened(degraded).brownout) == ("big", Brownout(level=2, max_tokens=8))


@PLACEMENTS
@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_delivered_again_at_another_level_it_is_what_was_decided(
    degraded: World, stages: Sequence[Stage], writes: int
) -> None:
    record = degraded.record(degraded.request(model="best"))
    await degraded.crash_after(record, writes)
    at_level(degraded, 0)
    await degraded.pipeline.handle_request(record, stages)
    records = [entry for _, entry in degraded.log.of(Opened, "local.generated")]
    cut = Brownout(level=2, max_tokens=8)
    assert {(each.model, each.max_tokens, each.brownout) for each in records} == {("tiny", 8, cut)}
    assert {each.fallback for each in records} == {Fallback(asked="big", reason="preferred")}


class Syllables(Words):
    """Of another model: two tokens for each word."""

    def encode_chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        return [token for token in super().encode_chat(messages, tools=tools, at_most=at_most) for _ in range(2)]


@pytest.mark.parametrize(("words", "bound"), [(2, 10), (8, 9), (17, None)])
async def test_with_another_tokenizer_it_answers_within_what_was_reserved(
    crowded: World, words: int, bound: int | None
) -> None:
    """Three tokens are the template's. What does not fit beside its own prompt is cut from the answer's bound."""
    crowded.services.tokenizers["tiny"] = Syllables()  # type: ignore[index]
    reserved = 3 + words + 10 + 10 * (words == 8)
    await asked(crowded, "a " * words, sampling=Sampling(max_tokens=reserved - 3 - words))
    if bound is None:
        assert [ending.code for ending in crowded.log.endings] == [EndingCode.OVERLOADED]
        return
    record = opened(crowded)
    assert (record.prompt_tokens, record.reserved_tokens) == (2 * (3 + words), reserved)
    assert record.max_tokens == reserved - record.prompt_tokens


async def test_the_reservation_is_the_one_that_was_made_for_the_other(crowded: World) -> None:
    await asked(crowded)
    limits = Limits(max_output_tokens=50, tokens_per_minute=500)
    stands = await crowded.quota.look("acme", limits, RESPONSE, deadline_ms=crowded.now_ms + 60_000)
    assert isinstance(stands, Decided)
    assert stands.tokens == 15
    assert stands.decision.stand_in is not None
    assert (stands.decision.pool, stands.decision.stand_in.model) == ("default", "tiny")
    assert (stands.decision.stand_in.max_tokens, stands.decision.stand_in.reason) == (10, "overloaded")


async def test_it_is_billed_at_the_price_of_the_model_that_answers(crowded: World) -> None:
    crowded.catalog.change_model("big", price=Price(output=Decimal(9)))
    crowded.catalog.change_model("tiny", price=Price(output=Decimal(2)))
    await asked(crowded)
    book = PriceBook(first_prices(crowded.catalog.models(), []))
    event = usage_event(
        model=opened(crowded).model, requested_model=opened(crowded).requested_model, uncached_input_tokens=0,
        cached_input_tokens=0, output_tokens=3, reasoning_tokens=0, accepted_at_ms=opened(crowded).accepted_at_ms,
    )  # fmt: skip
    charged = charge(event, book)
    assert (charged.state, charged.cost_pico) == ("priced", 3 * 2 * PICO_PER_TOKEN_OF_PRICE)


@PLACEMENTS
@pytest.mark.parametrize(
    ("default", "sampling", "goes"),
    [
        ({}, Sampling(max_tokens=20), "default"),
        ({"max_output": 19}, Sampling(max_tokens=20), "other"),
        ({"max_output": 20}, Sampling(max_tokens=20), "default"),
        ({"max_context": 24}, Sampling(max_tokens=20), "other"),
        ({"max_context": 25}, Sampling(max_tokens=20), "default"),
        ({"max_output": 19}, Sampling(), "other"),
        ({"tenants": ["umbrella"]}, Sampling(max_tokens=1), "other"),
    ],
)
async def test_long_answers_long_prompts_and_strangers_go_to_the_pool_that_is_for_them(
    world: World, stages: Sequence[Stage], default: dict[str, object], sampling: Sampling, goes: str
) -> None:
    world.catalog.change_model("tiny", alternates=["other"])
    world.catalog.change_pool("default", **default)
    world.beat("worker-2", pool="other", home_partitions=[6])
    await asked(world, model="tiny", sampling=sampling, stages=stages)
    assert (opened(world).pool, opened(world).model, opened(world).fallback) == (goes, "tiny", None)


async def test_an_alternate_takes_what_the_first_has_no_room_for(world: World) -> None:
    world.catalog.change_model("tiny", alternates=["other"])
    world.beat(**BUSY)
    world.beat("worker-2", pool="other", home_partitions=[6])
    await asked(world, model="tiny")
    assert opened(world).pool == "other"


async def test_jobs_wait_in_the_queue_of_the_first_pool_that_is_for_them(world: World) -> None:
    world.catalog.change_model("tiny", alternates=["other"])
    world.catalog.change_pool("default", max_output=5)
    world.beat("worker-2", pool="other", home_partitions=[6])
    await world.submit(world.job())
    assert world.log.kinds[0] == "admission.jobs.other"
    assert opened(world).pool == "other"


@pytest.mark.parametrize(
    ("limits", "sampling", "code", "param"),
    [
        ({"max_output": 19}, Sampling(max_tokens=20), EndingCode.INVALID_REQUEST, "max_tokens"),
        ({"max_context": 24}, Sampling(max_tokens=20), EndingCode.CONTEXT_LENGTH_EXCEEDED, "max_tokens"),
        ({"tenants": ["umbrella"]}, Sampling(), EndingCode.MODEL_NOT_FOUND, "model"),
    ],
)
async def test_what_no_pool_is_for_is_refused_by_name(
    world: World, limits: dict[str, object], sampling: Sampling, code: EndingCode, param: str
) -> None:
    world.catalog.change_pool("default", **limits)
    await asked(world, model="tiny", sampling=sampling)
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (code, param)


async def test_who_names_no_bound_has_the_longest_that_a_pool_gives(world: World) -> None:
    world.catalog.change_pool("default", max_output=7)
    await asked(world, model="tiny", sampling=Sampling())
    assert opened(world).max_tokens == 7


async def test_requests_that_come_together_fill_the_slots_of_a_premium_pool_and_no_more() -> None:
    world = World(queue_bound=QueueBound(10**6, 10**4))
    world.catalog.change_pool("other", queues_for=["paid", "premium"])
    world.beat()
    world.beat("worker-2", pool="other", model="big", home_partitions=[6], max_running=2)
    world.change(tier="free")
    for _ in range(4):
        await asked(world, response_id=IDS.mint(3), sampling=Sampling(max_tokens=1))
    models = [record.model for _, record in world.log.of(Opened, "local.generated")]
    assert models == ["big", "big", "tiny", "tiny"]
