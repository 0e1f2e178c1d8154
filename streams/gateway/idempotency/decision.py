"""What to do for a request with a key: a function of what the key stands for and what is known of that. Pure."""

from enum import Enum
from typing import Final

from streams.gateway.idempotency.port import Claim, Held, KeyReused
from streams.topics import LONGEST_OUTAGE_MS

TRIED_WITHIN_MS: Final = 10_000
"""Whoever sets out to write a request to the log has done it by then, has given up, or is dead."""
DECIDED_ONCE_MS: Final = LONGEST_OUTAGE_MS
"""For so long, and longer, admission decides a request once that is on the log twice under one response id."""


class Known(Enum):
    """Of the response that a key stands for."""

    NOTHING = "nothing"
    """Neither memory, nor history, nor the log, nor the store has met it."""
    REFUSED = "refused"
    """It ended so that it may be asked for again: nothing of it is billed."""
    THERE = "there"


class Step(Enum):
    BEGIN = "begin"
    """It is the first."""
    ANOTHER_BODY = "another_body"
    LOOK = "look"
    """What is known of the response decides."""
    JOIN = "join"
    BEGIN_ANEW = "begin_anew"
    """Under a new response id, if nobody else does."""
    REPEAT = "repeat"
    """Write the request to the log again, under the same response id: should it stand there already, it is one still.
    If nobody else does."""
    WAIT = "wait"
    """Somebody may be about to write it."""
    UNKNOWN = "unknown"
    """Too late to write it again: should it have been answered, it would be answered twice."""


def is_overdue(held: Held, waited_ms: int = 0) -> bool:
    """Whether nobody is on the way to the log with it any more."""
    return held.now_ms + waited_ms - held.tried_at_ms >= TRIED_WITHIN_MS


def decide(claim: Claim, held: Held, known: Known | None = None, waited_ms: int = 0) -> Step:
    """`known` is None before anybody has looked, which took `waited_ms`."""
    if held.response_id == claim.response_id:
        return Step.BEGIN
    if held.digest != claim.digest:
        return Step.ANOTHER_BODY
    if known is None:
        return Step.LOOK
    if known is Known.THERE:
        return Step.JOIN
    if known is Known.REFUSED:
        return Step.BEGIN_ANEW
    if held.now_ms + waited_ms - held.began_at_ms >= DECIDED_ONCE_MS:
        return Step.UNKNOWN
    return Step.REPEAT if is_overdue(held, waited_ms) else Step.WAIT


def made_before(claim: Claim, held: Held) -> str | None:
    """Of a claim of what is made in the transaction of the claim itself: the id of what the key stands for already.

    None: it is to be made. Raises KeyReused.
    """
    if held.response_id == claim.response_id:
        return None
    if held.digest != claim.digest:
        raise KeyReused
    return held.response_id
