"""OpenAI's `chat.completion` object, as HTTP clients and batch producers get it."""

from collections.abc import Sequence
from typing import Any

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import TokenUsage
from streams.dialects.said import MadeCall, Said


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def finish_reason(code: EndingCode, finish_reasons: Sequence[str], choice: int = 0) -> str:
    """OpenAI's word for why `choice` ended; the catalogue's where the choice did not finish by itself."""
    own = finish_reasons[choice] if choice < len(finish_reasons) else ""
    return own or ENDINGS[code].finish_reason


def call_object(call: MadeCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def completion_object(
    *,
    response_id: str,
    created_s: int,
    model: str,
    choices: Sequence[Said],
    code: EndingCode,
    finish_reasons: Sequence[str],
    usage: TokenUsage,
) -> dict[str, Any]:
    """Its `id` is the response id."""
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": [
            {
                "index": index,
                "message": _message(choice),
                "logprobs": None,
                "finish_reason": finish_reason(code, finish_reasons, index),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage_object(usage),
    }


def _message(said: Said) -> dict[str, Any]:
    """`reasoning_content` and `tool_calls` where there are some; no content where it does nothing but call."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["content"] = said.content or None
        message["tool_calls"] = [call_object(call) for call in said.calls]
    return message
