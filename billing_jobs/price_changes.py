"""Changes of prices: what is to be changed, what that would have cost, and the rows that make it so.

A price holds from a moment on, for what is accepted then or later; what was accepted before keeps its price. So a
change begins later than every process may still charge by what it knew (`PRICES_SETTLE_MS`), and no change of a scope
may begin before one that was already made of it. None is called off: where what is asked would not last because of one
that is still to come, it is refused, also if it is what holds by now. A model without any price has its first one from
the beginning, and what waits in suspense is charged by it.

A change counts only if it was recorded well before it begins (`RECORDED_AHEAD_MS`): whoever stood still on the way to
the tables, or was answered by them too late, has changed nothing. So nothing is accepted after the begin of a change
and charged by who could not know it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from billing_jobs.pricing import (
    PRICES_SETTLE_MS,
    PriceBook,
    PriceRow,
    PriceScope,
    TokenCounts,
    cost_of,
    withdrawal,
)

RECORDED_AHEAD_MS = PRICES_SETTLE_MS // 2
"""Half of the time is for making a change; the other for what clocks differ, and until it is seen."""


class PriceRefused(ValueError):
    """A change that cannot be made; the message says why, in words for the operator."""


@dataclass(frozen=True, slots=True)
class PriceChange:
    """`before`: what holds until then for what is of the scope of `after`; None: the model's first price."""

    before: PriceRow | None
    after: PriceRow


@dataclass(frozen=True, slots=True)
class PricePlan:
    """What would be changed from `begins_ms` on, by the prices as they were at `version`."""

    version: int
    begins_ms: int
    changes: tuple[PriceChange, ...]

    @property
    def rows(self) -> list[PriceRow]:
        return [change.after for change in self.changes]


def plan(
    wanted: Iterable[PriceRow], known: Sequence[PriceRow], version: int, valid_from_ms: int, now_ms: int,
    valid_until_ms: int | None = None,
) -> PricePlan:  # fmt: skip
    """Of `wanted` only scopes and terms count. From `valid_until_ms` on, if given, they have no price of their own.
    Raises PriceRefused.
    """
    check_begin(valid_from_ms, now_ms)
    if valid_until_ms is not None and valid_until_ms <= valid_from_ms:
        raise PriceRefused("a price cannot end before it begins")
    asked = list(wanted)
    scopes = {row.scope for row in asked}
    if len(scopes) < len(asked):
        raise PriceRefused("prices: one is named twice, with the same model, tenant, endpoint, lane and region")
    book = PriceBook(known)
    known_of: dict[PriceScope, list[PriceRow]] = {}
    for row in sorted(known, key=lambda row: row.valid_from_ms):
        of_scope = known_of.setdefault(row.scope, [])
        if not of_scope or of_scope[-1].valid_from_ms < row.valid_from_ms:  # Of two that begin together the first.
            of_scope.append(row)
    changes: list[PriceChange] = []
    for row in asked:
        scope, of_scope = row.scope, known_of.get(row.scope, [])
        if not scope.specificity:
            new = _of_all(row, book, bool(of_scope), valid_from_ms, valid_until_ms)
        elif PriceScope(row.model) in known_of or PriceScope(row.model) in scopes:
            new = _of_some(row, of_scope, book, valid_from_ms, valid_until_ms)
        else:
            raise PriceRefused(
                f"{scope}: no model {row.model!r} is known by a price that holds for all: a new one needs that first, "
                "or the name is wrong"
            )
        _check_lasts(row, of_scope, new, valid_from_ms, valid_until_ms)
        changes += new
    return PricePlan(version, valid_from_ms, tuple(changes))


