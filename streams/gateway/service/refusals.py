"""What a client is told where the service itself refuses, in one place: status, code, and whether to come again."""

from typing import Final

from schemas.endings import ENDINGS, EndingCode
from schemas.responses import Terminal
from streams.at_once import TooManyAtOnce
from streams.gateway.closing import CloseReason
from streams.gateway.errors import ApiError
from streams.retry_advice import LEAST_ADVICE_MS, retry_advice_ms

STILL_RUNS: Final = "previous_response_in_progress"
NOT_THERE: Final = "previous_response_not_found"


def retry_advice_of(terminal: Terminal) -> int | None:
    """What an ending advises: None where asking again would be in vain, or be paid twice."""
    if not ENDINGS[terminal.code].retryable:
        return None
    return retry_advice_ms() if terminal.retry_after_ms is None else terminal.retry_after_ms


def unavailable(message: str, code: str = EndingCode.UNAVAILABLE.value, *, least_wait_ms: int = 0) -> ApiError:
    advice_ms = retry_advice_ms(max(least_wait_ms, LEAST_ADVICE_MS))
    return ApiError(503, code, message, error_type="server_error", retry_after_ms=advice_ms)


class Unacknowledged(ApiError):
    """The log was not heard to have taken a request in time; it may have. `log_is_silent`: nothing else kept it."""

    def __init__(self, *, log_is_silent: bool = False) -> None:
        super().__init__(
            503, EndingCode.UNAVAILABLE.value, "The request could not be stored.", error_type="server_error",
            retry_after_ms=retry_advice_ms(),
        )  # fmt: skip
        self.log_is_silent = log_is_silent


def key_reused() -> ApiError:
    return ApiError(
        409, "idempotency_key_reused", "The Idempotency-Key was used for another request.", param="Idempotency-Key"
    )


def key_unknown() -> ApiError:
    """What came of a key's first request cannot be told any more; final, for it may have been answered."""
    message = "What came of the first request with this Idempotency-Key is not known any more. Take another key."
    return ApiError(409, "idempotency_key_unknown", message, param="Idempotency-Key")


def keys_away() -> ApiError:
    return unavailable("Idempotency keys cannot be looked up now.")


def not_found(response_id: str) -> ApiError:
    """The same for an id that never was, that is gone, and that belongs to somebody else."""
    return ApiError(404, "response_not_found", f"No response {response_id[:100]!r}.", param="response_id")


def job_not_found(custom_id: str) -> ApiError:
    """The same for a job that never was, that waits to be admitted, that is gone, and that belongs to somebody else."""
    return ApiError(404, "job_not_found", f"No job {custom_id[:100]!r} is known here.", param="custom_id")


def replay_unavailable(message: str, *, is_transient: bool) -> ApiError:
    return ApiError(
        409, CloseReason.REPLAY_UNAVAILABLE.value, message, error_type="server_error",
        retry_after_ms=retry_advice_ms() if is_transient else None, resumable=is_transient,
    )  # fmt: skip


def not_here_yet(message: str) -> ApiError:
    """For what a moment later may be served here; never for good."""
    return ApiError(
        503, "not_here_yet", message, error_type="server_error", retry_after_ms=retry_advice_ms(), resumable=True
    )


def asked_too_early(wait_ms: int) -> ApiError:
    message = "Asked again before the advised time."
    return ApiError(
        429, "asked_too_early", message, error_type="rate_limit_error", retry_after_ms=wait_ms, resumable=True
    )


def too_many_at_once(error: TooManyAtOnce) -> ApiError:
    return unavailable(f"There are {error}.", EndingCode.OVERLOADED.value)


def never_reached(after: int) -> ApiError:
    """For a position that no client can have seen."""
    message = f"The response has no sequence number {after}."
    return ApiError(400, "invalid_request", message, param="starting_after")


def previous_not_found(response_id: str) -> ApiError:
    """In OpenAI's words and with its code, for any turn that what is gone on with lacks."""
    message = f"Previous response with id {response_id[:100]!r} not found."
    return ApiError(404, NOT_THERE, message, param="previous_response_id")


def previous_in_progress(response_id: str) -> ApiError:
    message = f"Previous response with id {response_id!r} is still in progress."
    return ApiError(409, STILL_RUNS, message, param="previous_response_id", retry_after_ms=retry_advice_ms())


def conversation_not_found(conversation_id: str) -> ApiError:
    """The same for an id that never was, that is deleted, and that belongs to somebody else."""
    message = f"Conversation with id {conversation_id[:100]!r} not found."
    return ApiError(404, "conversation_not_found", message, param="conversation")


def conversation_in_progress(conversation_id: str) -> ApiError:
    message = f"The last turn of conversation {conversation_id!r} is still in progress."
    return ApiError(
        409, "conversation_in_progress", message, param="conversation", retry_after_ms=retry_advice_ms()
    )  # fmt: skip


def still_in_progress(response_id: str) -> ApiError:
    """For what only a response that has ended may be asked."""
    message = f"Response with id {response_id!r} is still in progress; cancel it first."
    return ApiError(409, "response_in_progress", message, param="response_id")


def store_away() -> ApiError:
    return unavailable("Stored responses cannot be had now.")
