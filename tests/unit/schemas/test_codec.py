"""A record that cannot be read gets a reason that names fields and never shows values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import Record
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED, Frame
from schemas.request import Request
from schemas.responses import RESPONSES, Release
from tests.unit.schemas.examples import EXAMPLES

REQUEST = next(example for example in EXAMPLES if isinstance(example, Request))
FRAME = next(example for example in EXAMPLES if isinstance(example, Frame))
RELEASE = next(example for example in EXAMPLES if isinstance(example, Release))


@pytest.mark.parametrize(
    ("value", "reason", "detail"),
    [
        (None, "not_json", "no value"),
        (b"", "not_json", "EOF"),
        (b"\xff\xfe", "not_json", ""),
        (b"[" * 10_000, "not_json", "recursion"),
        (b'{"type": "surprise", "schema_version": 1}', "unknown_type", "surprise"),
        (b'{"schema_version": 1}', "unknown_type", ""),
        (b'{"type": "fence", "schema_version": 7}', "unknown_version", "7"),
        (b'{"type": "fence", "schema_version": 1, "kind": "fresh"}', "invalid", "response_id"),
        (b"[]", "invalid", ""),
    ],
)
def test_reasons(value: bytes | None, reason: str, detail: str) -> None:
    with pytest.raises(Undecodable) as refusal:
        decode(GENERATED, value)
    assert refusal.value.reason == reason
    assert detail in refusal.value.detail


def test_a_value_never_stands_in_the_detail() -> None:
    value = json.dumps({"type": "request", "messages": "my secret prompt"}).encode()
    with pytest.raises(Undecodable) as refusal:
        decode(Request, value)
    assert "messages" in refusal.value.detail
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: type(each).__name__)
def test_nor_does_it_in_that_of_any_record_whichever_field_is_wrong(example: Record) -> None:
    """But for what kind of a record it says to be."""
    secret = "my secret prompt"
    told, why = json.loads(example.encode()), list[str]()
    for name in told.keys() - {"type", "schema_version"}:
        for wrong in (secret, [secret], {"a": secret}, {"content": [{"text": secret}]}, [[secret]], secret * 1_000):
            try:
                decode(type(example), json.dumps(told | {name: wrong}).encode())
            except Undecodable as refusal:
                why.append(str(refusal))
    assert why
    assert not [each for each in why if "secret" in each]


def test_a_frame_whose_columns_differ_in_length_is_refused() -> None:
    value = json.loads(FRAME.encode()) | {"finish": [""]}
    with pytest.raises(Undecodable) as refusal:
        decode(GENERATED, json.dumps(value).encode())
    assert refusal.value.reason == "invalid"


@pytest.mark.parametrize(
    "change",
    [
        {"scope": [0, 1]},
        {"scope": [-1, 0]},
        {"first_sequence": [0, 4]},
        {"text_ends": [[2, 2], []]},
        {"text_ends": [[2, 2, 9], []]},
        {"text_ends": [[3, 2, 3], []]},
        {"text": ["Hé👋", "text without a token"]},
        {"token_ids": [[11, 12, 13], [14]]},
    ],
    ids=str,
)
def test_a_row_that_disagrees_leaves_its_attempt_out_of_the_frame(change: dict[str, object]) -> None:
    value = json.loads(FRAME.encode()) | change
    value = {
        name: [*each, *each] if isinstance(each, list) and name != "scopes" else each for name, each in value.items()
    }
    for name in set(change):  # the other attempt's rows are as they should be
        value[name][2:] = json.loads(FRAME.encode())[name]
    value["attempt_id"][2:] = ["other", "other"]
    frame = decode(GENERATED, json.dumps(value).encode())
    assert isinstance(frame, Frame)
    assert frame.spoilt == ((FRAME.response_id[0], FRAME.attempt_id[0]),)
    assert (frame.attempt_id, frame.text) == (["other", "other"], FRAME.text)
    assert len(frame) == len(frame.cached_tokens) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"kind": []},
        {"scope": [1]},
        {"scope": [-1]},
        {"first_sequence": [0]},
        {"text_ends": [[2, 2]]},
        {"text_ends": [[3, 2, 3]]},
    ],
    ids=str,
)
def test_a_release_whose_columns_disagree_is_refused(change: dict[str, object]) -> None:
    value = json.loads(RELEASE.encode()) | change
    with pytest.raises(Undecodable) as refusal:
        decode(RESPONSES, json.dumps(value).encode())
    assert refusal.value.reason == "invalid"


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)
TOKENS = st.lists(st.integers(0, 2**31), min_size=1)
HOLDS_ITS_OWN_NAMES = '"prompt":"","inputs":[""]'


@given(
    TEXTS | TOKENS,
    st.lists(TEXTS | TOKENS, min_size=1),
    st.sampled_from(["", "default", HOLDS_ITS_OWN_NAMES]),
    st.sampled_from(["prompt", "inputs"]),
)
def test_token_ids_are_written_as_anything_is(prompt: object, inputs: object, model: str, field: str) -> None:
    asked = {"prompt": prompt} if field == "prompt" else {"inputs": inputs}
    request = REQUEST.model_copy(update={"messages": [], "model": model, "echo": HOLDS_ITS_OWN_NAMES, **asked})
    assert request.encode() == request.model_dump_json().encode()
