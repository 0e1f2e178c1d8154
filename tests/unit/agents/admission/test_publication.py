"""What an admission tells those who come after it."""

from collections.abc import Sequence

import pytest

from agents.admission.stages import FUSED, STAGES, Stage
from schemas.generated import Opened
from schemas.request import AdmittedRequest
from tests.unit.agents.admission.world import IDS, World


@pytest.mark.parametrize("policy", ["cancel", "continue"])
async def test_what_becomes_of_a_response_without_viewers_stands_in_opened_and_in_the_work(policy: str) -> None:
    world = World()
    world.beat()
    await world.pipeline.handle_request(world.record(world.request(on_disconnect=policy)))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert (opened.on_disconnect, work.on_disconnect) == (policy, policy)


@pytest.mark.parametrize("stages", [FUSED, STAGES], ids=["fused", "stage by stage"])
async def test_what_is_left_of_a_tenant_s_limits_is_told_once(stages: Sequence[Stage]) -> None:
    world = World()
    world.beat()
    record = world.record(world.request(text="hello there"))
    for _ in range(2):
        await world.pipeline.handle_request(record, stages)
    [first, again] = [opened for _, opened in world.log.of(Opened, "local.generated")]
    assert (first.limits["tokens_limit"], first.limits["tokens_remaining"]) == (500, 500 - first.reserved_tokens)
    assert again.limits == {}
    assert b'"limits"' not in again.encode(), "the release before knows no such field"


async def test_what_a_dialect_repeats_of_its_request_stands_in_opened_and_where_there_is_none_nothing_does() -> None:
    world = World()
    world.beat()
    for echo in ('{"store":true}', ""):
        await world.pipeline.handle_request(world.record(world.request(echo=echo)))
    [(_, told), (_, silent)] = world.log.of(Opened, "local.generated")
    assert told.echo == '{"store":true}'
    assert b"echo" not in silent.encode()


async def test_what_is_refused_in_the_background_says_what_was_asked_for() -> None:
    world = World()
    world.beat()
    for on_disconnect in ("continue", "cancel"):
        request = world.request(model="gpt-9", echo='{"store":true}', on_disconnect=on_disconnect)
        await world.pipeline.handle_request(world.record(request))
    [later, at_once] = world.log.endings
    assert later.echo == '{"store":true}'
    assert b"echo" not in at_once.encode(), "its client is told at once, and there is nobody to come for it"


async def test_an_answer_is_continued_where_neither_its_tenant_nor_its_model_forbids_it() -> None:
    world = World()
    world.beat()
    world.beat("worker-2", pool="other", model="embed")
    record = world.record(world.request())
    await world.pipeline.handle_request(record)
    world.change(continuation=False)
    await world.pipeline.handle_request(record)
    texts = world.request(
        response_id=IDS.mint(3), endpoint="embeddings", model="embed", messages=[], inputs=["hello"]
    )  # fmt: skip
    await world.pipeline.handle_request(world.record(texts))
    world.change(continuation=True)
    world.catalog.change_model("tiny", continuation=False)
    await world.pipeline.handle_request(record)
    works = [work for _, work in world.log.of(AdmittedRequest, "local.inference.default.standard")]
    assert [work.continuation for work in works] == [True, False, False]
    assert b"continuation" not in works[0].encode(), "the same bytes as before there was a policy"
    [(_, vectors)] = world.log.of(AdmittedRequest, "local.inference.other.standard")
    assert vectors.continuation, "no vector follows from another"


async def test_the_weight_of_the_tenant_goes_with_the_work_unless_it_is_as_everybodys() -> None:
    world = World()
    world.beat()
    await world.pipeline.handle_request(world.record(world.request()))
    world.change(weight=7)
    await world.pipeline.handle_request(world.record(world.request()))
    [(_, plain), (_, heavy)] = world.log.of(AdmittedRequest, "local.inference.default.standard")
    assert (plain.weight, heavy.weight) == (1, 7)
    assert b"weight" not in plain.encode(), "the same bytes as before there was a weight"
