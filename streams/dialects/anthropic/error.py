"""Anthropic's error object: in answers, in streams, and the words for what exceeds a model's context."""

from typing import Any, Final

from schemas.endings import EndingCode

_TYPES: Final[dict[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_CODES: Final[dict[tuple[str, str | None], str]] = {
    (EndingCode.UNSUPPORTED_PARAMETER.value, "thread"): "thread_unsupported_request",
}
"""Anthropic's own for what its packages then do without, by our code and the parameter."""


def error_type(status: int, code: str) -> str:
    """Anthropic's, by status. One that is not the client's fault is an `api_error`."""
    if code == EndingCode.OVERLOADED.value:
        return "overloaded_error"
    return _TYPES.get(status) or ("invalid_request_error" if status < 499 else "api_error")


def error_object(
    status: int, code: str, message: str, param: str | None = None, request_id: str = "", reason: str | None = None
) -> dict[str, Any]:
    """`code` stands where Anthropic's package looks for it too: in `details`, as Anthropic's own where that matters.
    `reason` is ours alone, as in OpenAI's formats.
    """
    error: dict[str, Any] = {
        "type": error_type(status, code), "message": message, "code": code, "param": param,
        "details": {"error_code": _CODES.get((code, param), code)},
    }  # fmt: skip
    if reason is not None:
        error["reason"] = reason
    return {"type": "error", "error": error, "request_id": request_id or None}


def overflow_message(context_window: int, prompt_tokens: int, max_tokens: int | None = None) -> str:
    """Anthropic's words for what exceeds a model's context: clients recognise them, and read the figures."""
    if max_tokens is None or prompt_tokens > context_window:
        return f"prompt is too long: {prompt_tokens} tokens > {context_window} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt_tokens} + {max_tokens} > {context_window}, "
        "decrease input length or `max_tokens` and try again"
    )


def endless_message(context_window: int) -> str:
    """The same of a text that is not tokenised to its end."""
    return f"prompt is too long: at least {context_window + 1} tokens > {context_window} maximum"
