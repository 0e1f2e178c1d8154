"""From vectors in any order to rows in the order of the inputs."""

import base64
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.engines.port import EngineDelta, EngineRequest
from gpu_consumers.engines.vectors import MAX_ROW_CHARS, MAX_STEP_CHARS, Vectors, cut, next_step
from schemas.request import Sampling
from schemas.vectors import as_text, numbers_of


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
    size = len(as_text([0.5] * 1_024))
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
    short = cut([0.48, 0.6, 0.64], dimensions)
    assert len(short) == dimensions
    assert math.hypot(*short) == pytest.approx(1, abs=1e-6)
    assert all(number > 0 for number in short)


def test_a_vector_that_is_whole_is_told_as_it_is() -> None:
    vector = [0.1, -0.2, 0.3]
    assert cut(vector, None) == cut(vector, 3) == vector
    assert cut([0.0, 0.0], 1) == [0.0]


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_a_vector_is_written_as_little_endian_float32_and_read_as_it_was(vector: list[float]) -> None:
    assert decoded(as_text(vector)) == numbers_of(as_text(vector)) == vector
