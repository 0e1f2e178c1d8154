"""How likely tokens were, in frames and releases: a column that only those need who asked, one entry per token."""

import json
from typing import Any

import pytest

from schemas.codec import Undecodable, decode
from schemas.generated import Frame
from schemas.logprobs import MAX_TOP_LOGPROBS, MIN_LOGPROB
from schemas.responses import Release
from tests.unit.schemas.examples import EXAMPLES

[FRAME] = [example for example in EXAMPLES if isinstance(example, Frame)]
[RELEASE] = [example for example in EXAMPLES if isinstance(example, Release)]
TOLD = FRAME.logprobs[:1]


def of_two_attempts(logprobs: list[Any]) -> bytes:
    """The example's row with these, and once more as it is, in an attempt of its own."""
    value = json.loads(FRAME.encode())
    columns = {
        name: each[:1] * 2
        for name, each in value.items()
        if isinstance(each, list) and name not in ("scopes", "stage_ms")
    }
    columns |= {"logprobs": [*logprobs, *value["logprobs"][:1]], "attempt_id": ["a1", "a2"]}
    return json.dumps(value | columns).encode()


def test_a_release_has_the_column_only_where_a_row_has_some() -> None:
    """So the release before writes the same bytes, and reads them."""
    assert b'"logprobs"' not in RELEASE.encode()
    assert [*RELEASE.all_logprobs] == [None] * len(RELEASE)
    told = RELEASE.model_copy(update={"logprobs": TOLD})
    assert decode(Release, told.encode()) == told
    assert [*told.all_logprobs] == TOLD


@pytest.mark.parametrize("logprobs", [[[]], [[[["H", -1.0]]] * 2], [[[["H", -1.0]]] * 4]], ids=["none", "two", "four"])
def test_a_row_with_another_number_of_them_than_of_tokens_is_not_read(logprobs: list[Any]) -> None:
    frame = decode(Frame, of_two_attempts(logprobs))
    assert (frame.spoilt, frame.attempt_id) == (((FRAME.response_id[0], "a1"),), ["a2"])
    value = json.loads(RELEASE.encode()) | {"logprobs": logprobs}
    with pytest.raises(Undecodable, match="logprobs"):
        decode(Release, json.dumps(value).encode())


@pytest.mark.parametrize(
    "told",
    [
        [], [["H", -1.0]] * (2 + MAX_TOP_LOGPROBS), [["H", 0.5]], [["H", MIN_LOGPROB - 1]], [["H", None]], [["H"]],
        [["€", -1.0]], [["H" * 1_025, -1.0]],
    ],
    ids=["nothing", "too many", "above one", "below all", "no figure", "half", "no byte", "too long"],
)  # fmt: skip
def test_what_cannot_be_told_of_a_token_is_refused(told: list[Any]) -> None:
    logprobs = [[told] * 3]
    for kind, value in ((Frame, of_two_attempts(logprobs)), (Release, json.loads(RELEASE.encode()))):
        if isinstance(value, dict):
            value = json.dumps(value | {"logprobs": logprobs}).encode()
        with pytest.raises(Undecodable, match="logprobs"):
            decode(kind, value)
