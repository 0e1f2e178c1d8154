"""Anthropic's `message` object: why it stopped, and what it used."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from schemas.endings import ENDINGS, EndingCode
from schemas.generated import StoppedBy
from schemas.responses import TokenUsage
from streams.dialects.anthropic.blocks import Row, content_of
from streams.dialects.openai_completion import finish_reason

_STOP_REASONS: Final = {
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    """`input_tokens` are those that no cache had; what goes into a cache is not told apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def stop_of(
    code: EndingCode | None, finish_reasons: Sequence[str], *, has_calls: bool, stopped_by: Sequence[StoppedBy] = ()
) -> dict[str, Any]:
    """Why an answer stopped, if it did, and at which of its stop sequences, if at one."""
    if code is None:
        return {"stop_reason": None, "stop_sequence": None, "stop_details": None}
    reason = _STOP_REASONS.get(finish_reason(code, finish_reasons), "tool_use" if has_calls else "end_turn")
    sequence = stopped_by[0] if stopped_by and reason == "end_turn" else None
    if isinstance(sequence, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence, "stop_details": None}
    details = None
    if reason == "refusal":
        details = {"type": "refusal", "category": None, "explanation": ENDINGS[code].message or None}
    return {"stop_reason": reason, "stop_sequence": None, "stop_details": details}


def message_object(
    *,
    response_id: str,
    model: str,
    rows: Iterable[Row],
    code: EndingCode | None,
    finish_reasons: Sequence[str],
    usage: TokenUsage,
    stopped_by: Sequence[StoppedBy] = (),
) -> dict[str, Any]:
    """Its `id` is the response id. Without a `code` it has not stopped, or nothing stopped it but an error."""
    content = content_of(response_id, rows)
    has_calls = any(block["type"] == "tool_use" for block in content)
    return {
        **opening_object(response_id, model),
        "content": content,
        **stop_of(code, finish_reasons, has_calls=has_calls, stopped_by=stopped_by),
        "usage": usage_object(usage),
    }


def opening_object(response_id: str, model: str, prompt_tokens: int = 0) -> dict[str, Any]:
    """A message before it has any content: what a cache had of its prompt is told at its end."""
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        **stop_of(None, [], has_calls=False),
        "usage": usage_object(TokenUsage(prompt_tokens=prompt_tokens)),
    }
