"""Which price is in force, and what a usage line costs by it: integers, from prices that are only ever appended.

The unit is the pico-currency (10⁻¹² of a dollar or a euro). A line's cost is a sum of integer products and nothing is
rounded.

A price is of a model, for all that use it or for some (`PriceScope`). Of those in force when a request was accepted the
most specific one is charged, whole: one line has one price, which names all classes of tokens.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from schemas.billing_rules import BILLING_RULE_VERSION
from schemas.usage import UsageEvent

MAX_USES_KNOWN = 65_536
"""Combinations of what was used whose prices are remembered; beyond, all are looked up anew."""
ChargeState = Literal["priced", "not_billable", "suspense"]


class PriceScope(NamedTuple):
    """What a price is for, or what was used, where everything is named. Empty: whatever it is.

    Of two scopes that fit one use the more specific one names the tenant; where both do, or neither, it names the
    endpoint; then the lane; then the region (`specificity`, in which the former outweighs all that come after it). Two
    that name the same dimensions and fit the same use are one scope: there are no ties.

    A version of a model is a model of its own, with its own name, which is what answers and what is charged; a family
    is an alias, which may come to stand for another version and has no price.
    """

    model: str
    tenant_id: str = ""
    endpoint: str = ""
    lane: str = ""
    region: str = ""

    @property
    def specificity(self) -> int:
        return bool(self.tenant_id) << 3 | bool(self.endpoint) << 2 | bool(self.lane) << 1 | bool(self.region)

    def within(self, specificity: int) -> "PriceScope":
        """Itself, where only what is of `specificity` is named."""
        return PriceScope(
            self.model, self.tenant_id if specificity & 8 else "", self.endpoint if specificity & 4 else "",
            self.lane if specificity & 2 else "", self.region if specificity & 1 else "",
        )  # fmt: skip

    def __str__(self) -> str:
        return self.model + self.named()

    def named(self) -> str:
        """Its dimensions behind the model, as price ids have them."""
        return "".join(f"/{name}={value}" for name, value in zip(self._fields[1:], self[1:], strict=True) if value)


@dataclass(frozen=True)
class PriceRow:
    """A row of `prices`, in pico per token. It holds from `valid_from_ms` until the next row of its scope starts.

    `withdrawn`: from then on its scope has no price of its own, and the next less specific one holds.
    """

    model: str
    currency: str
    valid_from_ms: int
    uncached_input_pico: int
    cached_input_pico: int
    output_pico: int
    reasoning_pico: int
    tenant_id: str = ""
    endpoint: str = ""
    lane: str = ""
    region: str = ""
    withdrawn: bool = False

    @property
    def scope(self) -> PriceScope:
        return PriceScope(self.model, self.tenant_id, self.endpoint, self.lane, self.region)

    @cached_property
    def price_id(self) -> str:
        """Unique: no dimension has an `@`, so the last one stands behind the model."""
        return f"{self.model}@{self.valid_from_ms}{self.scope.named()}"

    def same_terms(self, other: "PriceRow") -> bool:
        """Equal in all but their start."""
        return self.starting_at(0) == other.starting_at(0)

    def starting_at(self, valid_from_ms: int) -> "PriceRow":
        return replace(self, valid_from_ms=valid_from_ms)


@dataclass(frozen=True, slots=True)
class Charge:
    """`currency` and `price_id` are empty where no price is known."""

    state: ChargeState
    cost_pico: int
    currency: str
    price_id: str


class PriceBook:
    """Looks up the price in force. Of two rows of a scope that start together, the one that comes first counts.

    Used from one thread: what was looked up once is found by one search in time afterwards.
    """

    def __init__(self, rows: Iterable[PriceRow]) -> None:
        by_start: dict[tuple[PriceScope, int], PriceRow] = {}
        for row in rows:
            by_start.setdefault((row.scope, row.valid_from_ms), row)
        self._of_scopes: dict[PriceScope, _Timeline] = {}
        kinds: dict[str, set[int]] = {}
        for (scope, start_ms), row in sorted(by_start.items(), key=lambda each: each[0]):
            starts, of_scope = self._of_scopes.setdefault(scope, ([], []))
            starts.append(start_ms)
            of_scope.append(row)
            kinds.setdefault(scope.model, set()).add(scope.specificity)
        self._most_specific_first = {model: sorted(found, reverse=True) for model, found in kinds.items()}
        self._of_uses: dict[PriceScope, _Timeline] = {}

    def at(self, used: PriceScope, accepted_at_ms: int) -> PriceRow | None:
        """The price of what was used by a request accepted then; None when there is none."""
        return _found(self._known_timeline(used), accepted_at_ms)

    def at_each(
        self, used: Sequence[tuple[str, str, str, str, str]], accepted_at_ms: Sequence[int]
    ) -> list[PriceRow | None]:
        """As `at`, of many; what was used are a PriceScope's fields. Quick where few things were used, at whose price
        nothing changed meanwhile.
        """
        if not used:
            return []
        timelines = {each: self._known_timeline(PriceScope(*each)) for each in set(used)}
        first_ms, last_ms = min(accepted_at_ms), max(accepted_at_ms)
        if all(bisect_right(starts, first_ms) == bisect_right(starts, last_ms) for starts, _ in timelines.values()):
            steady = {each: _found(timeline, first_ms) for each, timeline in timelines.items()}
            return list(map(steady.__getitem__, used))
        return [_found(timelines[each], at_ms) for each, at_ms in zip(used, accepted_at_ms, strict=True)]

    def of(self, scope: PriceScope, at_ms: int) -> PriceRow | None:
        """What `scope` itself has then, also where that is withdrawn; None before its first row."""
        return _found(self._of_scopes.get(scope, _NEVER), at_ms)

    def _known_timeline(self, used: PriceScope) -> "_Timeline":
        timeline = self._of_uses.get(used)
        if timeline is None:
            if len(self._of_uses) >= MAX_USES_KNOWN:
                self._of_uses.clear()
            timeline = self._of_uses[used] = self._timeline(used)
        return timeline

    def _timeline(self, used: PriceScope) -> "_Timeline":
        """Whenever the price of any scope that fits changes, the most specific one that is in force then."""
        is_named = used.specificity
        fitting = [
            self._of_scopes[scope]
            for specificity in self._most_specific_first.get(used.model, ())
            if not specificity & ~is_named and (scope := used.within(specificity)) in self._of_scopes
        ]
        starts = sorted({start_ms for of_scope, _ in fitting for start_ms in of_scope})
        return starts, [_first_in_force(fitting, at_ms) for at_ms in starts]


_Timeline = tuple[list[int], list[PriceRow | None]]
"""From each of these moments on, until the next one, this."""
_NEVER: _Timeline = ([], [])


def _found(timeline: _Timeline, at_ms: int) -> PriceRow | None:
    starts, rows = timeline
    index = bisect_right(starts, at_ms)
    return rows[index - 1] if index else None


def _first_in_force(timelines: Iterable[_Timeline], at_ms: int) -> PriceRow | None:
    found = (_found(timeline, at_ms) for timeline in timelines)
    return next((row for row in found if row is not None and not row.withdrawn), None)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """By class, disjoint."""

    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int


def cost_of(used: TokenCounts | UsageEvent, price: PriceRow) -> int:
    """Pico-currency for all accepted tokens, whether billable or not."""
    return (
        used.uncached_input_tokens * price.uncached_input_pico
        + used.cached_input_tokens * price.cached_input_pico
        + used.output_tokens * price.output_pico
        + used.reasoning_tokens * price.reasoning_pico
    )


def charge(event: UsageEvent, book: PriceBook) -> Charge:
    """What the event costs. Billable usage without a known price or rule is held in suspense, never charged as zero."""
    scope = event.scope
    used = PriceScope(event.model, scope.tenant_id, event.endpoint, event.lane, scope.region)
    price = book.at(used, event.accepted_at_ms)
    currency, price_id = (price.currency, price.price_id) if price else ("", "")
    if not event.billable:
        return Charge("not_billable", 0, currency, price_id)
    if price is None or event.billing_rule_version > BILLING_RULE_VERSION:
        return Charge("suspense", 0, currency, price_id)
    return Charge("priced", cost_of(event, price), currency, price_id)
