"""A whole result says what the endpoint that was asked would have answered over HTTP, byte for byte."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.responses import Response

from agents.post_safety.bodies import MOST_NUMBERS
from schemas.batch import BatchResult
from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.request import MAX_EMBEDDED_NUMBERS, MAX_INPUTS, ReplyTo
from schemas.responses import Release
from schemas.vectors import as_text, numbers_of
from streams.dialects.answer_json import json_bytes
from streams.dialects.openai_embeddings import echo_of
from streams.dialects.responses.body import parse_responses_request
from streams.gateway.fan_out.spans import Span
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.completions import COMPLETIONS
from streams.gateway.http.dialects.embeddings import EMBEDDINGS
from streams.gateway.http.dialects.port import Answer, Dialect
from streams.gateway.http.dialects.responses import RESPONSES
from streams.log.port import MAX_RECORD_BYTES
from tests.unit.agents.post_safety.story import START_MS, TOPICS, Member, Row, World, ending, fence, frame, opened

DIALECTS: Mapping[str, Dialect[Any]] = {
    "chat.completions": CHAT_COMPLETIONS, "completions": COMPLETIONS, "responses": RESPONSES
}  # fmt: skip
BODIES: Mapping[str, dict[str, Any]] = {
    "chat.completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"prompt": "Hi"},
    "responses": {
        "input": "Hi", "instructions": "Be brief.", "metadata": {"a": "ü"}, "temperature": 0.5, "store": False,
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
    },
    "embeddings": {"input": ["a", "b", "c"]},
}  # fmt: skip
VECTORS = [as_text([0.6, 0.8]), as_text([1.0, 0.0]), as_text([-0.28, 0.96])]


def result_and_spans(
    *rows: Row, endpoint: str, echo: str, choices: int = 1, policy: str = "", reply_to: ReplyTo | None = None
) -> tuple[World, Any]:
    """A job's, so that the gateway is told the same on `responses`; and what that is told."""
    world = World()
    about = opened("r1", custom_id="job-1", endpoint=endpoint, choices=choices)
    about = about.model_copy(update={"reply_to": reply_to or about.reply_to})
    policy = policy and (world.keep_policy(["secret sauce"]) if policy == "kept" else policy)
    world.write(about.model_copy(update={"echo": echo, "output_policy": policy}), fence("r1"), *map(frame, rows))
    Member(world).run()
    spans = [
        Span(first, first + len(ends) - 1, choice, kind, text, ends, 0, call, likely)
        for release in world.responses()
        if isinstance(release, Release)
        for choice, first, kind, text, ends, call, likely in zip(
            release.choice, release.first_sequence, release.kind, release.text, release.text_ends, release.calls,
            release.all_logprobs, strict=True,
        )
    ]  # fmt: skip
    return world, spans


