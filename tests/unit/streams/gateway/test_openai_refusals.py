"""What OpenAI's own package raises where a legacy completion or vectors are refused, and how fields are named that are
refused late.
"""

import asyncio
import json
from typing import Any

import openai
import pytest

from schemas.endings import EndingCode
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import HELLO, client, events_of, sdk
from tests.unit.streams.gateway.socket_clients import dial, hear_until_terminal, say


async def ask(stack: Stack, endpoint: str, **body: Any) -> None:
    async with sdk(stack) as api:
        if endpoint == "embeddings":
            await api.embeddings.create(**{"model": "small", "input": "x", **body})
        else:
            await api.completions.create(**{"model": "small", "prompt": "Once", **body})


@pytest.mark.parametrize(
    ("endpoint", "body", "code", "param"),
    [
        ("completions", {"prompt": ["Once", "Twice"]}, "unsupported_parameter", "prompt"),
        ("completions", {"prompt": ""}, "invalid_request", "prompt"),
        ("completions", {"prompt": []}, "invalid_request", "prompt"),
        ("completions", {"logprobs": 6}, "invalid_request", "logprobs"),
        ("completions", {"n": 2, "best_of": 3}, "unsupported_parameter", "best_of"),
        ("embeddings", {"input": []}, "invalid_request", "input"),
        ("embeddings", {"input": ["x", ""]}, "invalid_request", "input[1]"),
        ("embeddings", {"dimensions": 0}, "invalid_request", "dimensions"),
        ("embeddings", {"extra_body": {"stream": True}}, "unsupported_parameter", "stream"),
    ],
    ids=str,
)
async def test_what_is_refused_is_a_400_that_names_the_field(
    stack: Stack, endpoint: str, body: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await ask(stack, endpoint, **body)
    assert (error.value.code, error.value.param) == (code, param)
    assert stack.pipeline.requests() == []


@pytest.mark.parametrize(("endpoint", "body"), [("completions", {"stream": True}), ("embeddings", {})])
async def test_a_refusal_of_admission_is_a_real_status_with_its_limits(
    stack: Stack, endpoint: str, body: dict[str, Any]
) -> None:
    limits = {"tokens_remaining": 0}
    refusing = asyncio.ensure_future(
        stack.pipeline.ends(EndingCode.RATE_LIMITED_TOKENS, retry_after_ms=1_500, limits=limits)
    )
    with pytest.raises(openai.RateLimitError) as error:
        await ask(stack, endpoint, **body)
    await refusing
    assert error.value.response.headers["retry-after-ms"] == "1500"
    assert error.value.response.headers["x-ratelimit-remaining-tokens"] == "0"


ONCE = {"model": "small", "prompt": "Once"}
JSON = {"type": "json_object"}


@pytest.mark.parametrize(
    ("path", "body", "param", "own"),
    [
        ("chat/completions", {**HELLO, "response_format": JSON}, "structured_outputs", "response_format"),
        ("chat/completions", {**HELLO, "structured_outputs": {"regex": "a"}}, "structured_outputs", None),
        (
            "chat/completions",
            {**HELLO, "response_format": {"type": "text"}, "guided_regex": "a"},
            "structured_outputs",
            "guided_regex",
        ),
        ("chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 2}, "logprobs", "top_logprobs"),
        ("chat/completions", {**HELLO, "max_completion_tokens": 9}, "max_tokens", "max_completion_tokens"),
        ("chat/completions", {**HELLO, "max_tokens": 9}, "max_tokens", None),
        ("completions", {**ONCE, "response_format": JSON}, "structured_outputs", "response_format"),
        ("completions", {**ONCE, "logprobs": 2}, "logprobs", None),
    ],
    ids=str,
)
async def test_what_is_refused_late_is_named_as_its_client_has_named_it(
    stack: Stack, path: str, body: dict[str, Any], param: str, own: str | None
) -> None:
    own = own or param
    async with client(stack) as http:
        for begun in (False, True):
            refusing = asyncio.ensure_future(
                stack.pipeline.ends(
                    EndingCode.UNSUPPORTED_PARAMETER, *["a"] * begun, param=param, message=f"{param}: no."
                )
            )
            refused = await http.post(f"/v1/{path}", json={**body, "stream": begun})
            await refusing
            told = json.loads(events_of(refused.text)[-2][1]) if begun else refused.json()
            assert (told["error"]["param"], told["error"]["message"]) == (own, f"{own}: no.")


async def test_who_does_not_wait_for_a_chat_is_told_of_a_field_by_its_name_there(stack: Stack) -> None:
    """By its id, and on a socket."""
    async with client(stack) as http, dial(stack) as socket:
        await say(socket, type="request", request_id="r1", body={**HELLO, "response_format": JSON})
        refusal: dict[str, Any] = {"param": "structured_outputs", "message": "structured_outputs: no."}
        request = await stack.pipeline.ends(EndingCode.UNSUPPORTED_PARAMETER, "a", **refusal)
        messages, _ = await hear_until_terminal(socket)
        shown = (await http.get(f"/v1/chat/completions/{request.response_id}")).json()
    told = ("response_format", "response_format: no.")
    assert (messages[-1].error.param, messages[-1].error.message) == told
    assert (shown["error"]["param"], shown["error"]["message"]) == told
