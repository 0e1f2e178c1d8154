"""How a request ends before it is admitted: refused, with an ending that its client reads, or buried as a dead letter.

A refusal answers somebody who is known to have asked; where nobody is, there is nobody to tell.
"""

import hashlib
from dataclasses import dataclass, field

from agents.quota.port import RETRY_AFTER_MS, Refusal
from schemas.admission import Admission
from schemas.base import Scope
from schemas.dead_letter import DeadReason
from schemas.endings import MAX_MESSAGE_CHARS, EndingCode
from schemas.generated import Ending
from schemas.request import ReplyTo, Request
from schemas.verdict import Verdict


class Buried(Exception):
    """The record becomes a dead letter: nobody can be told, or nobody proved to be who it claims."""

    def __init__(self, reason: DeadReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Origin:
    """What an ending says about a response that was never opened."""

    response_id: str
    scope: Scope
    reply_to: ReplyTo
    accepted_at_ms: int
    endpoint: str = "chat.completions"
    requested_model: str = ""
    prompt_tokens: int = 0
    stage_ms: dict[str, int] = field(default_factory=dict)
    deadline_ms: int = 0
    """From then on it can only be refused."""
    echo: str = ""
    """Of one that nobody waits for: who comes for it is told what was asked for."""

    @classmethod
    def of(cls, event: "Request | Admission") -> "Origin":
        request = event.request if isinstance(event, Admission) else event
        return cls(
            response_id=event.response_id,
            scope=event.scope,
            reply_to=request.reply_to,
            accepted_at_ms=request.accepted_at_ms,
            endpoint=request.endpoint,
            requested_model=request.model,
            prompt_tokens=len(event.prompt_token_ids) if isinstance(event, Admission) else 0,
            stage_ms=event.stage_ms,
            deadline_ms=request.deadline_ms,
            echo="" if request.on_disconnect == "cancel" or request.reply_to.is_untold else request.echo,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """The response ends here. `stored`: quota holds this very refusal already.

    `unproved`: the record may be a copy of one that was routed, so it may not end what is routed. `request`: what was
    refused as it is now; where an earlier delivery was routed, it stays so.
    `spends_request`: finding it out took work, so it counts among the requests that its tenant may make.
    """

    origin: Origin
    refusal: Refusal
    stored: bool = False
    verdict: Verdict | None = None
    buried: Buried | None = None
    unproved: bool = False
    request: Request | None = None
    spends_request: bool = False


DEADLINE_PASSED = Refusal(
    code=EndingCode.DEADLINE_EXCEEDED, message="The deadline passed before the request was admitted."
)
TOO_MANY_LONG = Refusal(
    code=EndingCode.OVERLOADED,
    message="rejected-overloaded: too many long prompts wait; nothing was generated.",
    retry_after_ms=RETRY_AFTER_MS,
)
UNAVAILABLE = Refusal(code=EndingCode.UNAVAILABLE, retry_after_ms=RETRY_AFTER_MS)
TENANT_GONE = Refusal(code=EndingCode.INVALID_REQUEST, message="The tenant does not exist any more.")


def invalid(param: str | None, message: str) -> Refusal:
    return Refusal(code=EndingCode.INVALID_REQUEST, message=message[:MAX_MESSAGE_CHARS], param=param)


def unsupported(param: str, message: str) -> Refusal:
    return Refusal(code=EndingCode.UNSUPPORTED_PARAMETER, message=message[:MAX_MESSAGE_CHARS], param=param)


def too_long(param: str, message: str) -> Refusal:
    """For the context of the model, or for a record."""
    return Refusal(code=EndingCode.CONTEXT_LENGTH_EXCEEDED, message=message, param=param)


def unknown_token(param: str, vocabulary_size: int) -> Refusal:
    return invalid(param, f"{param} names a token beyond the {vocabulary_size} of the model.")


def too_large(event: "Request | Admission") -> Refused:
    """No record can hold it."""
    request = event.request if isinstance(event, Admission) else event
    message = "The prompt exceeds the maximum number of tokens allowed in one request."
    return Refused(Origin.of(event), too_long(request.prompt_field, message))


def ending_of(origin: Origin, refusal: Refusal) -> Ending:
    """The refusal as everybody reads it. Advice to wait is jittered here, for all of admission."""
    wait_ms = refusal.retry_after_ms
    return Ending(
        response_id=origin.response_id,
        scope=origin.scope,
        stage_ms=origin.stage_ms,
        code=refusal.code,
        written_by="admission",
        message=refusal.message,
        param=refusal.param,
        retry_after_ms=wait_ms if wait_ms is None else jittered_ms(wait_ms, origin.response_id),
        limits=refusal.limits,
        endpoint=origin.endpoint,
        requested_model=origin.requested_model[:200],
        reply_to=origin.reply_to,
        accepted_at_ms=origin.accepted_at_ms,
        prompt_tokens=origin.prompt_tokens,
        echo=origin.echo,
    )


def jittered_ms(wait_ms: int, response_id: str) -> int:
    """`wait_ms` plus up to a quarter of it, at least 250 ms wide; the same for the same response."""
    digest = int.from_bytes(hashlib.blake2b(response_id.encode(), digest_size=4).digest(), "big")
    return wait_ms + digest * max(wait_ms // 4, 250) // 2**32
