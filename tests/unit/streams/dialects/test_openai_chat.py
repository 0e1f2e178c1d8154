"""The OpenAI dialect is a pure translation: golden shapes on the way out, nothing ignored on the way in."""

import json
import time
from collections.abc import Iterator, Mapping

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from schemas.endings import ENDINGS, EndingCode
from schemas.request import Sampling
from schemas.responses import TokenUsage
from streams.dialects import json_body
from streams.dialects.fields import NotOffered
from streams.dialects.json_body import parse_json_object
from streams.dialects.neutral import NeutralRequest, RequestError, end_user_pseudonym
from streams.dialects.openai_chat import ChunkWriter, parse_chat_request
from streams.dialects.openai_completion import completion_object
from streams.dialects.openai_error import ending_error
from streams.dialects.openai_parameters import (
    HINTS,
    HINTS_IN_MESSAGE,
    NOT_OFFERED,
    NOT_OFFERED_IN_MESSAGE,
)
from streams.dialects.said import Said

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
USAGE = TokenUsage(prompt_tokens=5, cached_tokens=2, completion_tokens=7)


def test_the_smallest_body_gets_the_documented_defaults() -> None:
    chat = parse_chat_request(HELLO)
    assert (chat.model, chat.messages[0].role, chat.messages[0].text) == ("tiny", "user", "Hello")
    assert (chat.stream, chat.include_usage, chat.service_tier, chat.on_disconnect) == (False, False, "auto", "cancel")
    assert (chat.sampling.temperature, chat.sampling.top_p, chat.sampling.max_tokens) == (1.0, 1.0, None)


def test_every_parameter_that_an_engine_can_honour_arrives() -> None:
    given = {
        "max_completion_tokens": 64, "min_tokens": 2, "temperature": 0, "top_p": 0.5, "top_k": 40, "min_p": 0.1,
        "frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1, "seed": 7, "stop": "END",
        "stop_token_ids": [3, 4], "ignore_eos": True, "logit_bias": {"12": -100, "13": 1.5},
        "bad_words": ["dragon"], "allowed_token_ids": [1, 2], "include_stop_str_in_output": True,
        "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "repetition_detection": {"min_pattern_size": 2, "max_pattern_size": 8, "min_count": 3},
    }  # fmt: skip
    of_their_own = {"structured_outputs", "logprobs"}
    assert {*given, "max_tokens"} - {"max_completion_tokens"} == set(Sampling.model_fields) - of_their_own
    chat = parse_chat_request({**HELLO, **given, "stream": True, "stream_options": {"include_usage": True}})
    assert (chat.include_usage, chat.stream) == (True, True)
    expected = {
        **given, "max_tokens": 64, "stop": ["END"], "logit_bias": {12: -100.0, 13: 1.5}, "temperature": 0.0,
    }  # fmt: skip
    del expected["max_completion_tokens"]
    assert chat.sampling.model_dump() == expected


@pytest.mark.parametrize(
    ("extra", "choices"),
    [({}, 1), ({"n": None}, 1), ({"n": 1, "best_of": 1}, 1), ({"n": 128}, 128), ({"n": 2, "best_of": 2}, 2)],
    ids=str,
)
def test_as_many_answers_are_asked_for_as_n_says(extra: dict[str, object], choices: int) -> None:
    assert parse_chat_request({**HELLO, **extra}).choices == choices


def test_what_begins_alike_may_be_named() -> None:
    assert parse_chat_request({**HELLO, "prompt_cache_key": "a document"}).cache_key == "a document"
    assert parse_chat_request({**HELLO, "prompt_cache_key": None}).cache_key == ""


