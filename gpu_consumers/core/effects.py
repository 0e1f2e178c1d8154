"""What the core asks of its shell. No effect needs the answer of another: answers come back as further events."""

from dataclasses import dataclass

from gpu_consumers.engines.port import EngineRequest
from streams.log.offset_tracker import OffsetTracker


@dataclass(frozen=True, slots=True)
class FenceSent:
    response_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class FrameSent:
    """`finished` are the attempts whose last row it holds."""

    attempt_ids: frozenset[str]
    finished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndingSent:
    response_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class DeadLetterSent:
    tracker: OffsetTracker
    offset: int


Receipt = FenceSent | FrameSent | EndingSent | DeadLetterSent


@dataclass(frozen=True, slots=True)
class Publish:
    """`receipt` comes back with the delivery; None: nothing depends on it."""

    topic: str
    partition: int | None
    key: str
    value: bytes
    receipt: Receipt | None


@dataclass(frozen=True, slots=True)
class AskClaim:
    """`only_begun`: claim it if somebody has begun it, else leave it to whoever has a slot for it."""

    response_id: str
    attempt_id: str
    only_begun: bool


@dataclass(frozen=True, slots=True)
class AskReadBack:
    """Fold partition `partition` of `generated` from `first_offset` up to and including `fence_offset`."""

    response_id: str
    attempt_id: str
    partition: int
    first_offset: int
    fence_offset: int


@dataclass(frozen=True, slots=True)
class Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class Abort:
    attempt_id: str


@dataclass(frozen=True, slots=True)
class FinishClaim:
    response_id: str


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    response_id: str


Effect = Publish | AskClaim | AskReadBack | Submit | Abort | FinishClaim | ReleaseClaim
