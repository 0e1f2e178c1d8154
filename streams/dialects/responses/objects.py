"""OpenAI's `response` object, as it is answered, told in events and looked up."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal, TokenUsage
from streams.dialects.echo import echoed
from streams.dialects.names import OF_RESPONSES, in_words_of
from streams.dialects.openai_completion import finish_reason
from streams.dialects.responses.output import ItemStatus, Output

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ERROR_CODES: Final[dict[EndingCode, str]] = {
    EndingCode.RATE_LIMITED_REQUESTS: "rate_limit_exceeded",
    EndingCode.RATE_LIMITED_TOKENS: "rate_limit_exceeded",
    EndingCode.RATE_LIMITED_CONCURRENCY: "rate_limit_exceeded",
    EndingCode.BUDGET_EXHAUSTED: "rate_limit_exceeded",
    EndingCode.INVALID_REQUEST: "invalid_prompt",
    EndingCode.UNSUPPORTED_PARAMETER: "invalid_prompt",
    EndingCode.MODEL_NOT_FOUND: "invalid_prompt",
    EndingCode.CONTEXT_LENGTH_EXCEEDED: "invalid_prompt",
    EndingCode.PROMPT_REFUSED: "invalid_prompt",
}
"""OpenAI has a list of its own for a response's error. The others are the server's."""

UNECHOED: Final[dict[str, Any]] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": None,
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a response repeats of its request, where that is not known or said nothing."""


@dataclass(frozen=True, slots=True)
class About:
    """What every object of one response says. `echo`: what it repeats of its request."""

    response_id: str
    created_s: int
    model: str
    background: bool = False
    echo: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, started: Started) -> "About":
        told = read_echo(started.echo)
        # With an idempotency key, too, a response goes on without viewers.
        may_be = started.endpoint != "responses" or not told or "background" in told
        return cls(
            started.response_id, started.accepted_at_ms // 1_000, started.model,
            background=may_be and started.on_disconnect == "continue", echo=told,
        )  # fmt: skip

    @classmethod
    def of_refusal(cls, terminal: Terminal, created_s: int) -> "About":
        """Of one that has ended before it started."""
        told = read_echo(terminal.echo)
        return cls(terminal.response_id, created_s, terminal.model, background="background" in told, echo=told)


def read_echo(echo: str) -> dict[str, Any]:
    """What `parse_responses_request` made, and of another dialect's request what it repeats too."""
    return {name: value for name, value in echoed(echo).items() if name in UNECHOED}


def status_of(terminal: Terminal) -> Status:
    if terminal.code is EndingCode.CANCELLED:
        return "cancelled"
    if ENDINGS[terminal.code].is_error:
        return "failed"
    return "incomplete" if finish_reason(terminal.code, terminal.finish_reasons) in _INCOMPLETE else "completed"


def settle(output: Output, status: Status) -> None:
    """An answer that has ended and says nothing is one empty message."""
    if not output.items and status in ("completed", "incomplete"):
        output.begin("content")


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def running_object(about: About, status: Status, output: Output | None = None) -> dict[str, Any]:
    """Of a response that has not ended, with what it has said so far."""
    return _shaped(about, status, [] if output is None else output.whole("in_progress"))


def ended_object(about: About, output: Output, terminal: Terminal) -> dict[str, Any]:
    """Of a response that has ended, however it did."""
    status = status_of(terminal)
    settle(output, status)
    ended = _shaped(about, status, output.whole(last_status(status)))
    ended["model"] = about.model or terminal.model
    ended["usage"] = usage_object(terminal.usage)
    ended["completed_at"] = terminal.ended_at_ms // 1_000 if status == "completed" else None
    if status == "incomplete":
        ended["incomplete_details"] = {"reason": _INCOMPLETE[finish_reason(terminal.code, terminal.finish_reasons)]}
    if status == "failed":
        message, _ = in_words_of(OF_RESPONSES, terminal.message or ENDINGS[terminal.code].message, terminal.param)
        ended["error"] = {"code": _ERROR_CODES.get(terminal.code, "server_error"), "message": message}
        if terminal.reason is not None:
            ended["error"]["reason"] = terminal.reason
    return ended


def last_status(status: Status) -> ItemStatus:
    """Of the last item of a response that has ended so."""
    return "completed" if status == "completed" else "incomplete"


def _shaped(about: About, status: Status, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": about.response_id,
        "object": "response",
        "created_at": about.created_s,
        "status": status,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": about.model,
        "output": output,
        "usage": None,
        **UNECHOED,
        **about.echo,
        "background": about.background,
    }
