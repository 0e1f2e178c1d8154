"""From vectors in any order to rows in the order of the inputs."""

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.port import EngineDelta, EngineRequest
from gpu_consumers.engines.vectors import MAX_ROW_CHARS, MAX_STEP_CHARS, Vectors, encoded, next_step
from schemas.request import Sampling


def request(inputs: int, dimensions: int | None = None) -> EngineRequest:
    ends = [2 * (index + 1) for index in range(inputs)]
    return EngineRequest("a", [7] * 2 * inputs, Sampling(), 0, input_ends=ends, dimensions=dimensions)


def decoded(text: str) -> list[float]:
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def vectors_of(deltas: list[EngineDelta]) -> list[list[float]]:
    return [
        decoded(delta.text[begin:end])
        for delta in deltas
        for begin, end in zip((0, *delta.text_ends), delta.text_ends, strict=False)
    ]


@given(st.permutations(range(9)))
def test_whichever_is_done_first_they_are_given_in_the_order_of_the_inputs(done: list[int]) -> None:
    vectors = Vectors(request(9))
    for index in done:
        assert not vectors.are_complete
        vectors.put(index, [float(index), 0.0])
    assert vectors.are_complete
    deltas = vectors.rows()
    assert vectors_of(deltas) == [[float(index), 0.0] for index in range(9)]
    assert [delta.finish for delta in deltas] == [""] * (len(deltas) - 1) + ["stop"]
    assert {(delta.kind, delta.choice) for delta in deltas} == {("embedding", 0)}
    assert all(len(delta.token_ids) == len(delta.text_ends) for delta in deltas)


def test_a_row_ends_where_it_is_long_enough() -> None:
    vectors = Vectors(request(100))
    for index in range(100):
        vectors.put(index, [0.5] * 1_024)
    deltas = vectors.rows()
    size = len(encoded([0.5] * 1_024, None))
    assert sum(len(delta.text_ends) for delta in deltas) == 100
    assert all(len(delta.text) < MAX_ROW_CHARS + size for delta in deltas)
    assert len(deltas) == math.ceil(100 / math.ceil(MAX_ROW_CHARS / size))


def test_rows_leave_in_steps_that_fit_a_record() -> None:
    vectors = Vectors(request(500))
    for index in range(500):
        vectors.put(index, [0.5] * 1_024)
    waiting, steps = vectors.rows(), []
    while waiting:
        step, waiting = next_step(waiting)
        steps.append(step)
    assert vectors_of([row for step in steps for row in step]) == [[0.5] * 1_024] * 500
    assert len(steps) == 3
    assert all(sum(len(row.text) for row in step) < MAX_STEP_CHARS + 2 * MAX_ROW_CHARS for step in steps)
    assert next_step([]) == ([], [])


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_vector_that_is_cut_has_length_1_again(dimensions: int) -> None:
    cut = decoded(encoded([0.48, 0.6, 0.64], dimensions))
    assert len(cut) == dimensions
    assert math.hypot(*cut) == pytest.approx(1, abs=1e-6)
    assert all(number > 0 for number in cut)


def test_a_vector_that_is_whole_is_told_as_it_is() -> None:
    numbers = [0.1, -0.2, 0.3]
    rounded = list(struct.unpack("<3f", struct.pack("<3f", *numbers)))
    assert decoded(encoded(numbers, None)) == decoded(encoded(numbers, 3)) == rounded
    assert decoded(encoded([0.0, 0.0], 1)) == [0.0]
