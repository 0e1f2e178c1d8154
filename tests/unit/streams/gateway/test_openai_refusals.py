"""What OpenAI's own package raises where a legacy completion or vectors are refused."""

import asyncio
from typing import Any

import openai
import pytest

from schemas.endings import EndingCode
from tests.unit.streams.gateway.gateway_stack import Stack
from tests.unit.streams.gateway.http_clients import sdk


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
