"""Several answers to one request: all of them are held for, bounded and told, before the first begins."""

from typing import Any

import pytest

from agents.admission.routing import QueueBound
from agents.admission.validation import MAX_LOGPROBS_OF_A_JOB
from schemas.endings import EndingCode
from schemas.generated import Ending, Opened
from schemas.request import AdmittedRequest, Lane, Sampling
from streams.directory import Limits
from tests.unit.agents.admission.world import IDS, NOW, RESPONSE, World

STANDARD = "local.inference.default.standard"
PROMPT_TOKENS = 5


async def ask(world: World, choices: int, max_tokens: int | None = 10, **fields: Any) -> None:
    request = world.request(choices=choices, sampling=Sampling(max_tokens=max_tokens), **fields)
    await world.pipeline.handle_request(world.record(request))


async def test_as_much_is_held_as_all_answers_may_come_to(world: World) -> None:
    await ask(world, 3)
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = world.log.of(AdmittedRequest, STANDARD)
    assert (opened.choices, work.choices) == (3, 3)
    assert (opened.max_tokens, work.max_tokens) == (10, 10), "of each"
    assert (opened.prompt_tokens, opened.reserved_tokens) == (PROMPT_TOKENS, PROMPT_TOKENS + 3 * 10)
    assert world.quota.tenants["acme"].tokens == 500 - 35
    [load] = world.workers.live("default", NOW)
    assert (load.queued_tokens, load.queued_answers) == (35, 3), "which a worker's queue counts too"


async def test_a_pool_has_room_for_so_many_answers_whoever_asks_for_them() -> None:
    world = World(queue_bound=QueueBound(10**6, 10))
    world.beat()
    for tenant, choices in (("acme", 7), ("gold", 1), ("gold", 9)):  # of the standard lane there is room for eight
        await ask(world, choices, 1, response_id=IDS.mint(3), tenant=tenant, service_tier="default")
    assert [opened.choices for _, opened in world.log.of(Opened, "local.generated")] == [7, 1]
    [ending] = world.log.endings
    assert ending.code is EndingCode.OVERLOADED


async def test_the_work_of_one_answer_is_written_as_by_the_release_before(world: World) -> None:
    await ask(world, 1)
    [(record, _)] = world.log.of(AdmittedRequest, STANDARD)
    assert b"choices" not in (record.value or b"")


async def test_what_the_answers_did_not_use_is_returned_to_the_token(world: World) -> None:
    await ask(world, 3)
    limits, used = world.directory.all["acme"].limits, (PROMPT_TOKENS + 4, 10, 0)
    for choice in (2, 0, 1, 0):
        await world.quota.settle("acme", limits, RESPONSE, choice, used[choice])
    assert world.quota.tenants["acme"].tokens == 500 - sum(used)
    assert world.quota.tenants["acme"].active == set()


async def test_a_tenant_s_longest_output_is_that_of_all_answers_together(world: World) -> None:
    await ask(world, 5, 10)
    await ask(world, 4, None, response_id=IDS.mint(3))
    assert [opened.max_tokens for _, opened in world.log.of(Opened, "local.generated")] == [10, 50 // 4]
    for choices, max_tokens in ((6, 10), (51, None)):
        await ask(world, choices, max_tokens, response_id=IDS.mint(3))
    told = [(ending.code, ending.param, ending.message) for ending in world.log.endings]
    assert told == [
        (EndingCode.INVALID_REQUEST, "n", "n times max_tokens, 6 times 10, is above the limit of 50."),
        (EndingCode.INVALID_REQUEST, "n", "n times max_tokens, 51 times 1, is above the limit of 50."),
    ]


@pytest.mark.parametrize(
    ("per_minute", "param"), [(34, "n"), (15, "n"), (14, "max_tokens"), (5, "messages")], ids=str
)  # fmt: skip
async def test_what_no_minute_holds_is_told_which_field_to_change(world: World, per_minute: int, param: str) -> None:
    world.limit(tokens_per_minute=per_minute)
    await ask(world, 3)
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (EndingCode.INVALID_REQUEST, param)
    assert ending.message == f"The request needs 35 tokens for n = 3 answers; the limit is {per_minute} per minute."


async def test_a_minute_s_tokens_are_spent_by_all_answers(world: World) -> None:
    world.limit(tokens_per_minute=60)
    await ask(world, 3)
    await ask(world, 3, response_id=IDS.mint(3))
    [ending] = world.log.endings
    assert (ending.code, ending.limits["tokens_remaining"]) == (EndingCode.RATE_LIMITED_TOKENS, 25)


async def test_several_answers_are_one_request_and_one_response_at_once(world: World) -> None:
    world.limit(requests_per_minute=1, concurrent_responses=1)
    await ask(world, 5)
    assert not world.log.endings


async def test_a_job_may_ask_for_several_answers(world: World) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10, "n": 3}
    await world.submit(world.job(body))
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.batch")
    [(_, opened)] = world.log.of(Opened, "local.generated")
    assert (work.choices, opened.choices, opened.lane) == (3, 3, Lane.BATCH)


@pytest.mark.parametrize(
    ("asks", "param"),
    [({}, "top_logprobs"), ({"endpoint": "completions", "messages": [], "prompt": "Once"}, "logprobs")],
)
async def test_a_job_asks_for_no_more_probabilities_than_one_result_holds(
    world: World, asks: dict[str, Any], param: str
) -> None:
    world.change("gold", limits=Limits(max_output_tokens=100_000))
    world.catalog._models = tuple(
        model.model_copy(update={"context_window": 100_000}) for model in world.catalog.models()
    )
    per_token = 4
    most = MAX_LOGPROBS_OF_A_JOB // per_token // 2
    job = world.request().reply_to.model_copy(update={"results_topic": "local.results.gold", "custom_id": "line-1"})
    for max_tokens, reply_to in ((most, job), (most + 1, job), (most + 1, world.request().reply_to)):
        sampling = Sampling(max_tokens=max_tokens, logprobs=per_token - 1)
        request = world.request(
            tenant="gold", response_id=IDS.mint(3), choices=2, sampling=sampling, reply_to=reply_to, **asks
        )
        await world.pipeline.handle_request(world.record(request))
    assert len(world.log.of(Opened, "local.generated")) == 2
    [(_, ending)] = world.log.of(Ending, "local.generated")
    assert (ending.code, ending.param) == (EndingCode.INVALID_REQUEST, param)
    assert f"({param} + 1)" in ending.message
