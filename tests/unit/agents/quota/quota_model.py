"""What quota means, in plain Python: the model that the Lua script is held against, and a store for tests of stages."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from agents.quota.beside import NOTHING, Beside, Held, Spent, Sums, Told
from agents.quota.port import (
    OUTCOME_KEEP_MS,
    RETRY_AFTER_MS,
    Decided,
    Finished,
    NotYet,
    Outcome,
    Overdue,
    Placed,
    QuotaUnavailable,
    Refunded,
    Refusal,
    Reserved,
)
from agents.quota.store import REFUSALS_KEPT, Restored
from schemas.admission import Decision
from schemas.endings import ENDINGS, EndingCode
from schemas.request import Lane
from streams.directory import Limits

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


@dataclass
class Reservation:
    state: str
    tokens: int
    deadline_ms: int
    expires_ms: int
    decision: Decision | None = None
    lane: Lane = Lane.STANDARD
    choices: set[int] = field(default_factory=set)
    places: dict[int, Decision | None] = field(default_factory=dict)


@dataclass
class TenantModel:
    """One tenant. Time only moves when `now_ms` does."""

    limits: Limits
    now_ms: int
    keep_ms: int = OUTCOME_KEEP_MS
    at_ms: int | None = None
    backlog: int = 0
    tokens: int = 0
    carry: int = 0
    reservations: dict[str, Reservation] = field(default_factory=dict)
    refusals_kept: int = REFUSALS_KEPT
    refused: tuple[dict[str, EndingCode], dict[str, EndingCode]] = field(default_factory=lambda: ({}, {}))
    cancelled: set[str] = field(default_factory=set)
    """Of these more are known than a test has."""
    taking: int = 0

    def advance(self) -> None:
        per_minute = self.limits.tokens_per_minute
        if self.at_ms is None:
            self.at_ms, self.tokens = self.now_ms, per_minute
        elapsed = min(self.now_ms - self.at_ms, HOUR_MS)
        self.at_ms = self.now_ms
        self.backlog = max(self.backlog - elapsed * self.limits.requests_per_minute, 0)
        self.carry += elapsed * (per_minute % MINUTE_MS)
        self.tokens += elapsed * (per_minute // MINUTE_MS) + self.carry // MINUTE_MS
        self.carry %= MINUTE_MS
        self._cap()
        self.reservations = {id_: r for id_, r in self.reservations.items() if r.expires_ms > self.now_ms}

    def _cap(self) -> None:
        if self.tokens >= self.limits.tokens_per_minute:
            self.tokens, self.carry = self.limits.tokens_per_minute, 0

    def _gain_ms(self, amount: int, per_minute: int) -> int:
        if amount <= 0:
            return 0
        return amount // per_minute * MINUTE_MS + math.ceil(amount % per_minute * MINUTE_MS / per_minute)

    @property
    def active(self) -> set[str]:
        return {id_ for id_, reservation in self.reservations.items() if reservation.state == "reserved"}

    def _active_like(self, lane: Lane) -> int:
        batch = lane is Lane.BATCH
        return sum((self.reservations[id_].lane is Lane.BATCH) == batch for id_ in self.active)

    def _refused_as(self, response_id: str) -> EndingCode | None:
        if response_id in self.reservations:
            return None
        if response_id in self.cancelled:
            return EndingCode.CANCELLED
        return self.refused[0].get(response_id) or self.refused[1].get(response_id)

    def figures(self) -> dict[str, int]:
        limits = self.limits
        return {
            "requests_limit": limits.requests_per_minute,
            "requests_remaining": max(limits.requests_per_minute - math.ceil(self.backlog / MINUTE_MS), 0),
            "requests_reset_ms": math.ceil(self.backlog / limits.requests_per_minute),
            "tokens_limit": limits.tokens_per_minute,
            "tokens_remaining": max(min(self.tokens, limits.tokens_per_minute), 0),
            "tokens_reset_ms": self._gain_ms(limits.tokens_per_minute - self.tokens, limits.tokens_per_minute),
        }

    def stored(self, response_id: str) -> Outcome | None:
        """What stands; None where nothing does."""
        known = response_id in self.reservations or self._refused_as(response_id)
        return self._stored(response_id) if known else None

    def _stored(self, response_id: str) -> Outcome:
        if code := self._refused_as(response_id):
            figures = self.figures() if code.startswith("rate_limited") else {}
            return Refusal(
                code=code, retry_after_ms=RETRY_AFTER_MS if ENDINGS[code].retryable else None, limits=figures
            )
        reservation = self.reservations[response_id]
        if reservation.state == "refunded":
            return Refunded()
        if reservation.state == "settled":
            return Finished()
        if reservation.decision is not None:
            return Decided(reservation.decision, reservation.tokens)
        return Reserved(reservation.tokens)

    def _add(self, response_id: str, tokens: int, deadline_ms: int, lane: Lane) -> Reservation:
        lifetime = max(deadline_ms - self.now_ms, 0) + self.keep_ms
        reservation = Reservation("reserved", tokens, deadline_ms, self.now_ms + lifetime, lane=lane)
        self.reservations[response_id] = reservation
        return reservation

    def _request_wait_ms(self, kept: int = 0) -> int:
        per_minute = self.limits.requests_per_minute
        return max(math.ceil((self.backlog + MINUTE_MS - (per_minute - kept) * MINUTE_MS) / per_minute), 0)

    def _refusal(self, code: EndingCode, wait_ms: int) -> Refusal:
        message = f"{ENDINGS[code].message.removesuffix('.')} for this tenant."
        return Refusal(
            code=code, message=message, retry_after_ms=wait_ms, limits=self.figures(), limited="tenant"
        )  # fmt: skip

    def look(self, response_id: str) -> Outcome | None:
        self.advance()
        if response_id in self.reservations or self._refused_as(response_id):
            return self._stored(response_id)
        if not self._request_wait_ms():
            return None
        refusal = self._refusal(EndingCode.RATE_LIMITED_REQUESTS, self._request_wait_ms())
        self.remember_refusal(response_id, refusal)
        return refusal

    def lacks(self, tokens: int, lane: Lane, *, may_wait: bool = False) -> tuple[EndingCode, int] | None:
        """Why there is no room now, and for how long; None where there is."""
        limits = self.limits
        kept_requests = limits.requests_per_minute // 2 if may_wait else 0
        kept_of_large = (limits.tokens_per_minute - tokens) * 2 // 3
        kept = max(min(limits.tokens_per_minute // 2, kept_of_large), 0) if may_wait else 0
        if wait_ms := self._request_wait_ms(kept_requests):
            return EndingCode.RATE_LIMITED_REQUESTS, wait_ms
        if tokens > self.tokens - kept:
            wait_ms = self._gain_ms(tokens + kept - self.tokens, limits.tokens_per_minute)
            return EndingCode.RATE_LIMITED_TOKENS, wait_ms
        if self._active_like(lane) >= (limits.concurrent_jobs if lane is Lane.BATCH else limits.concurrent_responses):
            return EndingCode.RATE_LIMITED_CONCURRENCY, 1_000
        return None

    def reserve(
        self,
        response_id: str,
        tokens: int,
        deadline_ms: int,
        lane: Lane = Lane.STANDARD,
        *,
        decision: Decision | None = None,
        may_wait: bool = False,
    ) -> Outcome | NotYet:
        self.advance()
        if response_id in self.reservations or self._refused_as(response_id):
            return self._set_route(response_id, decision)
        refused = self.lacks(tokens, lane, may_wait=may_wait)
        if refused:
            refusal = self._refusal(*refused)
            if may_wait:
                return NotYet(refusal)
            self.remember_refusal(response_id, refusal)
            return refusal
        self.backlog += MINUTE_MS
        self.tokens -= tokens
        self._add(response_id, tokens, deadline_ms, lane)
        return self._taken(response_id, decision)

    def decide(self, response_id: str, decision: Decision, tokens: int, deadline_ms: int) -> Outcome:
        self.advance()
        if response_id not in self.reservations and not self._refused_as(response_id):
            self.tokens -= tokens
            self._add(response_id, tokens, deadline_ms, decision.lane)
            return self._taken(response_id, decision)
        return self._set_route(response_id, decision)

    def place(self, response_id: str, move: int, place: Decision | None) -> Placed | None:
        self.advance()
        reservation = self.reservations.get(response_id)
        if reservation is None or reservation.state != "reserved" or reservation.decision is None:
            return None
        return Placed(reservation.places.setdefault(move, place))

    def _taken(self, response_id: str, decision: Decision | None) -> Outcome:
        outcome = self._set_route(response_id, decision)
        assert isinstance(outcome, Reserved | Decided)
        return replace(outcome, limits=self.figures())

    def _set_route(self, response_id: str, decision: Decision | None) -> Outcome:
        reservation = self.reservations.get(response_id)
        if decision is None or reservation is None or reservation.state != "reserved" or reservation.decision:
            return self._stored(response_id)
        reservation.decision = decision
        return Decided(decision, reservation.tokens, is_new=True)

    def remember_refusal(self, response_id: str, refusal: Refusal) -> None:
        """Time makes no difference here: by then nothing but a refusal could come of it."""
        self.reservations.pop(response_id, None)
        if refusal.code is EndingCode.CANCELLED:
            self.cancelled.add(response_id)
            return
        if len(self.refused[self.taking]) >= self.refusals_kept / 2:
            self.taking = 1 - self.taking
            self.refused[self.taking].clear()
        self.refused[self.taking][response_id] = refusal.code

    def refuse(self, response_id: str, refusal: Refusal, deadline_ms: int, *, spends_request: bool = False) -> Outcome:
        self.advance()
        if code := self._refused_as(response_id):
            return refusal if refusal.code is code else self._stored(response_id)
        reservation = self.reservations.get(response_id)
        if reservation is None:
            self.backlog += MINUTE_MS if spends_request and not self._request_wait_ms() else 0
            self.remember_refusal(response_id, refusal)
            return refusal
        if reservation.state in ("reserved", "refunded") and reservation.decision is None:
            if reservation.state == "reserved":
                self.tokens += reservation.tokens
                self._cap()
            self.remember_refusal(response_id, refusal)
            return refusal
        if reservation.state == "refunded" and reservation.decision is not None:
            return Decided(reservation.decision, 0)
        return self._stored(response_id)

    def settle(self, response_id: str, choice: int, used: int) -> str:
        self.advance()
        if self._refused_as(response_id):
            return "refused"
        reservation = self.reservations.get(response_id)
        if reservation is None:
            return "unknown"
        if choice in reservation.choices:
            return "duplicate"
        reservation.choices.add(choice)
        if reservation.state == "reserved":
            self.tokens += reservation.tokens
        self.tokens -= used
        reservation.state = "settled"
        self._cap()
        return "settled"

    def restore(self, restored: Restored) -> bool:
        self.advance()
        reservation = self.reservations.get(restored.response_id)
        if self._refused_as(restored.response_id):
            return False
        if reservation is not None and reservation.state == "reserved" and restored.ended and restored.decision:
            self.tokens += reservation.tokens
            self._cap()
            del self.reservations[restored.response_id]
            reservation = None
        if reservation is None and restored.decision is not None:
            added = self._add(restored.response_id, restored.tokens, restored.deadline_ms, restored.decision.lane)
            if restored.ended:
                added.state = "settled"
            else:
                added.decision = restored.decision
                self.tokens -= restored.tokens
            return True
        if reservation is not None and (reservation.decision is not None or reservation.state == "settled"):
            return False
        if restored.decision is not None:
            assert reservation is not None
            reservation.decision = restored.decision
            return True
        if reservation is not None and reservation.state == "reserved":
            self.tokens += reservation.tokens
            self._cap()
        assert restored.refusal is not None
        self.remember_refusal(restored.response_id, restored.refusal)
        return True

    def refund(self, response_id: str) -> bool:
        self.advance()
        reservation = self.reservations.get(response_id)
        if reservation is None or reservation.state != "reserved":
            return False
        self.tokens += reservation.tokens
        reservation.state, reservation.expires_ms = "refunded", self.now_ms + self.keep_ms
        self._cap()
        return True


class ModelQuota:
    """A `QuotaStore` of models. `failures`: so many calls raise QuotaUnavailable first."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self.tenants: dict[str, TenantModel] = {}
        self.failures = 0
        self.error: type[QuotaUnavailable] = QuotaUnavailable
        self.beside: dict[str, Beside] = {}
        self.held: dict[str, Held] = {}
        """Of one tenant; put here by who tells a story of it."""
        self.counted: set[tuple[str, int]] = set()
        self.counted_to: Counter[tuple[int, str]] = Counter()
        """Up to which offset, by partition and log."""
        self.told: defaultdict[tuple[str, str, str, int], Counter[str]] = defaultdict(Counter)
        self.noted: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)

    def _raise_if_away(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error("scripted")

    def _tenant(self, tenant_id: str, limits: Limits) -> TenantModel:
        self._raise_if_away()
        tenant = self.tenants.setdefault(tenant_id, TenantModel(limits, self.now_ms))
        tenant.limits, tenant.now_ms = limits, self.now_ms
        return tenant

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
        self.beside[response_id] = beside
        tenant = self._tenant(tenant_id, limits)
        return tenant.reserve(response_id, tokens, deadline_ms, lane, decision=decision, may_wait=may_wait)

    async def look(
        self, tenant_id: str, limits: Limits, response_id: str, *, deadline_ms: int, beside: Beside = NOTHING
    ) -> Outcome | None:
        return self._tenant(tenant_id, limits).look(response_id)

    async def decide(
        self, tenant_id: str, limits: Limits, response_id: str, decision: Decision, *, tokens: int, deadline_ms: int,
        beside: Beside = NOTHING,
    ) -> Outcome:  # fmt: skip
        return self._tenant(tenant_id, limits).decide(response_id, decision, tokens, deadline_ms)

    async def place(
        self, tenant_id: str, limits: Limits, response_id: str, move: int, place: Decision | None
    ) -> Placed | None:
        return self._tenant(tenant_id, limits).place(response_id, move, place)

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
        return self._tenant(tenant_id, limits).refuse(response_id, refusal, deadline_ms, spends_request=spends_request)

    async def settle(
        self, tenant_id: str, limits: Limits, response_id: str, choice: int, used_tokens: int,
        spent: Spent | None = None,
    ) -> str:  # fmt: skip
        result = self._tenant(tenant_id, limits).settle(response_id, choice, used_tokens)
        is_new = (response_id, choice) not in self.counted
        self.counted.add((response_id, choice))
        if spent is not None and is_new:
            self.held.pop(response_id, None)
            place = (spent.partition, spent.log_id)
            self.counted_to[place] = max(self.counted_to[place], spent.offset + 1)
            of = (tenant_id, str(spent.month), spent.currency)
            for account in ("tenant", f"project:{spent.project}", f"key:{spent.key}"):
                self.told[*of, spent.partition][account] += spent.nano
        return result

    async def sums(self, tenant_id: str, month: str, currency: str) -> Sums:
        sums = Sums(told=self.noted[tenant_id, month, currency])
        for (*of, _), accounts in self.told.items():
            if of == [tenant_id, month, currency]:
                for account, nano in accounts.items():
                    sums.accounts[account] = replace(sums.of(account), spent=sums.of(account).spent + nano)
        for held in self.held.values():
            if (held.month, held.currency) == (month, currency):
                for account in held.accounts:
                    sums.accounts[account] = replace(sums.of(account), held=sums.of(account).held + held.nano)
        return sums

    async def told_by(self, tenant_id: str, month: str, currency: str, partition: int, log_id: str) -> Told:
        self._raise_if_away()
        nano = dict(self.told[tenant_id, month, currency, partition])
        return Told(nano, frozenset(self.noted[tenant_id, month, currency]), self.counted_to[partition, log_id])

    async def note_told(self, tenant_id: str, month: str, currency: str, alert: str) -> None:
        self.noted[tenant_id, month, currency].add(alert)

    async def holds(self, tenant_id: str) -> dict[str, Held]:
        return dict(self.held)

    async def refund(self, tenant_id: str, limits: Limits, response_id: str, *, is_forgotten: bool = False) -> bool:
        if is_forgotten:
            self.held.pop(response_id, None)
        return self._tenant(tenant_id, limits).refund(response_id)

    async def overdue(self, tenant_id: str, before_ms: int, limit: int, *, skip: int = 0) -> list[Overdue]:
        tenant = self.tenants.get(tenant_id)
        if tenant is None:
            return []
        due = [(r.deadline_ms, id_) for id_, r in tenant.reservations.items() if id_ in tenant.active]
        return [
            Overdue(id_, deadline_ms, tenant.reservations[id_].decision)
            for deadline_ms, id_ in sorted(due)[skip : skip + limit]
            if deadline_ms <= before_ms
        ]
