"""What admission and settlement ask of a quota store. What it means stands in `agents.quota.store`."""

from typing import Protocol

from agents.quota.store import NotYet, Outcome, Overdue, Placed, Refusal
from schemas.admission import Decision
from schemas.request import Lane
from streams.directory import Limits


class QuotaStore(Protocol):
    """Every method is atomic and idempotent per response id and raises QuotaUnavailable."""

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
    ) -> Outcome | NotYet:
        """Takes from all limits or from none. The first outcome of an id stands.

        With `decision` the route is set in the same step, also where an earlier call reserved without one.
        """

    async def look(self, tenant_id: str, limits: Limits, response_id: str, *, deadline_ms: int) -> Outcome | None:
        """What stands, before work is spent on a new response: None if nothing does and the rate of requests has room.

        Takes nothing; where there is no room, that is the outcome.
        """

    async def decide(
        self, tenant_id: str, limits: Limits, response_id: str, decision: Decision, *, tokens: int, deadline_ms: int
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
    ) -> Outcome:
        """Stores the refusal's code and returns what was held, unless a route is stored; returns what stands.

        That is the refusal (a bare code, if it is an earlier one with another), the route (then the ending belongs
        where it points), or `Finished`. With `spends_request` what held nothing counts as a request, where the rate has
        room for one.
        """

    async def settle(self, tenant_id: str, limits: Limits, response_id: str, choice: int, used_tokens: int) -> str:
        """Turns what is held into what was used; debits when it was refunded before. Says what happened."""

    async def refund(self, tenant_id: str, limits: Limits, response_id: str) -> bool:
        """Returns what is held. False when nothing was."""

    async def overdue(self, tenant_id: str, before_ms: int, limit: int, *, skip: int = 0) -> list[Overdue]:
        """Reservations whose deadline lies before `before_ms`; at most `limit` after the first `skip`, oldest first."""