def test_parts_are_kept_and_developer_is_a_system_role() -> None:
    chat = parse_chat_request(
        {
            "model": "tiny",
            "messages": [
                {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
                {"role": "user", "content": "Hi", "name": None},
                # What a client echoes back from an earlier answer.
                {"role": "assistant", "content": "Yes?", "refusal": None, "tool_calls": None, "annotations": []},
            ],
        }
    )
    assert [(m.role, m.text) for m in chat.messages] == [
        ("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"),
    ]  # fmt: skip


def _neutral_bodies() -> Iterator[Mapping[str, object]]:
    for name, row in NOT_OFFERED.items():
        yield {name: None}
        yield from ({name: value} for value in row.asks_for_nothing)
    yield dict.fromkeys(NOT_OFFERED) | dict.fromkeys(HINTS) | {"unheard_of": None}
    yield {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
    yield from ({"tool_choice": mode} for mode in ("none", "auto"))
    yield from ({name: kind()} for name, kind in HINTS.items())
    yield {"metadata": {}, "prompt_cache_key": "", "chat_template_kwargs": {}}
    yield {"stream_options": None}
    yield {"stream_options": {"include_obfuscation": False}}
    yield {"length_penalty": 1}
    yield from ({name: None} for name in ("temperature", "stop", "max_tokens", "user", "seed", "logit_bias"))
    yield {"top_k": -1}


@pytest.mark.parametrize("neutral", list(_neutral_bodies()), ids=str)
def test_what_asks_for_nothing_is_accepted(neutral: Mapping[str, object]) -> None:
    assert parse_chat_request({**HELLO, **neutral}) == parse_chat_request(HELLO)


@pytest.mark.parametrize(
    "echoed",
    [
        {name: value}
        for name, row in NOT_OFFERED_IN_MESSAGE.items()
        for value in (None, *row.asks_for_nothing)
    ]
    + [{name: kind()} for name, kind in HINTS_IN_MESSAGE.items()]
    + [{"reasoning_content": "The user greets me."}, {"timestamp": None}, {"name": None}],
    ids=str,
)  # fmt: skip
def test_what_clients_echo_of_an_answer_is_accepted_in_a_message(echoed: dict[str, object]) -> None:
    def asked(**more: object) -> NeutralRequest:
        messages = [{"role": "assistant", "content": [{"type": "text", "text": "Yes?"}], **more}]
        return parse_chat_request({**HELLO, "messages": messages})

    assert asked(**echoed) == asked()


def test_a_hint_to_a_cache_may_stand_on_a_part() -> None:
    part: dict[str, object] = {
        "type": "text",
        "text": "Hello",
        "cache_control": {"type": "ephemeral"},
        "annotations": [],
        "file": None,
    }
    chat = parse_chat_request({**HELLO, "messages": [{"role": "user", "content": [part]}]})
    assert chat == parse_chat_request(HELLO)


def test_who_speaks_and_for_whom_is_kept() -> None:
    chat = parse_chat_request(
        {**HELLO, "messages": [{"role": "user", "content": "Hi", "name": "ann"}], "safety_identifier": "user-7"}
    )
    assert (chat.messages[0].name, chat.user) == ("ann", "user-7")
    assert parse_chat_request({**HELLO, "user": "ann", "safety_identifier": "user-7"}).user == "ann"


def test_usage_may_be_asked_for_where_it_comes_anyway() -> None:
    chat = parse_chat_request({**HELLO, "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    assert (chat.stream, chat.include_usage, chat.usage_so_far) == (False, True, True)


@pytest.mark.parametrize(("name", "row"), NOT_OFFERED.items())
def test_what_asks_for_something_that_is_not_offered_is_told_why(name: str, row: NotOffered) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, name: "something else"})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, name)
    assert refused.value.message == f"{name} is not supported: {row.why}."


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"best_of": 2}, "best_of"), ({"n": 3, "best_of": 4}, "best_of"), ({"n": 3, "best_of": 1}, "best_of"),
        ({"n": 2, "use_beam_search": True}, "use_beam_search"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"logprobs": True, "logprob_token_ids": [1]}, "logprob_token_ids"), ({"flat_logprobs": True}, "flat_logprobs"),
        ({"thinking_token_budget": 4}, "thinking_token_budget"),
        ({"truncate_prompt_tokens": 4}, "truncate_prompt_tokens"), ({"stream_interval": 4}, "stream_interval"),
        ({"audio": {"voice": "x"}}, "audio"), ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{}]}, "functions"), ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"beam_width": 4}, "beam_width"), ({"unheard_of": 0}, "unheard_of"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "a": 1}]}]},
         "messages[0].content[0].a"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_offered_is_refused_by_name(extra: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, **extra})
    assert (refused.value.code, refused.value.param) == (EndingCode.UNSUPPORTED_PARAMETER, param)
    assert param in refused.value.message


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"model": ""}, "model"), ({"model": 3}, "model"), ({"model": None}, "model"), ({"model": "m" * 201}, "model"),
        ({"messages": []}, "messages"), ({"messages": "Hello"}, "messages"), ({"messages": ["Hello"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"n": 0}, "n"), ({"n": 129}, "n"), ({"n": 10**9}, "n"), ({"n": True}, "n"), ({"n": "2"}, "n"),
        ({"n": 2, "best_of": 129}, "best_of"), ({"best_of": 0}, "best_of"),
        ({"max_tokens": "5"}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"temperature": float("inf")}, "temperature"), ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"), ({"top_p": 0}, "top_p"), ({"seed": 2**63}, "seed"),
        ({"stop": ["x"] * 17}, "stop"), ({"stop": [""]}, "stop[0]"), ({"stop": 4}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"), ({"logit_bias": {"1": 101}}, "logit_bias[1]"),
        ({"logit_bias": [1]}, "logit_bias"), ({"stream": "yes"}, "stream"),
        ({"bad_words": [""]}, "bad_words[0]"), ({"bad_words": ["x"] * 65}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"), ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [1] * 1_025}, "allowed_token_ids"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"repetition_detection": {"max_pattern_size": 4}}, "repetition_detection.min_count"),
        ({"repetition_detection": {"max_pattern_size": 65, "min_count": 2}}, "repetition_detection.max_pattern_size"),
        ({"repetition_detection": {"max_pattern_size": "4", "min_count": 2}}, "repetition_detection.max_pattern_size"),
        (
            {"repetition_detection": {"min_pattern_size": 5, "max_pattern_size": 4, "min_count": 2}},
            "repetition_detection",
        ),
        ({"metadata": "x"}, "metadata"), ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"), ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {str(i): "\n" * 512 for i in range(16)}}, "metadata"),
        ({"prompt_cache_key": 4}, "prompt_cache_key"), ({"prompt_cache_key": "k" * 513}, "prompt_cache_key"),
        ({"messages": [{"role": "user", "content": "x", "name": "n" * 65}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": {}}]}, "messages[0].reasoning"),
        ({"stream_options": 3}, "stream_options"),
        ({"service_tier": "gold"}, "service_tier"), ({"on_disconnect": "maybe"}, "on_disconnect"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_the_path_of_the_field(extra: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, **extra})
    assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)


@pytest.mark.parametrize("content", [5, {"type": "text", "text": "x"}], ids=str)
def test_content_of_another_type_is_told_both_of_its_forms(content: object) -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, "messages": [{"role": "user", "content": content}]})
    assert refused.value.message == "messages[0].content: Input should be a string or a list of text parts."


def test_stop_of_another_type_is_told_both_of_its_forms() -> None:
    with pytest.raises(RequestError) as refused:
        parse_chat_request({**HELLO, "stop": 4})
    assert refused.value.message == "stop: Input should be a string or a list of strings."


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "expected an object"), (b'"x"', "an object"),
        (b'{"a": NaN}', "not valid JSON"), (b'{"a": Infinity}', "not valid JSON"), (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": "\xff"}', r"^The body is not valid UTF-8 \(byte offset 7\)\.$"),
        (b'{"\xc3\xa9": "\xed\xa0\x80"}' + b" " * 200_000, r"UTF-8 \(byte offset 8\)"),
        (b'{"a": "\\ud800"}', "not valid JSON"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"), (b'{"b": {"a": 1, "a": 2}}', "'a' occurs twice"),
        (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "nested too deeply"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not valid JSON"),
        (b'{"a": [' + b"{}," * 200_000 + b"0]}", "more than 200000 values"),
        (b'{"a": [' + b"[]," * 200_000 + b"0]}", "more than 200000 values"),
        (b'{"a": {' + b",".join(b'"%d":0' % n for n in range(2_049)) + b"}}", "more than 2048 keys"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_text_that_is_not_one_plain_json_object_is_refused(raw: bytes, why: str) -> None:
    with pytest.raises(RequestError, match=why) as refused:
        parse_json_object(raw)
    assert refused.value.code is EndingCode.INVALID_REQUEST


def test_a_text_that_nobody_closes_is_looked_through_once() -> None:
    began_s = time.thread_time()
    with pytest.raises(RequestError, match="more than 200000 values"):
        parse_json_object("[" * 200_001 + '"' + '\\"' * 1_000_000)
    assert time.thread_time() - began_s < 20, "from each of its quotes again it would take hours"


def test_brackets_in_a_text_are_no_objects() -> None:
    code = '}{"][\\' * 150_000
    assert parse_json_object(json.dumps({"a": code})) == {"a": code}


def test_looking_for_a_repeated_key_compares_keys_as_often_as_there_are_keys() -> None:
    comparisons = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    keys = 2_000
    names = [*range(keys), keys - 1]
    pairs: list[tuple[str, None]] = [(Name(f"k{number}"), None) for number in names]
    with pytest.raises(ValueError, match=f"'k{keys - 1}' occurs twice"):
        json_body._unique_pairs(pairs)
    assert comparisons <= keys


def test_json_integers_stay_exact() -> None:
    assert parse_json_object(b'{"seed": 9223372036854775807}') == {"seed": 2**63 - 1}


def test_pseudonyms_are_stable_and_differ_between_tenants_and_secrets() -> None:
    one = end_user_pseudonym(b"s1", "acme", "ann@example.com")
    assert one == end_user_pseudonym(b"s1", "acme", "ann@example.com")
    assert "ann" not in one
    others = {
        end_user_pseudonym(b"s2", "acme", "ann@example.com"),
        end_user_pseudonym(b"s1", "beta", "ann@example.com"),
    }
    assert len({one, *others}) == 3
    assert end_user_pseudonym(b"s1", "acme", None) == ""


def test_chunks_have_openais_shape() -> None:
    writer = ChunkWriter("resp_local-0_ab", 1_700_000_000, "tiny", include_usage=True)
    chunks = [writer.role(0), writer.text('a "quote"\n\u2028', 7), writer.finish("length", 7), writer.usage(USAGE, 8)]
    parsed = [ChatCompletionChunk.model_validate_json(chunk, strict=True) for chunk in chunks]
    assert {chunk.id for chunk in parsed} == {"resp_local-0_ab"}
    assert parsed[0].choices[0].delta.role == "assistant"
    assert parsed[1].choices[0].delta.content == 'a "quote"\n\u2028'
    assert parsed[2].choices[0].finish_reason == "length"
    assert parsed[3].choices == []
    assert parsed[3].usage is not None
    assert parsed[3].usage.total_tokens == 12
    assert json.loads(chunks[1]) == {
        "id": "resp_local-0_ab",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "tiny",
        "choices": [{"index": 0, "delta": {"content": 'a "quote"\n\u2028'}, "logprobs": None, "finish_reason": None}],
        "usage": None,
        "sequence_number": 7,
    }
    assert b"usage" not in ChunkWriter("r", 1, "m", include_usage=False).text("x", 1)


def test_a_completion_has_openais_shape() -> None:
    completion = completion_object(
        response_id="resp_local-0_ab", created_s=1, model="tiny", choices=[Said("Paris.")], code=EndingCode.COMPLETED,
        finish_reasons=["stop"], usage=USAGE,
    )  # fmt: skip
    assert completion == {
        "id": "resp_local-0_ab",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    ChatCompletion.model_validate(completion, strict=True)


def test_a_halted_answer_says_content_filter() -> None:
    halted = completion_object(
        response_id="r", created_s=1, model="m", choices=[Said("Once")], code=EndingCode.SAFETY_HALTED,
        finish_reasons=[], usage=USAGE,
    )  # fmt: skip
    assert halted["choices"][0]["finish_reason"] == "content_filter"


@pytest.mark.parametrize("code", [code for code in EndingCode if ENDINGS[code].is_error])
def test_every_failing_ending_becomes_an_error_object(code: EndingCode) -> None:
    error = ending_error(code, param="model")["error"]
    assert error == {
        "message": ENDINGS[code].message, "type": ENDINGS[code].error_type, "param": "model", "code": code.value,
    }  # fmt: skip
    assert error["message"]
