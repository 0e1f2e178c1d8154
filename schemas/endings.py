"""The catalogue of endings: every way in which a response can end, in one table.

`status` is the HTTP status when the response ends before its first byte; later it only stands in the error object.
`error_type` and `code` follow OpenAI's error object. `billed` says whether the prompt and the
generated tokens are charged, once a worker has begun. `retryable`: the same, asked again, may be answered, and nobody
pays twice; so nothing that is billed is retryable. Clients repeat by themselves what says so. `elsewhere`: where
nothing was generated yet, another pool or model may answer, and is asked first.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_MESSAGE_CHARS = 2_000
"""Of what an ending says to its client."""


class EndingCode(StrEnum):
    """Stable, public codes; they appear in events, tables and error objects."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    SAFETY_HALTED = "safety_halted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    GENERATION_INTERRUPTED = "generation_interrupted"
    ENGINE_FAILED = "engine_failed"
    STREAM_GAP = "stream_gap"
    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    MODEL_NOT_FOUND = "model_not_found"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    PROMPT_REFUSED = "prompt_refused"
    RATE_LIMITED_REQUESTS = "rate_limited_requests"
    RATE_LIMITED_TOKENS = "rate_limited_tokens"
    RATE_LIMITED_CONCURRENCY = "rate_limited_concurrency"
    BUDGET_EXHAUSTED = "budget_exhausted"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    INVALID_SIGNATURE = "invalid_signature"
    JOB_EXPIRED = "job_expired"


class Reached(StrEnum):
    """How far a response had come when it failed: what was spent on it. With the code it is the reason that clients
    are told, `evicted-deadline_exceeded`.
    """

    REJECTED = "rejected"
    """Refused at the door: it was in no lane."""
    EVICTED = "evicted"
    """It ended in its lane, before a worker had begun it."""
    STOPPED = "stopped"
    """A worker had begun it: it cost time of an engine."""


@dataclass(frozen=True, slots=True)
class EndingRule:
    """What a client is told and what billing does."""

    status: int
    error_type: str
    message: str
    retryable: bool
    billed: bool
    finish_reason: str
    is_error: bool = True
    elsewhere: bool = False


_INVALID = "invalid_request_error"
_LIMIT = "rate_limit_error"
_SERVER = "server_error"

ENDINGS: dict[EndingCode, EndingRule] = {
    EndingCode.COMPLETED: EndingRule(200, "", "", False, True, "stop", is_error=False),
    EndingCode.CANCELLED: EndingRule(499, "cancelled", "The request was cancelled.", False, True, "cancelled"),
    EndingCode.SAFETY_HALTED: EndingRule(
        200, "content_filter", "The answer was halted by the safety policy.", False, True, "content_filter",
        is_error=False,
    ),
    EndingCode.DEADLINE_EXCEEDED: EndingRule(
        504, "timeout_error", "The deadline passed before the answer was complete.", False, True, "deadline"
    ),
    EndingCode.GENERATION_INTERRUPTED: EndingRule(
        502, _SERVER, "The worker was lost after the answer had begun.", True, False, "error"
    ),
    EndingCode.ENGINE_FAILED: EndingRule(
        502, _SERVER, "The engine failed on this request.", True, False, "error", elsewhere=True
    ),
    EndingCode.STREAM_GAP: EndingRule(502, _SERVER, "Part of the answer was lost.", True, False, "error"),
    EndingCode.INVALID_REQUEST: EndingRule(400, _INVALID, "The request is invalid.", False, False, "error"),
    EndingCode.UNSUPPORTED_PARAMETER: EndingRule(
        400, _INVALID, "The request uses a parameter that is not supported.", False, False, "error", elsewhere=True
    ),
    EndingCode.MODEL_NOT_FOUND: EndingRule(404, _INVALID, "The model does not exist.", False, False, "error"),
    EndingCode.CONTEXT_LENGTH_EXCEEDED: EndingRule(
        400, _INVALID, "The prompt is longer than the model's context length.", False, False, "error", elsewhere=True
    ),
    EndingCode.PROMPT_REFUSED: EndingRule(
        400, _INVALID, "The prompt was refused by the safety policy.", False, False, "content_filter"
    ),
    EndingCode.RATE_LIMITED_REQUESTS: EndingRule(429, _LIMIT, "Too many requests.", True, False, "error"),
    EndingCode.RATE_LIMITED_TOKENS: EndingRule(429, _LIMIT, "Too many tokens.", True, False, "error"),
    EndingCode.RATE_LIMITED_CONCURRENCY: EndingRule(
        429, _LIMIT, "Too many responses at once.", True, False, "error"
    ),
    EndingCode.BUDGET_EXHAUSTED: EndingRule(
        429, "insufficient_quota", "What is left of this month's budget has no room for it.", False, True, "budget"
    ),
    EndingCode.OVERLOADED: EndingRule(503, _SERVER, "The service is at capacity.", True, False, "error"),
    EndingCode.UNAVAILABLE: EndingRule(
        503, _SERVER, "The service did not answer in time.", True, False, "error", elsewhere=True
    ),
    EndingCode.INVALID_SIGNATURE: EndingRule(
        401, "authentication_error", "The job's signature is missing or wrong.", False, False, "error"
    ),
    EndingCode.JOB_EXPIRED: EndingRule(400, _INVALID, "The job's expiry has passed.", False, False, "error"),
}  # fmt: skip

assert set(ENDINGS) == set(EndingCode), "every ending has a rule"