def whole(world: World, spans: list[Span], dialect: Dialect[Any], asked: Any) -> bytes:
    terminal = world.answer("r1").terminal
    return json_bytes(dialect.whole(asked, Answer("r1", START_MS // 1_000, "tiny", spans, terminal)))


def said(endpoint: str, choices: int) -> st.SearchStrategy[list[Row]]:
    """Rows of any choices in any order, and then the end of each."""
    kinds: list[Kind] = ["content"] if endpoint == "completions" else ["content", "reasoning", "tool_arguments"]
    words = st.lists(st.sampled_from(["", "a", " b", "é "]), min_size=1, max_size=3)
    choice = st.integers(0, choices - 1)
    return st.lists(st.tuples(st.sampled_from(kinds), words, choice), max_size=8).map(numbered)


def numbered(drawn: list[tuple[Kind, list[str], int]]) -> list[Row]:
    rows, number = [], 1
    for kind, words, choice in drawn:
        rows.append(Row("r1", number, words, choice=choice, kind=kind))
        number += len(words)
    for choice in (0, 1):
        rows.append(Row("r1", number, [], choice=choice, finish="length" if len(drawn) % 2 else "stop"))
    return rows


@pytest.mark.parametrize("endpoint", [*DIALECTS])
@settings(max_examples=25)
@given(data=st.data())
def test_what_was_said_is_told_as_over_http(endpoint: str, data: st.DataObject) -> None:
    choices = 1 if endpoint == "responses" else 2
    rows = [row for row in data.draw(said(endpoint, choices)) if row.choice < choices]
    dialect = DIALECTS[endpoint]
    asked = dialect.parse({"model": "tiny", **BODIES[endpoint]})
    world, spans = result_and_spans(*rows, endpoint=endpoint, echo=asked.echo, choices=choices)
    response = world.answer("r1").result.response
    assert response is not None
    assert json_bytes(response.body) == whole(world, spans, dialect, asked)


def test_a_response_is_told_item_by_item_with_what_it_repeats() -> None:
    rows = [
        Row("r1", 1, ["Hm"], kind="reasoning"), Row("r1", 2, ["So"]), Row("r1", 3, ["Wait"], kind="reasoning"),
        Row("r1", 4, ["Look"]), Row("r1", 5, ["look"], kind="tool_name"),
        Row("r1", 6, ["{}"], kind="tool_arguments", finish="stop"),
    ]  # fmt: skip
    asked = parse_responses_request({"model": "tiny", **BODIES["responses"]})
    world, _ = result_and_spans(*rows, endpoint="responses", echo=asked.echo)
    told = world.answer("r1").result.response
    assert told is not None
    response = Response.model_validate(told.body, strict=True)
    assert [item.type for item in response.output] == [
        "reasoning", "message", "reasoning", "message", "function_call"
    ]  # fmt: skip
    assert (response.output_text, response.status, response.instructions) == ("SoLook", "completed", "Be brief.")
    assert (response.metadata, response.temperature, response.store) == ({"a": "ü"}, 0.5, False)  # type: ignore[attr-defined]


def test_a_response_that_is_halted_is_incomplete() -> None:
    world, spans = result_and_spans(
        Row("r1", 1, ["The", " secret", " sauce"], finish="stop"), endpoint="responses", echo="", policy="kept"
    )
    told = world.answer("r1").result.response
    assert told is not None
    assert (told.body["status"], told.body["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert told.body["output"] == RESPONSES.whole(
        None, Answer("r1", 1, "tiny", spans, world.answer("r1").terminal)  # type: ignore[arg-type]
    )["output"]  # fmt: skip


def test_probabilities_of_a_raw_prompt_stand_where_their_tokens_do() -> None:
    rows = [
        Row("r1", 1, ["Hi", " you"], logprobs=[[("Hi", -0.1), ("Ho", -2.0)], [(" you", -0.2)]]),
        Row("r1", 3, ["ü", "!"], choice=1, logprobs=[[("\xc3\xbc", -0.3)], [("!", -0.4)]]),
        Row("r1", 5, [" there"], finish="stop", logprobs=[[(" there", -0.5)]]),
        Row("r1", 6, [], choice=1, finish="stop"),
    ]
    asked = COMPLETIONS.parse({"model": "tiny", "prompt": "x", "n": 2, "logprobs": 1})
    world, spans = result_and_spans(*rows, endpoint="completions", echo="", choices=2)
    told = world.answer("r1").result.response
    assert told is not None
    assert json_bytes(told.body) == whole(world, spans, COMPLETIONS, asked)
    first, second = Completion.model_validate(told.body, strict=True).choices
    assert first.logprobs is not None
    assert (first.text, first.logprobs.text_offset) == ("Hi you there", [0, 2, 6])
    assert second.logprobs is not None
    assert (second.text, second.logprobs.tokens, second.logprobs.text_offset) == ("ü!", ["ü", "!"], [0, 1])


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
@pytest.mark.parametrize("rows", [1, 3], ids=["in one row", "in a row each"])
def test_vectors_come_as_they_were_asked_for(encoding_format: Any, rows: int) -> None:
    each = len(VECTORS) // rows
    told = [
        Row("r1", at + 1, VECTORS[at : at + each], kind="embedding", finish="stop" if at + each == 3 else "")
        for at in range(0, 3, each)
    ]
    world, spans = result_and_spans(*told, endpoint="embeddings", echo=echo_of(encoding_format))
    result = world.answer("r1").result
    assert result.response is not None
    assert result.vectors_as is None
    body = result.response.body
    dialect = EMBEDDINGS[encoding_format]
    asked = dialect.parse({"model": "tiny", **BODIES["embeddings"], "encoding_format": encoding_format})
    assert json_bytes(body) == whole(world, spans, dialect, asked)
    if encoding_format == "float":
        answer = CreateEmbeddingResponse.model_validate(json.loads(json_bytes(body)), strict=True)
        assert [item.embedding for item in answer.data][1] == [1.0, 0.0]


def test_a_gateway_is_told_the_vectors_of_its_lines_as_base64_and_how_they_were_asked_for() -> None:
    reply = ReplyTo(partition=0, results_topic=TOPICS.batch_results.name, custom_id="batch_1/7/mine", is_untold=True)
    formats: dict[Any, str | None] = {"float": "float", "base64": None}
    for encoding_format, numbers in formats.items():
        world, _ = result_and_spans(
            Row("r1", 1, VECTORS, kind="embedding", finish="stop"), endpoint="embeddings",
            echo=echo_of(encoding_format), reply_to=reply,
        )  # fmt: skip
        [record] = world.log.records(TOPICS.batch_results.name)
        result = BatchResult.model_validate_json(record.value or b"")
        assert result.response is not None
        assert (result.vectors_as, [each["embedding"] for each in result.response.body["data"]]) == (numbers, VECTORS)


@pytest.mark.parametrize("more", [0, 1])
def test_so_many_numbers_fit_a_record_whatever_they_are_and_more_are_base64(more: int) -> None:
    longest = as_text([-1.17549449095e-38] * 1_000)
    vectors = [longest] * (MOST_NUMBERS // 1_000 + more)
    world, _ = result_and_spans(Row("r1", 1, vectors, kind="embedding", finish="stop"), endpoint="embeddings", echo="")
    answer = world.answer("r1")
    assert answer.result.vectors_as == ("float" if more else None)
    assert answer.result.response is not None
    told = answer.result.response.body["data"][0]["embedding"]
    assert told == (longest if more else numbers_of(longest))
    [line] = answer.results
    assert len(line) < MAX_RECORD_BYTES * 3 // 4


def test_the_most_vectors_that_may_be_asked_for_fit_a_record() -> None:
    vectors = [as_text([0.0625] * (MAX_EMBEDDED_NUMBERS // MAX_INPUTS))] * MAX_INPUTS
    world, _ = result_and_spans(Row("r1", 1, vectors, kind="embedding", finish="stop"), endpoint="embeddings", echo="")
    [line] = world.answer("r1").results
    assert b"result_too_large" not in line
    assert len(line) < MAX_RECORD_BYTES * 3 // 4


def test_vectors_that_were_halted_are_an_error() -> None:
    world, _ = result_and_spans(
        Row("r1", 1, VECTORS, kind="embedding", finish="stop"), endpoint="embeddings", echo="", policy="nobody's"
    )
    result = world.answer("r1").result
    assert result.response is None
    assert result.error is not None
    assert result.error.code == "safety_halted"


@pytest.mark.parametrize(
    ("endpoint", "param"), [("responses", "max_output_tokens"), ("chat.completions", "max_tokens")]
)
def test_a_line_that_admission_refused_is_told_in_the_words_of_its_endpoint(endpoint: str, param: str) -> None:

    world = World()
    reply = ReplyTo(partition=0, results_topic=TOPICS.batch_results.name, custom_id="batch_1/7/mine", is_untold=True)
    refused = ending(
        "r1", EndingCode.INVALID_REQUEST, by="admission", param="max_tokens",
        message="max_tokens is above the limit of 9.", endpoint=endpoint,
    )  # fmt: skip
    world.write(refused.model_copy(update={"reply_to": reply}))
    Member(world).run()
    [record] = world.log.records(TOPICS.batch_results.name)
    error = BatchResult.model_validate_json(record.value or b"").error
    assert error is not None
    assert (error.param, error.message) == (param, f"{param} is above the limit of 9.")


@pytest.mark.parametrize(("endpoint", "param"), [("responses", "max_output_tokens"), ("completions", "max_tokens")])
def test_what_a_job_is_refused_for_late_is_named_as_its_endpoint_has_it(endpoint: str, param: str) -> None:
    world = World()
    world.write(
        ending(
            "r1", EndingCode.INVALID_REQUEST, by="admission", param="max_tokens", endpoint=endpoint, custom_id="job-1",
            message="max_tokens is above the limit of 9.",
        )
    )  # fmt: skip
    Member(world).run()
    error = world.answer("r1").result.error
    assert error is not None
    assert (error.param, error.message) == (param, f"{param} is above the limit of 9.")


def test_what_is_found_in_a_jobs_body_is_named_as_it_stands_there() -> None:
    world = World()
    world.write(ending("r1", EndingCode.INVALID_REQUEST, by="admission", param="logprobs", custom_id="job-1"))
    Member(world).run()
    error = world.answer("r1").result.error
    assert error is not None
    assert error.param == "logprobs"
