"""OpenAI's `chat.completion` object, as HTTP clients and batch producers get it."""

from collections.abc import Sequence
from typing import Any

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import TokenUsage


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


def completion_object(
    *,
    response_id: str,
    created_s: int,
    model: str,
    texts: Sequence[str],
    thoughts: Sequence[str] = (),
    code: EndingCode,
    finish_reasons: Sequence[str],
    usage: TokenUsage,
) -> dict[str, Any]:
    """One choice per text. Its `id` is the response id.

    `thoughts` are the reasoning of each choice: `reasoning_content` of its message, where there is some.
    """
    choices = []
    for index, text in enumerate(texts):
        message = {"role": "assistant", "content": text, "refusal": None}
        if index < len(thoughts) and thoughts[index]:
            message["reasoning_content"] = thoughts[index]
        reason = finish_reason(code, finish_reasons, index)
        choices.append({"index": index, "message": message, "logprobs": None, "finish_reason": reason})
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": choices,
        "usage": usage_object(usage),
    }
