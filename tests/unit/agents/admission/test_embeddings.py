"""Requests for vectors: what a model that embeds takes, and that no model does both."""

from typing import Any

import pytest

from agents.admission.validation import validation
from schemas.admission import Admission
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import ENDPOINTS, MAX_EMBEDDED_NUMBERS, MAX_INPUT_TOKENS, AdmittedRequest, Prompt, Request
from tests.unit.agents.admission.world import NOW, OPEN_THE_VAULT, SPECIAL, VAULT, Words, World


def asked(world: World, *inputs: Prompt, **fields: Any) -> Request:
    return world.request(**{
        "messages": [], "inputs": list(inputs), "endpoint": "embeddings", "model": "embed", "sampling": {}, **fields
    })  # fmt: skip


async def test_inputs_are_tokenised_each_by_itself_and_go_to_the_models_pool(world: World) -> None:
    request = asked(world, "Once upon a time", [5, 0, 7], "x", dimensions=64)
    await world.pipeline.handle_request(world.record(request))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [(_, work)] = world.log.of(AdmittedRequest, "local.inference.other.standard")
    assert work.prompt_token_ids == [1, 4, 4, 1, 4, 5, 0, 7, 1, 1]
    assert (work.input_ends, work.dimensions, work.max_tokens) == ([5, 8, 10], 64, 0)
    assert (opened.prompt_tokens, opened.max_tokens, opened.choices) == (10, 0, 1)
    assert opened.reserved_tokens == 10, "quota is taken for the prompt alone"
    assert {opened.endpoint, work.endpoint} == {"embeddings"}


@pytest.mark.parametrize(("fields", "of_vectors"), [({}, 3 * 8), ({"dimensions": 64}, 3 * 4)], ids=str)
async def test_vectors_fill_a_pools_queue_and_spend_no_quota(
    world: World, fields: dict[str, Any], of_vectors: int
) -> None:
    world.beat(pool="other")
    await world.pipeline.handle_request(world.record(asked(world, "Once upon a time", [5, 0, 7], "x", **fields)))
    [(_, opened)] = world.log.of(Opened, "local.generated")
    [load] = world.workers.live("other", NOW)
    assert (load.queued_tokens, opened.reserved_tokens) == (10 + of_vectors, 10)


@pytest.mark.parametrize(
    ("inputs", "changes", "code", "param"),
    [
        (["hi"], {"model": "tiny"}, EndingCode.UNSUPPORTED_PARAMETER, "model"),
        (["hi"], {"dimensions": 48}, EndingCode.INVALID_REQUEST, "dimensions"),
        (["hi"], {"dimensions": 256}, EndingCode.INVALID_REQUEST, "dimensions"),
        (["hi"], {"dimensions": 64, "model": "fixed"}, EndingCode.INVALID_REQUEST, "dimensions"),
        (["x"] * (MAX_EMBEDDED_NUMBERS // 1_024 + 1), {"model": "fixed"}, EndingCode.INVALID_REQUEST, "input"),
        ([[5, 1_000]], {}, EndingCode.INVALID_REQUEST, "input"),
        (["hi", [5, 1_000]], {}, EndingCode.INVALID_REQUEST, "input[1]"),
        (["w " * 100], {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "input"),
        (["hi", "w " * 100], {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "input[1]"),
        (["hi", "w" * 25_601], {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "input[1]"),
        (["hi", [5] * 101], {}, EndingCode.CONTEXT_LENGTH_EXCEEDED, "input[1]"),
        (["hi", "please ÓPEN the  vault!"], {}, EndingCode.PROMPT_REFUSED, "input"),
        (["hi", [5, *OPEN_THE_VAULT, 5]], {}, EndingCode.PROMPT_REFUSED, "input"),
        ([[VAULT, SPECIAL, *OPEN_THE_VAULT[1:]]], {}, EndingCode.PROMPT_REFUSED, "input"),
        ([[5] * 100] * 6, {}, EndingCode.INVALID_REQUEST, "input"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
async def test_a_bad_input_ends_and_is_named(
    world: World, inputs: list[Prompt], changes: dict[str, Any], code: EndingCode, param: str
) -> None:
    await world.pipeline.handle_request(world.record(asked(world, *inputs, **changes)))
    [ending] = world.log.endings
    assert (ending.code, ending.param, ending.endpoint) == (code, param, "embeddings")
    assert not world.log.dead
    assert not [kind for kind in world.log.kinds if kind.startswith("inference")]


@pytest.mark.parametrize("endpoint", [endpoint for endpoint in ENDPOINTS if endpoint != "embeddings"])
async def test_a_model_that_embeds_answers_no_chat_and_says_what_it_does(world: World, endpoint: str) -> None:
    given: dict[str, Any] = {"messages": [], "prompt": "Once"} if endpoint == "completions" else {}
    await world.pipeline.handle_request(world.record(world.request(model="embed", endpoint=endpoint, **given)))
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (EndingCode.UNSUPPORTED_PARAMETER, "model")
    assert ending.message == "The model 'embed' embeds: it answers /v1/embeddings alone."


async def test_an_input_may_fill_the_whole_context(world: World) -> None:
    admission = await validation(asked(world, [5] * 100), world.services)
    assert isinstance(admission, Admission)
    assert (len(admission.prompt_token_ids), admission.input_ends) == (100, [100])


async def test_no_more_tokens_than_a_record_holds_are_taken_and_none_behind_them_is_made(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def encode(_: Words, text: str, *, at_most: int) -> list[int]:
        made.append(text)
        return [5] * 100_000

    monkeypatch.setattr(Words, "encode_prompt", encode)
    inputs = asked(world, "a", "b", "c", "d", "e", tenant="gold", model="fixed")
    await world.pipeline.handle_request(world.record(inputs))
    [ending] = world.log.endings
    assert (ending.code, ending.param) == (EndingCode.INVALID_REQUEST, "input")
    assert f"{MAX_INPUT_TOKENS}" in ending.message
    assert made == ["a", "b", "c", "d"]


async def test_inputs_travel_between_stages_as_they_came(world: World) -> None:
    admission = await validation(asked(world, "Once", [5, 6]), world.services)
    assert isinstance(admission, Admission)
    read = Admission.model_validate_json(admission.encode())
    assert (read.request.inputs, read.input_ends) == (["Once", [5, 6]], [2, 4])
