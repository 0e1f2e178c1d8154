"""Vectors leave as rows of frames: numbered like tokens, counted nowhere as such, in records that Kafka takes."""

from array import array
from dataclasses import replace

import pytest

from gpu_consumers.core.capacity import Capacity
from gpu_consumers.core.config import NoObserver
from gpu_consumers.core.effects import Effect, Publish
from gpu_consumers.core.emission import Emission
from gpu_consumers.core.scheduler import Sizes
from gpu_consumers.core.slots import Slots
from gpu_consumers.core.work import Phase, Work, Works
from gpu_consumers.engines.vectors import Vectors, next_step
from schemas.generated import GENERATED, Frame
from schemas.request import AdmittedRequest
from schemas.usage import USAGE, ComputeRecord
from streams.lane_policy import LANE_POLICIES
from streams.log.port import MAX_RECORD_BYTES
from tests.unit.gpu_consumers.fleet import CONFIG, NOW_MS, TOPICS, Region


def work_of(inputs: int, dimensions: int | None = None) -> Work:
    region = Region()
    request = region.requests[region.request(inputs=inputs)].model_copy(update={"dimensions": dimensions})
    prompt = request.prompt_token_ids
    return Work(request, array("I", prompt), len(prompt), request.scope, attempt_id="a")


def emission_of(work: Work, effects: list[Effect]) -> Emission:
    works = Works()
    works.by_response[work.response_id] = work
    works.set_attempt(work)
    works.set_phase(work, Phase.RUNNING)
    work.begins_anew()
    return Emission(replace(CONFIG, coalesce_ms=1_000, dimensions=128), works, NoObserver(), effects)


def published(effects: list[Effect], topic: str) -> list[bytes]:
    return [effect.value or b"" for effect in effects if isinstance(effect, Publish) and effect.topic == topic]


@pytest.mark.parametrize(("inputs", "size"), [(1, 8), (2_048, 128), (512, 1_024), (8, 65_536)])
def test_the_largest_answers_leave_in_records_that_kafka_takes(inputs: int, size: int) -> None:
    work, effects = work_of(inputs), list[Effect]()
    emission = emission_of(work, effects)
    vectors = Vectors(work.engine_request())
    numbers = [1.0] * size
    for index in range(inputs):
        vectors.put(index, numbers)
    waiting = vectors.rows()
    while waiting:
        step, waiting = next_step(waiting)
        assert emission.step(step, NOW_MS * 1_000) == []
    values = published(effects, TOPICS.generated.name)
    assert all(len(value) < MAX_RECORD_BYTES for value in values)
    frames = [GENERATED.validate_json(value) for value in values]
    expected = 1
    for frame in frames:
        assert isinstance(frame, Frame)
        assert not frame.spoilt
        for row in range(len(frame)):
            assert (frame.first_sequence[row], frame.kind[row]) == (expected, "embedding"), "none waits, none is joined"
            expected += len(frame.token_ids[row])
    assert expected == inputs + 1
    [compute] = [USAGE.validate_json(value) for value in published(effects, TOPICS.usage.name)]
    assert isinstance(compute, ComputeRecord)
    assert (compute.generated_tokens, compute.prompt_tokens, compute.outcome) == (0, 3 * inputs, "completed")
    assert emission.generated_tokens == 0
    assert work.phase is Phase.CLOSING


@pytest.mark.parametrize(("dimensions", "queued"), [(None, 27 + 9 * 8), (32, 27 + 9 * 2), (8, 27 + 5)])
def test_vectors_weigh_what_they_take_while_their_request_waits(dimensions: int | None, queued: int) -> None:
    slots = Slots(Sizes(1), LANE_POLICIES, Works(), Capacity(), dimensions=128)
    work = work_of(9, dimensions)
    slots.queue(work, NOW_MS, front=False)
    assert (slots.queued_tokens, slots.tokens_of) == (queued, {work.request.scope.tenant_id: queued})


def test_each_input_reaches_the_engine_as_it_is() -> None:
    asked = work_of(2, dimensions=32).engine_request()
    assert (asked.inputs, asked.dimensions) == ([[10, 11, 12], [13, 14, 15]], 32)


@pytest.mark.parametrize("ends", [[3, 3, 6], [0, 6], [3], [3, 7], [4, 3, 6]], ids=str)
def test_inputs_that_are_not_the_prompt_are_no_work(ends: list[int]) -> None:
    given = work_of(2).request.model_dump()
    AdmittedRequest.model_validate(given)
    with pytest.raises(ValueError, match="input_ends"):
        AdmittedRequest.model_validate({**given, "input_ends": ends})
