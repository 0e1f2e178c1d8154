"""OpenAI's `chat.completion` object, as HTTP clients and batch producers get it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import TokenUsage
from streams.dialects.openai_logprobs import chat_logprobs
from streams.dialects.said import MadeCall, Said


class Ended(TypedDict):
    """What a whole answer says beside its choices."""

    response_id: str
    created_s: int
    model: str
    code: EndingCode
    finish_reasons: Sequence[str]
    usage: TokenUsage


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


def whole_object(kind: str, choices: Iterable[Mapping[str, Any]], **ended: Unpack[Ended]) -> dict[str, Any]:
    """An answer around its choices, each of which is told its index and why it ended. Its `id` is the response id."""
    code, reasons = ended["code"], ended["finish_reasons"]
    return {
        "id": ended["response_id"],
        "object": kind,
        "created": ended["created_s"],
        "model": ended["model"],
        "choices": [
            {"index": index, **choice, "finish_reason": finish_reason(code, reasons, index)}
            for index, choice in enumerate(choices)
        ],
        "usage": usage_object(ended["usage"]),
    }


def completion_object(*, choices: Iterable[Said], **ended: Unpack[Ended]) -> dict[str, Any]:
    told = ({"message": _message(choice), "logprobs": chat_logprobs(choice.logprobs)} for choice in choices)
    return whole_object("chat.completion", told, **ended)


def _message(said: Said) -> dict[str, Any]:
    """`reasoning_content` and `tool_calls` where there are some; no content where it does nothing but call."""
    message: dict[str, Any] = {"role": "assistant", "content": said.content, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["content"] = said.content or None
        message["tool_calls"] = [call_object(call) for call in said.calls]
    return message
