"""What the core asks of its shell. No effect needs the answer of another: answers come back as further events."""

from dataclasses import dataclass

from gpu_consumers.core.claims import AskClaim, FinishClaim, ReleaseClaim
from gpu_consumers.engines.port import EngineRequest
from streams.log.offset_tracker import OffsetTracker


@dataclass(frozen=True, slots=True)
class FenceSent:
    """`enters`: it is told so before its attempt does."""

    partition: int
    response_id: str
    attempt_id: str
    move: int = 0
    enters: bool = False


@dataclass(frozen=True, slots=True)
class FrameSent:
    """`finished` are the attempts whose last row it holds, of the last of their choices."""

    partition: int
    attempt_ids: frozenset[str]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndingSent:
    partition: int
    response_id: str
    attempt_id: str
    move: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterSent:
    tracker: OffsetTracker
    offset: int


@dataclass(frozen=True, slots=True)
class CopySent:
    """Of a request that goes to another worker; `sources` are its records here that the copy stands for."""

    response_id: str
    sources: tuple[tuple[OffsetTracker, int], ...]


OfAttempt = FenceSent | FrameSent | EndingSent | DeadLetterSent
Receipt = OfAttempt | CopySent


@dataclass(frozen=True, slots=True)
class Publish:
    """`receipt` comes back with the delivery; None: nothing depends on it. A `value` of None is a tombstone."""

    topic: str
    partition: int | None
    key: str
    value: bytes | None
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class AskReadBack:
    """Fold partition `partition` of `generated` from `first_offset`, which may be behind `opened`, up to and including
    `fence_offset`.
    """

    response_id: str
    attempt_id: str
    partition: int
    first_offset: int
    fence_offset: int
    choices: int = 1
    move: int = 0


@dataclass(frozen=True, slots=True)
class Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    attempt_id: str


Effect = Publish | AskClaim | AskReadBack | Submit | Abort | FinishClaim | ReleaseClaim

__all__ = [
    "Abort",
    "AskClaim",
    "AskReadBack",
    "CopySent",
    "DeadLetterSent",
    "Effect",
    "EndingSent",
    "FenceSent",
    "FinishClaim",
    "FrameSent",
    "OfAttempt",
    "Publish",
    "Receipt",
    "ReleaseClaim",
    "Submit",
]
