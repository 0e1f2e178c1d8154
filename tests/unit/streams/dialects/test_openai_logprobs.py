"""How likely tokens were: who may ask for it how, and the shapes that OpenAI's package knows."""

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from schemas.endings import EndingCode
from schemas.logprobs import MIN_LOGPROB, TokenLogprobs
from schemas.responses import TokenUsage
from streams.dialects.neutral import RequestError
from streams.dialects.openai_chat import ChunkWriter, parse_chat_request
from streams.dialects.openai_completion import Ended, completion_object
from streams.dialects.openai_logprobs import text_logprobs, written
from streams.dialects.openai_text_completion import TextChunkWriter, parse_completion_request, text_completion_object
from streams.dialects.said import Said

HELLO: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
ONCE: dict[str, Any] = {"model": "tiny", "prompt": "Once"}
DRAGON = "🐉".encode()
TOKENS: list[TokenLogprobs] = [
    [("Hé".encode().decode("latin-1"), -0.25), ("Hé".encode().decode("latin-1"), -0.25), ("A", -1.5)],
    [(DRAGON[:3].decode("latin-1"), -2.0), ("A", -0.5), ("B", MIN_LOGPROB)],
    [(DRAGON[3:].decode("latin-1"), 0.0), (DRAGON[3:].decode("latin-1"), 0.0), ("C", -3.0)],
]
TEXT, TEXT_ENDS = "Hé🐉", [2, 2, 3]
ENDED: Ended = {
    "response_id": "resp_x", "created_s": 1, "model": "tiny", "code": EndingCode.COMPLETED, "finish_reasons": ["stop"],
    "usage": TokenUsage(prompt_tokens=5, completion_tokens=3),
}  # fmt: skip
CONTENT = [
    {
        "token": "Hé", "logprob": -0.25, "bytes": [72, 195, 169],
        "top_logprobs": [
            {"token": "Hé", "logprob": -0.25, "bytes": [72, 195, 169]},
            {"token": "A", "logprob": -1.5, "bytes": [65]},
        ],
    },
    {
        "token": "bytes:\\xf0\\x9f\\x90", "logprob": -2.0, "bytes": [240, 159, 144],
        "top_logprobs": [
            {"token": "A", "logprob": -0.5, "bytes": [65]},
            {"token": "B", "logprob": -9999.0, "bytes": [66]},
        ],
    },
    {
        "token": "bytes:\\x89", "logprob": 0.0, "bytes": [137],
        "top_logprobs": [
            {"token": "bytes:\\x89", "logprob": 0.0, "bytes": [137]},
            {"token": "C", "logprob": -3.0, "bytes": [67]},
        ],
    },
]  # fmt: skip
LEGACY = {
    "tokens": ["Hé", "bytes:\\xf0\\x9f\\x90", "bytes:\\x89"],
    "token_logprobs": [-0.25, -2.0, 0.0],
    "top_logprobs": [
        {"Hé": -0.25, "A": -1.5},
        {"A": -0.5, "B": -9999.0, "bytes:\\xf0\\x9f\\x90": -2.0},
        {"bytes:\\x89": 0.0, "C": -3.0},
    ],
    "text_offset": [0, 2, 2],
}


