"""The lines of a batch's file: cut from pieces in any way, read strictly, told in both files."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import Scope
from schemas.batch import ENDPOINTS, BatchError, BatchResponse, BatchResult
from schemas.request import MAX_INPUT_TOKENS
from schemas.vectors import as_text
from streams.dialects.openai_embeddings import format_in
from streams.dialects.responses.objects import read_echo
from streams.gateway.batches.lines import MAX_CUSTOM_ID_CHARS, BrokenLine, Line, Lines, custom_id_of, read_line
from streams.gateway.batches.told import Place, not_run, packed, told_of, unpacked
from streams.gateway.batches.validation import Validation
from tests.unit.streams.gateway.batch_stories import CHAT, custom_ids, line

TEXT, VECTORS, RESPONSES = "/v1/completions", "/v1/embeddings", "/v1/responses"
SCOPE = Scope(tenant_id="acme")
ID = f"resp_local-3_{'a' * 32}"
GOOD: dict[str, Any] = json.loads(line("a"))
BLANK = st.sampled_from([b"", b" ", b"\r", b"\t \x0b\x0c\r"])


def cut(content: bytes, sizes: list[int], most: int = 1_000, *, number: int = 0, at: int = 0) -> list[Line]:
    """By pieces of these sizes, and the rest as one."""
    lines = Lines(most, number=number, at=at)
    found: list[Line] = []
    for size in sizes:
        piece, content = content[:size], content[size:]
        found += lines.feed(piece)
    return [*found, *lines.feed(content), *lines.close()]


@given(
    texts=st.lists(BLANK | st.binary(max_size=12).map(lambda each: each.replace(b"\n", b"")), max_size=8),
    sizes=st.lists(st.integers(0, 9), max_size=12), ends=st.booleans(),
)  # fmt: skip
def test_however_a_file_comes_its_lines_are_the_same(texts: list[bytes], sizes: list[int], ends: bool) -> None:
    content = b"\n".join(texts) + (b"\n" if ends else b"")
    found = cut(content, sizes)
    assert [each.raw for each in found] == [text for text in texts if text.strip()]
    assert [each.number for each in found] == [*range(len(found))]
    assert found == cut(content, [])
    for each in found:
        assert cut(content[each.end :], sizes, number=each.number + 1, at=each.end) == found[each.number + 1 :]


@given(
    texts=st.lists(st.text("x \t\r", max_size=9).map(str.encode), max_size=12),
    sizes=st.lists(st.integers(0, 30), max_size=12), most=st.integers(1, 9),
)  # fmt: skip
def test_however_a_file_comes_the_same_of_its_blank_lines_are_too_long(
    texts: list[bytes], sizes: list[int], most: int
) -> None:
    content = b"\n".join(texts)
    expected = [None if len(text) > most else text for text in texts if len(text) > most or text.strip()]
    assert [each.raw for each in cut(content, sizes, most)] == expected
    assert cut(content, sizes, most) == cut(content, [1] * len(content), most)


@given(sizes=st.lists(st.integers(1, 30), max_size=12))
def test_a_line_that_is_too_long_is_passed_over_and_not_held(sizes: list[int]) -> None:
    content = b"a" * 11 + b"\n" + b"b" * 10 + b"\n" + b"c" * 50
    assert [each.raw for each in cut(content, sizes, 10)] == [None, b"b" * 10, None]


def test_a_good_line_is_read() -> None:
    asked = read_line(line("a").encode(), CHAT)
    assert (asked.custom_id, asked.request.model, asked.request.sampling.max_tokens) == ("a", "tiny", 4)


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": None}, "invalid_request", "custom_id"), ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"custom_id": "x" * (MAX_CUSTOM_ID_CHARS + 1)}, "invalid_request", "custom_id"),
        ({"custom_id": 7}, "invalid_request", "custom_id"), ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"), ({"url": None}, "invalid_request", "url"),
        ({"body": []}, "invalid_request", "body"), ({"more": 1}, "unsupported_parameter", "more"),
        ({"body": {**GOOD["body"], "messages": []}}, "invalid_request", "body.messages"),
        ({"body": {**GOOD["body"], "nonsense": 1}}, "unsupported_parameter", "body.nonsense"),
        ({"body": {**GOOD["body"], "store": True}}, "unsupported_parameter", "body.store"),
        ({"body": {**GOOD["body"], "conversation": "conv_1"}}, "unsupported_parameter", "body.conversation"),
        (
            {"body": {**GOOD["body"], "previous_response_id": "resp_1"}},
            "unsupported_parameter", "body.previous_response_id",
        ),
    ],
)  # fmt: skip
def test_a_broken_line_names_its_field(change: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(BrokenLine) as broken:
        read_line(json.dumps({**GOOD, **change}).encode(), CHAT)
    assert (broken.value.code, broken.value.param) == (code, param)
    assert broken.value.custom_id == (change.get("custom_id", "a") if "custom_id" not in change else "")


def asking(url: str, **body: Any) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": {"model": "tiny", **body}}).encode()


def test_a_line_of_a_raw_prompt_is_read() -> None:
    asked = read_line(asking(TEXT, prompt="Once", n=2, logprobs=1), TEXT).request
    assert (asked.endpoint, asked.prompt, asked.choices, asked.sampling.logprobs) == ("completions", "Once", 2, 1)


def test_a_line_of_texts_to_embed_is_read_with_the_form_of_its_vectors() -> None:
    asked = read_line(asking(VECTORS, input=["Once", [5, 7]], dimensions=64), VECTORS).request
    assert (asked.endpoint, asked.inputs, asked.dimensions) == ("embeddings", ["Once", [5, 7]], 64)
    assert format_in(asked.echo) == "float"
    asked = read_line(asking(VECTORS, input="Once", encoding_format="base64"), VECTORS).request
    assert format_in(asked.echo) == "base64"


def test_a_line_may_hold_as_many_tokens_as_a_request_for_vectors() -> None:
    raw = asking(VECTORS, input=[[1] * 100_000] * 3)
    assert sum(map(len, read_line(raw, VECTORS).request.inputs)) == MAX_INPUT_TOKENS
    assert custom_id_of(raw) == "a"
    with pytest.raises(BrokenLine) as broken:
        read_line(asking(CHAT, messages=[[1] * 100_000] * 3), CHAT)
    assert broken.value.code == "invalid_json_line"


def test_a_line_of_a_response_is_not_stored_and_says_so() -> None:
    for more in ({}, {"store": None}, {"store": False}, {"background": False, "previous_response_id": None}):
        asked = read_line(asking(RESPONSES, input="Hi", instructions="Be brief.", **more), RESPONSES).request
        assert (asked.endpoint, asked.store, asked.previous_response_id) == ("responses", False, None)
        assert [message.text for message in asked.messages] == ["Be brief.", "Hi"]
        told = read_echo(asked.echo)
        assert (told["store"], told["instructions"], "background" in told) == (False, "Be brief.", False)


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        (RESPONSES, {"input": "Hi", "store": True}, "store"),
        (RESPONSES, {"input": "Hi", "background": True}, "background"),
        (RESPONSES, {"input": "Hi", "conversation": "conv_1"}, "conversation"),
        (RESPONSES, {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        (RESPONSES, {"input": "Hi", "store": "yes"}, "store"), (RESPONSES, {"input": "", "messages": 1}, "messages"),
        (RESPONSES, {"input": [{"role": "user", "content": 1}]}, "input[0].content"),
        (TEXT, {"prompt": "Hi", "store": True}, "store"), (TEXT, {"prompt": ["a", "b"]}, "prompt"),
        (VECTORS, {"input": ["a", ""]}, "input[1]"), (VECTORS, {"input": "a", "dimensions": 0}, "dimensions"),
        (VECTORS, {"input": "a", "stream": True}, "stream"), (VECTORS, {"input": "a", "n": 1}, "n"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_an_endpoint_does_not_take_of_a_line_is_named(url: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(BrokenLine) as broken:
        read_line(asking(url, **body), url)
    assert broken.value.param == f"body.{param}"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_line_asks_the_endpoint_of_its_batch(endpoint: str) -> None:
    for url in {*ENDPOINTS, "/v1/messages"} - {endpoint}:
        with pytest.raises(BrokenLine) as broken:
            read_line(asking(url), endpoint)
        assert (broken.value.code, broken.value.param) == ("invalid_url", "url")
        assert endpoint in broken.value.message


@pytest.mark.parametrize("vectors_as", [None, "float"])
def test_vectors_are_told_as_they_were_asked_for(vectors_as: Any) -> None:
    vector = as_text([0.5, -1.25])
    body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": vector}]}
    response = BatchResponse(status_code=200, request_id=ID, body=body)
    result = BatchResult(scope=SCOPE, id=ID, custom_id="packed", response=response, vectors_as=vectors_as)
    read = BatchResult.model_validate_json(result.encode())
    [item] = json.loads(told_of(read, "a").text)["response"]["body"]["data"]
    assert item["embedding"] == ([0.5, -1.25] if vectors_as else vector)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}', b'{"a": NaN}', b'"\\ud800"'])
def test_what_is_no_object_of_json_is_told_as_such(raw: bytes) -> None:
    with pytest.raises(BrokenLine) as broken:
        read_line(raw, CHAT)
    assert broken.value.code == "invalid_json_line"
    assert custom_id_of(raw) == ""


@given(
    st.builds(
        Place, st.just("batch_1"), st.integers(0, 10**6), st.text(min_size=1, max_size=MAX_CUSTOM_ID_CHARS)
    )
)  # fmt: skip
def test_a_place_is_found_again(place: Place) -> None:
    assert unpacked(packed(place)) == place


@given(st.text(max_size=30))
def test_what_is_no_place_is_none(text: str) -> None:
    found = unpacked(text)
    assert found is None or packed(found).rpartition("/")[2] == text.rpartition("/")[2]


def test_validation_counts_and_names_what_is_broken() -> None:
    lines = [*map(line, custom_ids(10)), "{", line("line-3"), line("late")]
    found = Validation(CHAT, 100, lambda _: ID)
    errors = found.add(cut("\n".join(lines).encode(), []))
    assert (found.total, found.failed, found.problems()) == (13, 2, [])
    assert found.ended == bytes([0, 0b1100])
    told = [json.loads(each) for each in errors.splitlines()]
    assert [(each["custom_id"], each["error"]["code"]) for each in told] == [
        ("", "invalid_json_line"),
        ("line-3", "duplicate_custom_id"),
    ]


def test_errors_are_told_as_a_request_of_its_own_would_be() -> None:
    error = BatchError(code="context_length_exceeded", message="Too long.", param="messages")
    result = BatchResult(scope=SCOPE, id=ID, custom_id="packed", error=error)
    told = json.loads(told_of(result, "a").text)
    assert told["response"]["status_code"] == 400
    assert told["response"]["body"]["error"]["param"] == "body.messages"
    own = BatchError(code="result_too_large", message="Too large.")
    assert json.loads(told_of(result.model_copy(update={"error": own}), "a").text)["response"]["status_code"] == 500
    halted = BatchError(code="safety_halted", message="Halted.")
    told = json.loads(told_of(result.model_copy(update={"error": halted}), "a").text)
    assert (told["response"]["status_code"], told["response"]["body"]["error"]["code"]) == (502, "safety_halted")
    swept = json.loads(not_run(ID, "a", "batch_expired").text)
    assert (swept["id"], swept["response"], swept["error"]["code"]) == (
        f"batch_req_{'a' * 32}",
        None,
        "batch_expired",
    )
