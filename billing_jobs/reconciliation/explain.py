"""What differs, bill by bill, where the sums of a tenant's hour do. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from billing_jobs.reconciliation.figures import Figures, Gap, Item, Key, Placed, Source

MAX_SHOWN = 20
"""Differences of one tenant's hour; how many there are beyond them its sums tell."""

Elsewhere = Callable[[Key, Collection[str]], Mapping[str, Placed]]
"""Of a tenant's items by id, as the tables have them in whichever hour."""
IN_LOG: dict[Source, str] = {
    "usage": "the log", "delivered": "the log", "compute": "the log", "presence": "the log",
    "generated": "what was generated, counted again,", "hours": "the sum of its events",
}  # fmt: skip


class Difference(NamedTuple):
    """`what` is for people. `response_id` is empty where the hour is too large to say which."""

    source: Source
    tenant_id: str
    hour_ms: int
    response_id: str
    item_id: str
    what: str


def explain(gap: Gap, log: Iterable[Placed], tables: Iterable[Placed], elsewhere: Elsewhere) -> Iterator[Difference]:
    """`log`, `tables`: what each has in that hour. Nothing is given where both say the same after all: a record that
    the log holds twice is one bill, which may stand in the hour of either copy.
    """
    of_log, of_tables = _by_id(log), _by_id(tables)
    missing = [item_id for item_id in of_log if item_id not in of_tables]
    found = elsewhere(gap.key, missing) if missing else {}
    for item_id, placed in sorted(of_log.items()):
        other = of_tables.get(item_id) or found.get(item_id)
        if what := _what(gap.source, placed, other):
            yield _difference(gap, placed.item, what)
    for item_id, placed in sorted(of_tables.items()):
        if item_id not in of_log:
            where = f" (it names partition {placed.partition}, offset {placed.offset})" if placed.offset >= 0 else ""
            yield _difference(gap, placed.item, f"the tables have it and {IN_LOG[gap.source]} has not{where}")


def shown(differences: Iterable[Difference]) -> list[Difference]:
    """As many as are told of one hour."""
    return [*islice(differences, MAX_SHOWN)]


def unexplained(gap: Gap) -> Difference:
    """Of an hour whose items nobody has any more, or are too many."""
    return Difference(gap.source, gap.key.tenant_id, gap.key.hour_ms, "", "", told(gap.source, gap.log, gap.tables))


def told(source: Source, log: Figures, tables: Figures) -> str:
    def of(figures: Figures) -> str:
        return f"{figures.rows} rows, {figures.tokens} tokens, {figures.cost_pico} pico"

    beside = "the hour" if source == "hours" else "the tables"
    return f"{IN_LOG[source]} has {of(log)}, {beside} has {of(tables)}".replace("the tables has", "the tables have")


def _by_id(items: Iterable[Placed]) -> dict[str, Placed]:
    """Of several of one id, the one that counts."""
    best: dict[str, Placed] = {}
    for placed in items:
        known = best.get(placed.item.item_id)
        if known is None or placed.item.precedence > known.item.precedence:
            best[placed.item.item_id] = placed
    return best


def _what(source: Source, placed: Placed, other: Placed | None) -> str:
    """Empty where the tables say the same, or have another bill of that id that counts in its place."""
    if other is None:
        where = f" (partition {placed.partition}, offset {placed.offset})" if placed.offset >= 0 else ""
        return f"{IN_LOG[source]} has it{where} and the tables have not"
    if placed.item == other.item or placed.item.precedence < other.item.precedence:
        return ""
    if type(placed.item) is not type(other.item):
        return "it is of another kind"
    differing = (
        f"{name} is {ours!r} in {IN_LOG[source].rstrip(',')} and {theirs!r} in the tables"
        for name, ours, theirs in zip(placed.item._fields, placed.item, other.item, strict=True)
        if ours != theirs
    )
    return "; ".join(differing)


def _difference(gap: Gap, item: Item, what: str) -> Difference:
    return Difference(gap.source, gap.key.tenant_id, gap.key.hour_ms, item.response_id, item.item_id, what)
