"""Calls that are too many, too long or too deep."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpu_consumers.parsing.bounds import (
    MAX_ARGUMENTS_CHARS,
    MAX_ARGUMENTS_DEPTH,
    MAX_SILENT_CHARS,
    CallBounds,
)
from gpu_consumers.parsing.port import Piece
from schemas.request import MAX_TOOL_CALLS
from tests.unit.gpu_consumers.parsing.answers import JSON, cut


def arguments(text: str, call: int = 0) -> Piece:
    return Piece("tool_arguments", call, text)


def holds(*texts: str) -> bool:
    bounds = CallBounds()
    for text in texts:
        bounds.within(text, [arguments(text)])
    return not bounds.exceeded


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(st.data(), JSON, st.integers(MAX_ARGUMENTS_DEPTH - 6, MAX_ARGUMENTS_DEPTH + 1))
def test_depth_is_that_of_the_json_however_it_is_cut(data: st.DataObject, value: object, wrapped: int) -> None:
    for _ in range(wrapped):
        value = [value]
    texts = data.draw(cut(json.dumps(value, ensure_ascii=False)))
    assert holds(*texts) == (depth(value) <= MAX_ARGUMENTS_DEPTH)


def test_each_call_may_be_as_long_as_the_bound() -> None:
    assert holds(*["x" * 64] * (MAX_ARGUMENTS_CHARS // 64))
    assert not holds("x" * MAX_ARGUMENTS_CHARS, "x")
    bounds = CallBounds()
    for call in (0, 1):
        bounds.within("", [arguments("x" * MAX_ARGUMENTS_CHARS, call)])
    assert not bounds.exceeded


def test_nothing_is_told_from_the_piece_on_that_is_too_much() -> None:
    bounds = CallBounds()
    name, more = Piece("tool_name", MAX_TOOL_CALLS, "f"), Piece("content", 0, "x")
    assert bounds.within("", [more, name, more]) == [more]
    assert bounds.exceeded


def test_a_parser_may_not_wait_for_ever() -> None:
    bounds = CallBounds()
    bounds.within("x" * MAX_SILENT_CHARS, [])
    bounds.within("x", [Piece("content", 0, "x")])
    bounds.within("x" * MAX_SILENT_CHARS, [])
    assert not bounds.exceeded
    bounds.within("x", [])
    assert bounds.exceeded
