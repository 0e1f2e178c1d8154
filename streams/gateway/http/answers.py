"""The shapes of what HTTP clients are answered: errors, with their advice."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi.responses import JSONResponse, Response

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.errors import ApiError
from streams.gateway.http.dialects.chat_completions import CHAT_COMPLETIONS
from streams.gateway.http.dialects.port import Asked, Dialect, Failure
from streams.gateway.service.refusals import retry_advice_of
from streams.ids import mint_request_id
from streams.retry_advice import retry_advice_ms


def json_response(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)


def error_response(
    failure: Failure,
    dialect: Dialect[Any] = CHAT_COMPLETIONS,
    *,
    headers: Mapping[str, str] | None = None,
    retry_after_ms: int | None = None,
    retryable: bool = False,
) -> JSONResponse:
    """An error in the client's own shape, with retry advice where there is any."""
    advice = {"x-request-id": mint_request_id(), **(headers or {})}
    if retry_after_ms is not None:
        advice["retry-after-ms"] = str(retry_after_ms)
        advice["retry-after"] = str(-(-retry_after_ms // 1_000))
    # OpenAI's packages and Anthropic's repeat 408, 409, 429 and 5xx by themselves unless this says no.
    advice["x-should-retry"] = str(retryable).lower()
    if failure.status == 401:
        advice["www-authenticate"] = "Bearer"
    told = replace(failure, request_id=advice["x-request-id"])
    return JSONResponse(dialect.error(told), status_code=failure.status, headers=advice)


def notices_of(started: Started | None) -> dict[str, str]:
    """Headers of an answer that is given less than was asked for, waits behind its lane, or is a smaller model's, for
    who does not compare the `model` of an answer with that of its question. The same whenever it is had.
    """
    if started is None:
        return {}
    notices = fallback_notices(started)
    if (brownout := started.brownout) is not None:
        notices |= {"x-brownout-level": str(brownout.level), "x-brownout-max-tokens": str(brownout.max_tokens)}
    if (lane := started.lowered_from) is not None:
        notices |= {"x-queue-lowered-from": lane}
    return notices


def fallback_notices(told: Started | Terminal) -> dict[str, str]:
    """Of a smaller model's answer: which was asked for, and why it did not answer."""
    if told.fallback is None:
        return {}
    return {"x-sluice-fallback-from": told.fallback.asked, "x-sluice-fallback-reason": told.fallback.reason}


def api_error_response(error: ApiError, dialect: Dialect[Any], *, closes: bool = False) -> JSONResponse:
    """`closes`: the body may still be on its way, and is not read."""
    return error_response(
        Failure(error.status, error.code, error.message, error.error_type, error.param),
        dialect,
        headers={"connection": "close"} if closes else {},
        retry_after_ms=error.retry_after_ms,
        retryable=error.retryable,
    )


def ending_response(
    terminal: Terminal, headers: Mapping[str, str], dialect: Dialect[Asked], asked: Asked
) -> JSONResponse:
    """The HTTP answer of a response that ended in an error."""
    return error_response(
        Failure.of_ending(terminal, {**dialect.names, **asked.names}),
        dialect,
        headers={**headers, **dialect.limit_headers(terminal.limits, terminal.ended_at_ms)},
        retry_after_ms=retry_advice_of(terminal),
        retryable=ENDINGS[terminal.code].retryable,
    )


def still_running_response(
    code: str, headers: Mapping[str, str], dialect: Dialect[Any], *, has_key: bool = False
) -> JSONResponse:
    """The HTTP answer where this gateway can no longer wait for what was accepted, or its client may not any more.

    Asked again it would be paid twice, unless it `has_key`: an idempotency key. `headers` hold the response's id.
    """
    response_id = headers["x-request-id"]
    if code == CloseReason.UNAUTHENTICATED.value:
        stopped = "The API key was revoked, or its time is over. What it asked for goes on as its policy says."
        failure = Failure(401, "invalid_api_key", stopped, "invalid_request_error", response_id=response_id)
        return error_response(failure, dialect, headers=headers)
    message = f"The answer can no longer be followed here. It may be had from /v1/{dialect.path}/{response_id}."
    failure = Failure(503, code, message, "server_error", response_id=response_id)
    retry_after_ms = retry_advice_ms() if has_key else None
    return error_response(failure, dialect, headers=headers, retry_after_ms=retry_after_ms, retryable=has_key)


def invalid_parameter(param: str, message: str) -> ApiError:
    return ApiError(400, EndingCode.INVALID_REQUEST.value, message, param=param)
