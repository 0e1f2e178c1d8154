"""Legacy Completions are a pure translation too: golden shapes on the way out, one prompt on the way in."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openai.types import Completion

from schemas.endings import EndingCode
from schemas.request import MAX_PROMPT_TOKENS, MAX_TEXT_CHARS
from schemas.responses import TokenUsage
from streams.dialects.fields import NotOffered
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import parse_chat_request
from streams.dialects.openai_parameters import HINTS, NOT_OFFERED_WITH_A_PROMPT
from streams.dialects.openai_text_completion import TextChunkWriter, parse_completion_request, text_completion_object

ONCE = {"model": "tiny", "prompt": "Once"}
USAGE = TokenUsage(prompt_tokens=5, cached_tokens=2, completion_tokens=7)
USAGE_OBJECT = {
    "prompt_tokens": 5,
    "completion_tokens": 7,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


def test_the_smallest_body_gets_the_documented_defaults() -> None:
    asked = parse_completion_request(ONCE)
    assert (asked.endpoint, asked.model, asked.prompt, asked.messages) == ("completions", "tiny", "Once", [])
    assert (asked.stream, asked.include_usage, asked.service_tier, asked.on_disconnect) == (
        False, False, "auto", "cancel",
    )  # fmt: skip
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.max_tokens) == (1.0, 1.0, 16)


def test_what_begins_alike_may_be_named() -> None:
    assert parse_completion_request({**ONCE, "prompt_cache_key": "a document"}).cache_key == "a document"


@pytest.mark.parametrize(
    ("prompt", "understood"),
    [("Once", "Once"), (["Once"], "Once"), ([1, 0, 7], [1, 0, 7]), ([[1, 0, 7]], [1, 0, 7]), (" \n", " \n")],
    ids=str,
)
def test_a_prompt_is_a_text_or_tokens_also_where_it_is_alone_in_a_list(prompt: object, understood: object) -> None:
    assert parse_completion_request({**ONCE, "prompt": prompt}).prompt == understood


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], [[1], "b"], ["", ""]], ids=str)
def test_several_prompts_are_refused_by_name_and_told_why(prompt: object) -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, "prompt": prompt})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, "prompt")
    assert refused.value.message == "prompt: several prompts are not supported: a request has one."


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"), ([""], "prompt[0]"), ([], "prompt"), ([[]], "prompt[0]"), (None, "prompt"), (5, "prompt"),
        ({"text": "Once"}, "prompt"), (True, "prompt"), ([None], "prompt[0]"), ([1, "a"], "prompt[1]"),
        ([1, [2]], "prompt[1]"), ([1.5], "prompt[0]"), ([True], "prompt[0]"), ([-1], "prompt[0]"),
        ([2**31 + 1], "prompt[0]"), ([["a"]], "prompt[0][0]"), ([[1, -1]], "prompt[0][1]"),
        ("x" * (MAX_TEXT_CHARS + 1), "prompt"), ([1] * (MAX_PROMPT_TOKENS + 1), "prompt"),
        ([[1] * (MAX_PROMPT_TOKENS + 1)], "prompt[0]"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_what_is_no_prompt_is_refused_with_the_path_of_the_field(prompt: object, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, "prompt": prompt})
    assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)
    assert refused.value.message.startswith(f"{param}: ")


def test_what_is_neither_text_nor_tokens_is_told_both_forms() -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, "prompt": {"text": "Once"}})
    assert refused.value.message == "prompt: Input should be a string or a list of token ids."


@pytest.mark.parametrize("missing", ["prompt", "model"])
def test_what_must_be_there_is_named(missing: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({name: value for name, value in ONCE.items() if name != missing})
    assert refused.value.message == f"{missing}: Field required."


@pytest.mark.parametrize(
    "given",
    [
        {
            "max_tokens": 64, "min_tokens": 2, "temperature": 0, "top_p": 0.5, "top_k": 40, "min_p": 0.1,
            "frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1, "seed": 7, "stop": "END",
            "stop_token_ids": [3, 4], "ignore_eos": True, "logit_bias": {"12": -100}, "bad_words": ["dragon"],
            "allowed_token_ids": [1, 2], "include_stop_str_in_output": True, "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "repetition_detection": {"min_pattern_size": 2, "max_pattern_size": 8, "min_count": 3},
        },
        {"max_completion_tokens": 5, "top_k": -1, "user": "ann", "service_tier": "batch", "on_disconnect": "continue"},
        {
            "max_tokens": 5, "max_completion_tokens": 5, "safety_identifier": "ann", "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        {"max_tokens": 5, "n": 3, "best_of": 3},
        {"max_tokens": 5, "response_format": {"type": "json_object"}},
        {"max_tokens": 5, "structured_outputs": {"choice": ["yes", "no"]}},
    ],
    ids=["sampling", "who asks", "stream", "several", "json", "choice"],
)  # fmt: skip
def test_what_chats_honour_is_honoured_alike(given: dict[str, Any]) -> None:
    def common(body: dict[str, Any]) -> dict[str, Any]:
        parse = parse_completion_request if "prompt" in body else parse_chat_request
        return parse({**body, **given}).model_dump(exclude={"messages", "turn", "prompt", "endpoint"})

    assert common(ONCE) == common({"model": "tiny", "messages": [{"role": "user", "content": "Once"}]})


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"min_tokens": 17}, "min_tokens"), ({"stop": [""]}, "stop[0]"), ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"), ({"temperature": 3}, "temperature"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_refused_with_the_path_of_the_field(extra: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, **extra})
    assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)


def _neutral_bodies() -> Iterator[Mapping[str, object]]:
    for name, row in NOT_OFFERED_WITH_A_PROMPT.items():
        yield {name: None}
        yield from ({name: value} for value in row.asks_for_nothing)
    yield from ({name: kind()} for name, kind in HINTS.items())


@pytest.mark.parametrize("neutral", list(_neutral_bodies()), ids=str)
def test_what_asks_for_nothing_is_accepted(neutral: Mapping[str, object]) -> None:
    assert parse_completion_request({**ONCE, **neutral}) == parse_completion_request(ONCE)


@pytest.mark.parametrize(("name", "row"), NOT_OFFERED_WITH_A_PROMPT.items())
def test_what_asks_for_something_that_is_not_offered_is_told_why(name: str, row: NotOffered) -> None:
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, name: "something else"})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, name)
    assert refused.value.message == f"{name} is not supported: {row.why}."


@pytest.mark.parametrize(
    "extra",
    [
        {"suffix": "the end"}, {"echo": True}, {"best_of": 2}, {"use_beam_search": True}, {"prompt_logprobs": 1},
        {"top_logprobs": 1}, {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tool_choice": "required"},
        {"add_special_tokens": False}, {"messages": [{"role": "user", "content": "Hi"}]}, {"unheard_of": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(extra: dict[str, object]) -> None:
    [param] = extra
    with pytest.raises(RequestError) as refused:
        parse_completion_request({**ONCE, **extra})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, param)


@pytest.mark.parametrize(
    "body",
    [
        {
            "model": "m", "prompt": "1 0 m0 Hard", "repetition_penalty": 1.0, "max_tokens": 32, "logprobs": None,
            "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        },
        {
            "model": "m", "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_tokens": 32, "stop": None, "ignore_eos": True, "prompt": "1 0 m0 Hard",
        },
    ],
    ids=["vllm bench serve", "guidellm"],
)  # fmt: skip
def test_what_benchmarks_send_is_taken_as_they_mean_it(body: dict[str, Any]) -> None:
    asked = parse_completion_request(body)
    assert (asked.prompt, asked.sampling.max_tokens, asked.sampling.ignore_eos) == ("1 0 m0 Hard", 32, True)
    assert (asked.stream, asked.include_usage) == (True, True)


def test_a_whole_answer_has_openais_shape() -> None:
    completion = text_completion_object(
        response_id="resp_local-0_ab", created_s=1, model="tiny", choices=[(" upon", None)], code=EndingCode.COMPLETED,
        finish_reasons=["length"], usage=USAGE,
    )  # fmt: skip
    assert completion == {
        "id": "resp_local-0_ab",
        "object": "text_completion",
        "created": 1,
        "model": "tiny",
        "choices": [{"index": 0, "text": " upon", "logprobs": None, "finish_reason": "length"}],
        "usage": USAGE_OBJECT,
    }
    Completion.model_validate(completion, strict=True)


def test_a_halted_answer_says_content_filter() -> None:
    halted = text_completion_object(
        response_id="r", created_s=1, model="m", choices=[("Once", None)], code=EndingCode.SAFETY_HALTED,
        finish_reasons=[], usage=USAGE,
    )  # fmt: skip
    assert Completion.model_validate(halted, strict=True).choices[0].finish_reason == "content_filter"


def test_chunks_have_openais_shape() -> None:
    """Its own type knows no chunk without a finish reason; its API, and everybody's, has null there until the last."""
    writer = TextChunkWriter("resp_local-0_ab", 1_700_000_000, "tiny", include_usage=True)
    text, finish, usage = writer.text('a "quote"\n\u2028', 7), writer.finish("length", 7), writer.usage(USAGE, 8)
    assert json.loads(text) == {
        "id": "resp_local-0_ab",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "text": 'a "quote"\n\u2028', "logprobs": None, "finish_reason": None}],
        "usage": None,
        "sequence_number": 7,
    }
    stopped = text.replace(b'"finish_reason":null', b'"finish_reason":"stop"')
    for chunk in (stopped, finish, usage):
        Completion.model_validate_json(chunk, strict=True)
    assert json.loads(finish)["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert (json.loads(usage)["choices"], json.loads(usage)["usage"]) == ([], USAGE_OBJECT)
    assert b"usage" not in TextChunkWriter("r", 1, "m", include_usage=False).text("x", 1)
    so_far = TextChunkWriter("r", 1, "m", include_usage=True, prompt_tokens=5).text("x", 7)
    assert json.loads(so_far)["usage"]["total_tokens"] == 12
