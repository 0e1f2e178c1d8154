"""The shapes of what HTTP clients are answered: errors with their advice, responses by id, models."""

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Terminal
from streams.dialects.openai_completion import usage_object
from streams.dialects.openai_error import ending_error, error_object
from streams.gateway.errors import ApiError
from streams.gateway.service.lookup import Snapshot
from streams.gateway.service.refusals import retry_advice_of

_LIMIT_HEADERS = {
    f"{kind}_{figure}": f"x-ratelimit-{figure.removesuffix('_ms')}-{kind}"
    for kind in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset_ms")
}
_STATUSES = {
    EndingCode.COMPLETED: "completed",
    EndingCode.CANCELLED: "cancelled",
    EndingCode.SAFETY_HALTED: "incomplete",
}


def error_response(
    status: int,
    body: dict[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    retry_after_ms: int | None = None,
    retryable: bool = False,
) -> JSONResponse:
    """OpenAI's error object, with retry advice where there is any."""
    advice = dict(headers or {})
    if retry_after_ms is not None:
        advice["retry-after-ms"] = str(retry_after_ms)
        advice["retry-after"] = str(-(-retry_after_ms // 1_000))
    # OpenAI's packages repeat 408, 409, 429 and 5xx by themselves unless this says no.
    advice["x-should-retry"] = str(retryable).lower()
    if status == 401:
        advice["www-authenticate"] = "Bearer"
    return JSONResponse(body, status_code=status, headers=advice)


def api_error_response(error: ApiError, *, closes: bool = False) -> JSONResponse:
    """`closes`: the body may still be on its way, and is not read."""
    headers = {"connection": "close"} if closes else {}
    return error_response(
        error.status, error.body, headers=headers, retry_after_ms=error.retry_after_ms, retryable=error.retryable
    )


def ending_response(terminal: Terminal, headers: Mapping[str, str]) -> JSONResponse:
    """The HTTP answer of a response that ended in an error."""
    rule = ENDINGS[terminal.code]
    return error_response(
        rule.status,
        ending_error(terminal.code, terminal.message, terminal.param),
        headers={**headers, **limit_headers(terminal.limits)},
        retry_after_ms=retry_advice_of(terminal),
        retryable=rule.retryable,
    )


def still_running_response(code: str, headers: Mapping[str, str]) -> JSONResponse:
    """The HTTP answer where this gateway can no longer wait for what was accepted: asked again it would be paid twice.

    `headers` hold the response's id.
    """
    message = f"The answer can no longer be followed here. It may be had from /v1/responses/{headers['x-request-id']}."
    return error_response(503, error_object(code, message, "server_error"), headers=headers, retryable=False)


def limit_headers(limits: Mapping[str, int]) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*` headers; figures without one are left out."""
    return {
        header: f"{limits[name]}ms" if name.endswith("_ms") else str(limits[name])
        for name, header in _LIMIT_HEADERS.items()
        if name in limits
    }


def response_object(snapshot: Snapshot) -> dict[str, Any]:
    """A response by id: its state, its text so far, and what it used once it has ended."""
    started, terminal = snapshot.started, snapshot.terminal
    status = "in_progress" if started or snapshot.sequence_number else "queued"
    error = None
    if terminal is not None:
        status = _STATUSES.get(terminal.code, "failed")
        if ENDINGS[terminal.code].is_error:
            error = ending_error(terminal.code, terminal.message, terminal.param)["error"]
    model = (terminal.model if terminal else "") or (started.model if started else "")
    return {
        "id": snapshot.response_id,
        "object": "response",
        "status": status,
        "created_at": started.accepted_at_ms // 1_000 if started else None,
        "model": model or None,
        "output_text": snapshot.texts[0] if snapshot.texts else None,
        "sequence_number": snapshot.sequence_number,
        "finish_reasons": terminal.finish_reasons if terminal else [],
        "code": terminal.code.value if terminal else None,
        "error": error,
        "usage": usage_object(terminal.usage) if terminal else None,
    }


def invalid_parameter(param: str, message: str) -> ApiError:
    return ApiError(400, EndingCode.INVALID_REQUEST.value, message, param=param)
