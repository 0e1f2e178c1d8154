"""What a body of `/v1/embeddings` asks for, what it is refused for, and how vectors are told."""

import base64
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse

from schemas.endings import EndingCode
from schemas.request import MAX_INPUTS
from schemas.responses import TokenUsage
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import RequestError
from streams.dialects.openai_embeddings import MOST_VALUES, embeddings_object, parse_embeddings_request

USAGE = TokenUsage(prompt_tokens=7)


def body(given: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "embed", "input": given, **fields}


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("hello", ["hello"]),
        (["hello"], ["hello"]),
        (["one", "two", "one"], ["one", "two", "one"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["one", [2]], ["one", [2]]),
        (["x"] * MAX_INPUTS, ["x"] * MAX_INPUTS),
    ],
    ids=lambda value: str(value)[:20],
)
def test_inputs_are_texts_and_tokens_one_or_many(given: Any, inputs: list[Any]) -> None:
    asked = parse_embeddings_request(body(given))
    assert (asked.inputs, asked.endpoint, asked.messages, asked.prompt) == (inputs, "embeddings", [], None)
    assert (asked.encoding_format, asked.dimensions, asked.stream) == ("float", None, False)


def test_what_is_asked_for_beside_the_inputs_is_kept() -> None:
    beside = {"encoding_format": "base64", "dimensions": 64, "user": "ann", "priority": 0, "normalize": True}
    asked = parse_embeddings_request(body(**beside))
    assert (asked.encoding_format, asked.dimensions, asked.user) == ("base64", 64, "ann")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": [True]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [5, "x"]}, "input[1]"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": ["x", []]}, "input[1]"),
        ({"input": ["x", 5]}, "input[1]"),
        ({"input": [[5], [5, "x"]]}, "input[1][1]"),
        ({"input": ["x"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": [[1] * 150_000, [1] * 150_001]}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 1.5}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"user": 5}, "user"),
        ({"model": ""}, "model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_embeddings_request({**body(), **given})
    assert (error.value.code, error.value.param) == (EndingCode.INVALID_REQUEST, param)


@pytest.mark.parametrize("name", ["model", "input"])
def test_a_missing_field_is_named(name: str) -> None:
    given = body()
    del given[name]
    with pytest.raises(RequestError) as error:
        parse_embeddings_request(given)
    assert error.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", [{"role": "user", "content": "hi"}]), ("truncate_prompt_tokens", 5), ("normalize", False),
        ("embed_dtype", "float16"), ("input_type", "query"), ("stream", True), ("temperature", 1),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as error:
        parse_embeddings_request(body(**{name: value}))
    assert (error.value.code, error.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, name)


def test_as_many_tokens_as_are_embedded_at_once_fit_a_body() -> None:
    tokens = [[7] * 1_000] * 300
    parsed = parse_json_object(orjson.dumps(body(tokens)), MOST_VALUES)
    assert parse_embeddings_request(parsed).inputs == tokens


@given(st.lists(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_vector_is_told_as_it_is_in_either_format(vectors: list[list[float]]) -> None:
    texts = [base64.b64encode(struct.pack("<3f", *vector)).decode() for vector in vectors]
    told = {
        name: orjson.loads(orjson.dumps(embeddings_object("embed", texts, name, USAGE))) for name in ("float", "base64")
    }
    assert [item["embedding"] for item in told["base64"]["data"]] == texts
    assert [item["embedding"] for item in told["float"]["data"]] == vectors
    for each in told.values():
        answer = CreateEmbeddingResponse.model_validate({**each, "data": told["float"]["data"]}, strict=True)
        assert [item.index for item in answer.data] == list(range(len(vectors)))
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)
