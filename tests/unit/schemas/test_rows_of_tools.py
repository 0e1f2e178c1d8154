"""Rows of tools in frames and releases: the column that only they need, and what becomes of one that cannot be."""

import json
from typing import Any

import pytest

from schemas.codec import Undecodable, decode
from schemas.columns import MAX_CALLS
from schemas.generated import Frame
from schemas.responses import Release
from tests.unit.schemas.examples import EXAMPLES, NOW, SCOPE

KINDS = ["content", "tool_name", "tool_arguments", "tool_name", "reasoning"]
CALLS = [0, 0, 0, 1, 0]


def frame(**columns: Any) -> dict[str, Any]:
    """A row of each kind, each of a response of its own."""
    rows = len(KINDS)
    return {
        "worker_id": "worker-1", "emitted_at_us": NOW, "scopes": [SCOPE.model_dump()], "scope": [0] * rows,
        "response_id": [f"r{row}" for row in range(rows)], "attempt_id": [f"a{row}" for row in range(rows)],
        "choice": [0] * rows, "first_sequence": [1] * rows, "kind": KINDS, "token_ids": [[7]] * rows,
        "text": ["x"] * rows, "text_ends": [[1]] * rows, "logprobs": [None] * rows, "finish": [""] * rows,
        "cached_tokens": [0] * rows, "call": CALLS, **columns,
    }  # fmt: skip


def release(**columns: Any) -> dict[str, Any]:
    row = frame(**columns)
    names = ("scopes", "scope", "response_id", "choice", "first_sequence", "kind", "text", "text_ends", "call")
    return {name: row[name] for name in names} | {"emitted_at_us": [NOW] * len(KINDS)}


def test_without_tools_a_record_has_no_such_column() -> None:
    """So the release before writes the same bytes, and reads them."""
    without: list[Frame | Release] = [example for example in EXAMPLES if isinstance(example, Frame | Release)]
    assert len(without) == 2
    for example in without:
        assert b'"call"' not in example.encode()
        assert [*example.calls] == [0] * len(example)
        assert decode(type(example), example.encode()) == example


@pytest.mark.parametrize("record", [Frame.model_validate(frame()), Release.model_validate(release())], ids=type)
def test_with_tools_every_row_says_its_call(record: Frame | Release) -> None:
    value = record.encode()
    assert json.loads(value)["call"] == CALLS
    assert [*record.calls] == CALLS
    assert decode(type(record), value) == record


def test_where_no_column_is_every_row_is_of_the_first_call() -> None:
    value = frame()
    del value["call"]
    assert [*Frame.model_validate(value).calls] == [0] * len(KINDS)


@pytest.mark.parametrize(
    "calls", [[0, 0, -1, 1, 0], [0, 0, MAX_CALLS, 1, 0], [0, 0, 2**70, 1, 0]], ids=["negative", "too large", "huge"]
)
def test_a_row_of_a_call_that_cannot_be_costs_its_own_attempt_alone(calls: list[int]) -> None:
    read = Frame.model_validate(frame(call=calls))
    assert read.spoilt == (("r2", "a2"),)
    assert (read.response_id, read.call) == (["r0", "r1", "r3", "r4"], [0, 0, 1, 0])
    with pytest.raises(ValueError, match="call"):
        Release.model_validate(release(call=calls))


def test_a_row_without_a_tool_has_no_call() -> None:
    calls = [0, 0, 0, 0, 1]
    assert Frame.model_validate(frame(call=calls)).spoilt == (("r4", "a4"),)
    with pytest.raises(ValueError, match="call"):
        Release.model_validate(release(call=calls))


@pytest.mark.parametrize("schema", [Frame, Release])
def test_a_column_of_another_length_is_refused(schema: type[Frame | Release]) -> None:
    value = frame(call=CALLS[1:]) if schema is Frame else release(call=CALLS[1:])
    with pytest.raises(Undecodable, match="columns differ"):
        decode(schema, json.dumps(value).encode())
