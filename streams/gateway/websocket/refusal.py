"""What a client is told of a message that is refused."""

from schemas.endings import ENDINGS, EndingCode
from schemas.websocket import ErrorBody, ErrorMessage
from streams.dialects.neutral import RequestError
from streams.dialects.openai_error import ending_error
from streams.gateway.errors import ApiError
from streams.retry_advice import retry_advice_ms


def invalid(message: str, param: str) -> RequestError:
    return RequestError(EndingCode.INVALID_REQUEST, message, param)


def code_of(error: RequestError | ApiError) -> str:
    return error.code if isinstance(error, ApiError) else error.code.value


def refusal(error: RequestError | ApiError, request_id: str | None, response_id: str | None) -> ErrorMessage:
    """With advice where asking again may help."""
    if isinstance(error, ApiError):
        body, retry_after_ms, resumable = error.body, error.retry_after_ms, error.resumable
    else:
        body, resumable = ending_error(error.code, error.message, error.param), False
        retry_after_ms = retry_advice_ms() if ENDINGS[error.code].retryable else None
    return ErrorMessage(
        error=ErrorBody(**body["error"]), request_id=request_id, response_id=response_id,
        retry_after_ms=retry_after_ms, resumable=resumable,
    )  # fmt: skip
