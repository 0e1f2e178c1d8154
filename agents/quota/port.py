"""What admission and settlement ask of a quota store. What it means stands in `agents.quota.store`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from agents.quota.beside import NOTHING, Beside, Held, Spent, Sums, Told
from schemas.admission import Decision
from schemas.endings import EndingCode
from schemas.request import Lane
from streams.directory import Limits
from streams.topics import LONGEST_OUTAGE_MS

OUTCOME_KEEP_MS = LONGEST_OUTAGE_MS + 900_000
"""How long beyond its deadline a store knows how a response ended. The quarter of an hour is for starting again and for
catching up."""
RETRY_AFTER_MS = 1_000
"""Advice where nothing is known of how long it will take."""


class Refusal(BaseModel):
    """Why a response is not admitted; the part of an `Ending` that is worth storing."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    code: EndingCode
    message: str = ""
    param: str | None = None
    retry_after_ms: int | None = None
    limits: dict[str, int] = Field(default_factory=dict)
    limited: str = ""
    """Whose limit or budget it is: `tenant`, `project:<id>`, `key:<id>` or `model:<name>`. Empty: nobody's."""
    held: bool = False
    """Of a budget: once what runs has ended, there may be room."""
    spent: bool = False
    """Of a budget: nothing of it is left."""
    month: str = ""
    """Of a budget: whose it is."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Tokens are held; nothing is decided yet.

    `limits` are the figures of this moment, where this very call took the tokens: for the client, and no part of what
    stands.
    """

    tokens: int
    limits: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """Tokens are held and the route is set. `is_new`: by this very call. `limits`: as of `Reserved`."""

    decision: Decision
    tokens: int
    is_new: bool = False
    limits: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a response was put with one of its moves; None: no place took it."""

    place: Decision | None


@dataclass(frozen=True, slots=True)
class NotYet:
    """There is no room now. Nothing is stored: ask again, after `refusal.retry_after_ms` or so.

    `refusal` is what somebody who cannot wait would be told.
    """

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Finished:
    """The response has ended and is settled: nothing is left to do for its request."""


@dataclass(frozen=True, slots=True)
class Refunded:
    """What was held was returned long after the deadline. Its ending may be missing: it can only be refused now."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A reservation that nobody has settled by its deadline."""

    response_id: str
    deadline_ms: int
    decision: Decision | None


Outcome = Reserved | Decided | Refusal | Refunded | Finished
"""What stands for a response."""


class QuotaUnavailable(Exception):
    """The store did not answer in time. The same call may be made again; it may also have taken effect."""


class EpochLost(QuotaUnavailable):
    """The store has lost its memory: nothing may be decided before it is rebuilt."""


class QuotaStore(Protocol):
    """Every method is atomic and idempotent per response id and raises QuotaUnavailable.

    What reads or notes money raises EpochLost like what decides: sums that were lost are never taken for nothing.
    """

    async def reserve(
        self,
        tenant_id: str,
        limits: Limits,
        response_id: str,
        *,
        tokens: int,
        deadline_ms: int,
        lane: Lane = Lane.STANDARD,
        decision: Decision | None = None,
        may_wait: bool = False,
        beside: Beside = NOTHING,
    ) -> Outcome | NotYet:
        """Takes from all limits and budgets or from none. The first outcome of an id stands.

        With `decision` the route is set in the same step, also where an earlier call reserved without one.
        """

    async def look(
        self, tenant_id: str, limits: Limits, response_id: str, *, deadline_ms: int, beside: Beside = NOTHING
    ) -> Outcome | None:
        """What stands, before work is spent on a new response: None if nothing does and the rate of requests has room.

        Takes nothing; where there is no room, that is the outcome.
        """

    async def decide(
        self,
        tenant_id: str,
        limits: Limits,
        response_id: str,
        decision: Decision,
        *,
        tokens: int,
        deadline_ms: int,
        beside: Beside = NOTHING,
    ) -> Outcome:
        """Stores the route unless one is stored, or the response was refused; returns what stands."""

    async def place(
        self, tenant_id: str, limits: Limits, response_id: str, move: int, place: Decision | None
    ) -> Placed | None:
        """Stores where a response goes with that move (None: no place takes it) unless that is stored.

        Returns what stands; None where nothing is held for the response, or no route is stored: it has ended.
        """

    async def refuse(
        self,
        tenant_id: str,
        limits: Limits,
        response_id: str,
        refusal: Refusal,
        *,
        deadline_ms: int,
        spends_request: bool = False,
        beside: Beside = NOTHING,
    ) -> Outcome:
        """Stores the refusal's code and returns what was held, unless a route is stored; returns what stands.

        That is the refusal (a bare code, if it is an earlier one with another), the route (then the ending belongs
        where it points), or `Finished`. With `spends_request` what held nothing counts as a request, where the rate has
        room for one.
        """

    async def settle(
        self, tenant_id: str, limits: Limits, response_id: str, choice: int, used_tokens: int,
        spent: Spent | None = None,
    ) -> str:  # fmt: skip
        """Turns what is held into what was used; debits when it was refunded before. Says what happened.

        What was `spent` is counted once for each response and choice, also where nothing is known of the response.
        """

    async def sums(self, tenant_id: str, month: str, currency: str) -> Sums:
        """How the tenant's money stands."""

    async def told_by(self, tenant_id: str, month: str, currency: str, partition: int, log_id: str) -> Told:
        """What that partition of `usage` has told, and which alerts stand on the log, as of one moment. `log_id`: of
        which log the offset is asked for.
        """

    async def note_told(self, tenant_id: str, month: str, currency: str, alert: str) -> None:
        """That an alert stands on the log."""

    async def holds(self, tenant_id: str) -> dict[str, Held]:
        """What is held of budgets, by response id."""

    async def refund(self, tenant_id: str, limits: Limits, response_id: str, *, is_forgotten: bool = False) -> bool:
        """Returns what is held. False when nothing was. Money of what was routed stays held, for what may be charged
        later, unless nobody knows it any more (`is_forgotten`).
        """

    async def overdue(self, tenant_id: str, before_ms: int, limit: int, *, skip: int = 0) -> list[Overdue]:
        """Reservations whose deadline lies before `before_ms`; at most `limit` after the first `skip`, oldest first."""