@pytest.mark.parametrize(
    ("extra", "asked"),
    [
        ({}, None), ({"logprobs": False}, None), ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": None, "top_logprobs": None}, None), ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0), ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
    ids=str,
)  # fmt: skip
def test_a_chat_asks_for_them_and_says_how_many(extra: dict[str, Any], asked: int | None) -> None:
    assert parse_chat_request({**HELLO, **extra}).sampling.logprobs == asked


@pytest.mark.parametrize(("logprobs", "asked"), [(None, None), (0, 0), (1, 1), (5, 5)])
def test_a_legacy_completion_asks_by_one_number(logprobs: int | None, asked: int | None) -> None:
    assert parse_completion_request({**ONCE, "logprobs": logprobs}).sampling.logprobs == asked


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**HELLO, "top_logprobs": 3}, "top_logprobs"),
        ({**HELLO, "logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({**HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({**HELLO, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({**HELLO, "logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({**HELLO, "logprobs": 5}, "logprobs"), ({**HELLO, "logprobs": "yes"}, "logprobs"),
        ({**ONCE, "logprobs": 6}, "logprobs"), ({**ONCE, "logprobs": -1}, "logprobs"),
        ({**ONCE, "logprobs": True}, "logprobs"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_told_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        (parse_completion_request if "prompt" in body else parse_chat_request)(body)
    assert (refused.value.code, refused.value.param) == (EndingCode.INVALID_REQUEST, param)
    assert refused.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b" the", " the"), (b"", ""), ("é".encode(), "é"), (b"\xc3", "bytes:\\xc3"), (b"a\xff", "bytes:\\x61\\xff")],
)
def test_a_token_that_is_no_text_is_written_as_its_bytes(raw: bytes, text: str) -> None:
    assert written(raw.decode("latin-1")) == text


def is_openais(told: object) -> bool:
    """Whether the package knows every field of it, however deep."""
    if isinstance(told, list):
        return all(map(is_openais, told))
    return not isinstance(told, BaseModel) or (
        not told.model_extra and all(is_openais(getattr(told, name)) for name in type(told).model_fields)
    )


def test_a_whole_chat_has_openais_shape() -> None:
    whole = completion_object(choices=[Said(TEXT, logprobs=TOKENS)], **ENDED)
    assert whole["choices"][0]["logprobs"] == {"content": CONTENT, "refusal": None}
    [choice] = ChatCompletion.model_validate(whole, strict=True).choices
    assert is_openais(choice)
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    told = b"".join(bytes(each.bytes or ()) for each in choice.logprobs.content)
    assert told.decode() == TEXT, "the bytes are exact"


def test_a_chunk_of_a_chat_has_openais_shape() -> None:
    chunk = ChunkWriter("r", 1, "m", include_usage=False).text(TEXT, 3, logprobs=TOKENS)
    assert is_openais(ChatCompletionChunk.model_validate_json(chunk, strict=True).choices)
    assert json.loads(chunk)["choices"] == [
        {"index": 0, "delta": {"content": TEXT}, "logprobs": {"content": CONTENT, "refusal": None},
         "finish_reason": None}
    ]  # fmt: skip


def test_a_whole_legacy_completion_has_openais_shape() -> None:
    whole = text_completion_object(choices=[(TEXT, text_logprobs(TOKENS, TEXT_ENDS))], **ENDED)
    assert whole["choices"] == [{"index": 0, "text": TEXT, "logprobs": LEGACY, "finish_reason": "stop"}]
    assert is_openais(Completion.model_validate(whole, strict=True).choices)


def test_a_chunk_of_a_legacy_completion_says_where_in_its_choice_each_token_stands() -> None:
    chunk = TextChunkWriter("r", 1, "m", include_usage=False).text(TEXT, 3, 1, TOKENS, TEXT_ENDS, 40)
    ended = chunk.replace(b'"finish_reason":null', b'"finish_reason":"stop"')  # the package knows no other
    assert is_openais(Completion.model_validate_json(ended, strict=True).choices)
    [choice] = json.loads(chunk)["choices"]
    assert choice == {
        "index": 1, "text": TEXT, "logprobs": {**LEGACY, "text_offset": [40, 42, 42]}, "finish_reason": None,
    }  # fmt: skip


def test_of_tokens_that_look_alike_the_likeliest_is_told() -> None:
    told = text_logprobs([[("a", -3.0), ("b", -0.5), ("b", -0.75)]], [1])
    assert told is not None
    assert told["top_logprobs"] == [{"b": -0.5, "a": -3.0}]


def test_who_did_not_ask_is_told_nothing() -> None:
    assert json.loads(ChunkWriter("r", 1, "m", include_usage=False).text("x", 1))["choices"][0]["logprobs"] is None
    assert json.loads(TextChunkWriter("r", 1, "m", include_usage=False).text("x", 1))["choices"][0]["logprobs"] is None
    assert completion_object(choices=[Said("x")], **ENDED)["choices"][0]["logprobs"] is None
