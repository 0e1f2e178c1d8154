"""Who generates a response. Claims only save wasted work: the fences in the log decide. Pure: time is a parameter.

One lease per worker incarnation (a worker that restarts is a new one); a claim points to its incarnation, so that one
renewal keeps everything that a worker holds. A claim is the response's, whichever pool works at it, and outlives its
deadline. Once it was moved to another pool it has another one: what is finished is the work at one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

ClaimState = Literal["fresh", "expired", "leased", "finished"]

KEPT_BEYOND_DEADLINE_MS = 3_600_000
"""So long a record may be read again after its response has ended: until a commit covers it."""


class OfMove:
    """About a response, at the place to which it was moved so often: what is claimed."""

    __slots__ = ()
    response_id: str
    move: int

    @property
    def claim_id(self) -> str:
        return f"{self.response_id}.{self.move}" if self.move else self.response_id


@dataclass(frozen=True, slots=True)
class AskClaim(OfMove):
    """`begin`: claims it, and counts that it enters an engine, but where another attempt than `held_as` had it: that is
    taken over first, and may wait then. `take`: claims it, without counting. `look`: as `take`, but what nobody had is
    left alone: it is told as `fresh`, and is not ours.

    `generated_end`: the response's partition of `generated` reaches at least so far, and nothing of an attempt under
    this claim stands before it. The first claim keeps it. All is forgotten `keep_ms` later.

    `most_begun`, of an answer that has said something: so often, at most, it has entered an engine since. Those before
    are not counted any more.
    """

    response_id: str
    attempt_id: str
    purpose: Literal["begin", "take", "look"] = "begin"
    generated_end: int = 0
    keep_ms: int = KEPT_BEYOND_DEADLINE_MS
    most_begun: int | None = None
    held_as: str = ""
    """The attempt under which it is ours already, and may enter an engine."""
    move: int = 0


@dataclass(frozen=True, slots=True)
class FinishClaim(OfMove):
    """Its terminal is in the log. Remembered for `keep_ms`."""

    response_id: str
    keep_ms: int = KEPT_BEYOND_DEADLINE_MS
    move: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseClaim(OfMove):
    """Lets others take over at once what was claimed under that attempt. `uncount`: no engine was lost with it."""

    response_id: str
    attempt_id: str
    uncount: bool = False
    move: int = 0


@dataclass(frozen=True, slots=True)
class Claim:
    """`fresh`: nobody had it. `expired`: it is ours now, but `previous_attempt_id` was begun. `leased`: another worker
    has it for at least `retry_in_ms`. `finished`: its terminal is in the log.

    `begun`: how often it has entered an engine and neither ended nor been released, nor said anything since, as far as
    that was told (`AskClaim.most_begun`); this time not counted. `counted`: this time is, from now on.
    """

    state: ClaimState
    previous_attempt_id: str = ""
    retry_in_ms: int = 0
    begun: int = 0
    generated_end: int = 0
    counted: bool = False


class ClaimsUnavailable(Exception):
    """The store did not answer in time or failed."""


class ClaimStore(Protocol):
    """Every method but `claim` raises ClaimsUnavailable."""

    async def claim(self, asks: Sequence[AskClaim]) -> list[Claim | None]:
        """Atomic per response; in order. None where the store did not answer. Also renews the lease."""

    async def renew(self) -> bool:
        """Extends the lease of this incarnation by `lease_ms` from now.

        False when there was none: it had run out, or the store has lost its memory, and the claims with it.
        """

    async def finish(self, marks: Sequence[FinishClaim]) -> None:
        """Marks responses whose terminal is acknowledged, where this incarnation still holds the claim.

        A worker that was overtaken believes in a terminal that does not count.
        """

    async def release(self, marks: Sequence[ReleaseClaim]) -> None:
        """Gives back what this incarnation still holds under that attempt."""

    async def resign(self) -> None:
        """Ends the lease, and with it every claim that points to it."""


@dataclass(slots=True)
class _Held:
    incarnation: str
    attempt_id: str
    generated_end: int
    begun: int = 0
    finished: bool = False
    counted: str = ""
    """The attempt whose entry was counted last, and is not released."""


@dataclass(slots=True)
class ClaimTable:
    """The rule, in memory, shared by any number of incarnations; what a `ClaimStore` answers must match it."""

    lease_ms: int
    _leases: dict[str, int] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)

    def claim(self, incarnation: str, ask: AskClaim, now_ms: int) -> Claim:
        self.renew(incarnation, now_ms)
        held = self._held.get(ask.claim_id)
        state: ClaimState = "expired"
        previous = ""
        if held is None:
            if ask.purpose == "look":
                return Claim("fresh")
            state = "fresh"
            held = self._held[ask.claim_id] = _Held(incarnation, ask.attempt_id, ask.generated_end)
        elif held.finished:
            return Claim("finished")
        else:
            left_ms = self._leases.get(held.incarnation, 0) - now_ms
            if held.incarnation not in ("", incarnation) and left_ms > 0:
                return Claim("leased", held.attempt_id, left_ms, held.begun, held.generated_end)
            previous = held.attempt_id
        if ask.most_begun is not None and held.begun > ask.most_begun:
            held.begun, held.counted = ask.most_begun, ""
        is_held = state == "expired" and previous in (ask.held_as, ask.attempt_id)
        # Told twice, or taken again by who has it, it enters once.
        is_again = is_held and held.counted == (previous if ask.purpose == "take" else ask.attempt_id)
        counted = is_again or (ask.purpose == "begin" and (state == "fresh" or is_held))
        answer = Claim(state, previous, 0, held.begun, held.generated_end, counted)
        held.incarnation, held.attempt_id = incarnation, ask.attempt_id
        if counted:
            held.begun, held.counted = held.begun + (not is_again), ask.attempt_id
        return answer

    def renew(self, incarnation: str, now_ms: int) -> bool:
        stood = self._leases.get(incarnation, 0) > now_ms
        self._leases[incarnation] = now_ms + self.lease_ms
        return stood

    def finish(self, incarnation: str, mark: FinishClaim) -> None:
        held = self._held.get(mark.claim_id)
        if held is not None and held.incarnation == incarnation:
            held.incarnation, held.finished = "", True

    def release(self, incarnation: str, mark: ReleaseClaim) -> None:
        held = self._held.get(mark.claim_id)
        if held is not None and (held.incarnation, held.attempt_id) == (incarnation, mark.attempt_id):
            held.incarnation = ""
            if mark.uncount:
                held.begun, held.counted = held.begun - 1, ""

    def resign(self, incarnation: str) -> None:
        self._leases.pop(incarnation, None)
