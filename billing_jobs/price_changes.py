"""Changes of prices: what a new catalogue would change, what that would have cost, and the rows that make it so.

A price holds from a moment on, for what is accepted then or later; what was accepted before keeps its price. So a
change begins now or later, and no change may begin before one that was already made. A model without any price has its
first one from the beginning, and what waits in suspense is charged by it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from billing_jobs.pricing import PriceBook, PriceRow, TokenCounts, cost_of


class PriceRefused(ValueError):
    """A change that cannot be made; the message says why, in words for the operator."""


@dataclass(frozen=True, slots=True)
class PriceChange:
    """`before` None: the model's first price."""

    before: PriceRow | None
    after: PriceRow


@dataclass(frozen=True, slots=True)
class PricePlan:
    """What would be changed, by the catalogue of prices as it was at `version`."""

    version: int
    changes: tuple[PriceChange, ...]


def plan(
    wanted: Iterable[PriceRow], known: Sequence[PriceRow], version: int, valid_from_ms: int, now_ms: int
) -> PricePlan:
    """Of `wanted` only the terms count. Raises PriceRefused."""
    if valid_from_ms < now_ms:
        raise PriceRefused("a price cannot begin in the past: what was accepted then has its price")
    book = PriceBook(known)
    last = {row.model: row for row in sorted(known, key=lambda row: row.valid_from_ms)}
    changes = []
    for row in wanted:
        before = book.at(row.model, valid_from_ms)
        if row.model not in last:
            changes.append(PriceChange(None, row.starting_at(0)))
        elif before is None or not before.same_terms(row):
            later = last[row.model]
            if later.valid_from_ms >= valid_from_ms:
                raise PriceRefused(
                    f"{row.model}: {later.price_id} begins at that time or after it; a change begins after the last one"
                )
            changes.append(PriceChange(before, row.starting_at(valid_from_ms)))
    return PricePlan(version, tuple(changes))


@dataclass(frozen=True, slots=True)
class Comparison:
    """In pico-currency: what some usage costs by the price before, and by the one after."""

    before_pico: int
    after_pico: int


def compare(planned: PricePlan, used: Mapping[str, TokenCounts]) -> list[Comparison]:
    """Each change over what was used of its model, in their order."""
    nothing = TokenCounts(0, 0, 0, 0)
    return [
        Comparison(
            0 if change.before is None else cost_of(used.get(change.after.model, nothing), change.before),
            cost_of(used.get(change.after.model, nothing), change.after),
        )
        for change in planned.changes
    ]
