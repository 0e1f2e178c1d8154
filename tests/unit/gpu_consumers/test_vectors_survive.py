"""Vectors while workers and engines die: told whole by one attempt, each once, in the order of the inputs."""

import base64
from array import array

import pytest

from gpu_consumers.engines.port import EngineDelta, EngineRequest, EngineStats
from gpu_consumers.engines.vectors import Vectors, next_step
from schemas.endings import EndingCode
from schemas.request import Lane
from tests.unit.gpu_consumers.fleet import TOPICS, Fleet

INPUTS = 9
INPUTS_AT_ONCE = 2


class Pooling:
    """In the place of the engine that generates: in a step a few inputs of each request, each to a vector of itself."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[EngineRequest, Vectors, list[int]]] = {}

    def submit(self, request: EngineRequest, now_s: float) -> None:
        self._requests[request.request_id] = request, Vectors(request), list(range(len(request.inputs)))

    def abort(self, request_id: str, now_s: float) -> None:
        self._requests.pop(request_id, None)

    def stats(self) -> EngineStats:
        return EngineStats()

    def step(self, now_s: float) -> list[EngineDelta]:
        rows: list[EngineDelta] = []
        for request_id, (request, vectors, left) in list(self._requests.items()):
            for _ in range(min(INPUTS_AT_ONCE, len(left))):
                index = left.pop()  # the last first: an engine may end them in any order
                vectors.put(index, [float(token) for token in request.inputs[index]])
            if vectors.are_complete:
                del self._requests[request_id]
                rows += vectors.rows()
        step, rest = next_step(rows)
        assert not rest
        return step


def assert_told_once(fleet: Fleet, response_id: str) -> None:
    region = fleet.region
    assert region.terminal(response_id) is EndingCode.COMPLETED
    numbers = array("f", base64.b64decode("".join(region.text[response_id])))
    assert numbers.tolist() == [float(token) for token in region.requests[response_id].prompt_token_ids]
    assert len(region.tokens[response_id]) == INPUTS


def test_vectors_are_told_in_the_order_of_the_inputs_and_none_before_the_last() -> None:
    fleet = Fleet("a", embeds=Pooling)
    response_id = fleet.region.request(inputs=INPUTS)
    fleet.run(100)
    assert fleet.region.tokens[response_id] == []
    fleet.settle()
    assert_told_once(fleet, response_id)


@pytest.mark.parametrize("effects", range(12))
def test_whenever_a_worker_dies_another_tells_them_whole(effects: int) -> None:
    fleet = Fleet("a", embeds=Pooling)
    several = [fleet.region.request(inputs=INPUTS) for _ in range(2)]
    fleet.workers["a"].dies_after = effects
    fleet.run(400)
    assert not fleet.workers
    fleet.start("b")
    fleet.settle()
    for response_id in several:
        assert_told_once(fleet, response_id)


@pytest.mark.parametrize("steps", range(1, 7))
def test_whenever_an_engine_dies_its_next_start_tells_them_whole(steps: int) -> None:
    fleet = Fleet("a", embeds=Pooling)
    response_id = fleet.region.request(inputs=INPUTS)
    fleet.run(20 * steps)
    fleet.workers["a"].kill_engine = True
    fleet.settle()
    assert_told_once(fleet, response_id)
    costs = fleet.region.computed()
    assert [cost.outcome for cost in costs].count("completed") == 1
    assert {cost.generated_tokens for cost in costs} == {0}


def test_a_second_copy_of_the_request_is_not_answered_again() -> None:
    fleet = Fleet("a", embeds=Pooling)
    response_id = fleet.region.request(inputs=INPUTS)
    fleet.settle()
    copy = fleet.region.requests[response_id].encode()
    fleet.region.log.append(TOPICS.lane("pool", Lane.STANDARD).name, copy, partition=1)
    fleet.run(10_000)
    assert_told_once(fleet, response_id)
    assert len(fleet.region.computed()) == 1