def _check_lasts(
    row: PriceRow, of_scope: Sequence[PriceRow], new: Sequence[PriceChange], begins_ms: int, ends_ms: int | None
) -> None:
    """Raises PriceRefused where what is known of the scope would change what is asked, or comes after what is new."""
    for later in reversed(of_scope):
        ends_it = ends_ms is not None and later.valid_from_ms >= ends_ms
        is_asked = later.withdrawn if ends_it else later.same_terms(row)
        is_other = later.valid_from_ms > begins_ms and not is_asked
        if is_other or (new and later.valid_from_ms >= new[0].after.valid_from_ms):
            raise PriceRefused(
                f"{row.scope}: {later.price_id} begins at that time or after it, and cannot be called off; a change"
                " begins after the last one"
            )


def check_begin(valid_from_ms: int, now_ms: int) -> None:
    """Raises PriceRefused."""
    if valid_from_ms < now_ms:
        raise PriceRefused("a price cannot begin in the past: what was accepted then has its price")
    if valid_from_ms < now_ms + PRICES_SETTLE_MS:
        raise PriceRefused(
            f"a price cannot begin within {PRICES_SETTLE_MS // 1_000} s: what is accepted until then may be charged"
            " before every process knows it"
        )


def check_recorded(begins_ms: Iterable[int], recorded_at_ms: int) -> None:
    """Raises PriceRefused where a change of prices that begin then is void. The first price of a model never is."""
    first_ms = min(filter(None, begins_ms), default=None)
    if first_ms is not None and recorded_at_ms > first_ms - RECORDED_AHEAD_MS:
        raise PriceRefused(
            f"the change is void, and nothing was changed: it came to the tables {first_ms - recorded_at_ms} ms before"
            f" it begins, and {RECORDED_AHEAD_MS // 1_000} s are needed; plan again, and look at the clocks"
        )


def _of_all(
    row: PriceRow, book: PriceBook, has_one: bool, begins_ms: int, ends_ms: int | None
) -> list[PriceChange]:  # fmt: skip
    if row.withdrawn or ends_ms is not None:
        raise PriceRefused(f"{row.model}: what holds for all has no end, or nothing would be charged; change it")
    if not has_one:
        return [PriceChange(None, row.starting_at(0))]
    before = book.at(row.scope, begins_ms)
    return [] if before is not None and before.same_terms(row) else [PriceChange(before, row.starting_at(begins_ms))]


def _of_some(
    row: PriceRow, of_scope: Sequence[PriceRow], book: PriceBook, begins_ms: int, ends_ms: int | None
) -> list[PriceChange]:  # fmt: skip
    own = book.of(row.scope, begins_ms)
    is_so = row.withdrawn if own is None else own.same_terms(row)
    changes = [] if is_so else [PriceChange(book.at(row.scope, begins_ms), row.starting_at(begins_ms))]
    if ends_ms is not None and not row.withdrawn and (end := withdrawal(row.scope, ends_ms)) not in of_scope:
        changes.append(PriceChange(row, end))
    return changes


@dataclass(frozen=True, slots=True)
class Comparison:
    """In pico, by currency: what some usage costs by the prices before, and by those after."""

    before_pico: dict[str, int] = field(default_factory=dict)
    after_pico: dict[str, int] = field(default_factory=dict)


def compare(planned: PricePlan, known: Sequence[PriceRow], used: Mapping[PriceScope, TokenCounts]) -> list[Comparison]:
    """Each change over what was used that it gives another price, in their order, as if it had been used at its begin.
    What was used counts once: where the change is whose price it gets, or that withdraws the one it had.
    """
    before, after = PriceBook(known), PriceBook([*known, *planned.rows])
    found = [Comparison() for _ in planned.changes]
    places = {change.after.scope: place for place, change in reversed(list(enumerate(planned.changes)))}
    for what, tokens in used.items():
        was, becomes = before.at(what, planned.begins_ms), after.at(what, planned.begins_ms)
        if was == becomes:
            continue
        changed = [places[row.scope] for row in (becomes, was) if row is not None and row.scope in places]
        for row, sums in ((was, found[changed[0]].before_pico), (becomes, found[changed[0]].after_pico)):
            if row is not None:
                sums[row.currency] = sums.get(row.currency, 0) + cost_of(tokens, row)
    return found
