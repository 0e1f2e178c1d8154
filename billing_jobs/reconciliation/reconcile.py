"""One look: what the log says of a time, and what the tables say, and what differs.

Sums are compared first; of the hours that differ the bills are read again on both sides, so what was only on its way is
equal by then, and what the log holds twice is found to be one bill. Memory holds a few numbers for each tenant and
hour, and up to `MAX_ITEMS` bills.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from billing_jobs.reconciliation.dropped import Dropped, DroppedMonth, told_of
from billing_jobs.reconciliation.explain import Difference, explain, shown, unexplained
from billing_jobs.reconciliation.figures import ALL, Figures, Gap, Key, Placed, Source, Span, gaps, key_of, total
from billing_jobs.reconciliation.log_side import Records, collect, read_usage
from billing_jobs.reconciliation.own_bills import OwnPrices
from billing_jobs.reconciliation.recount import Counted
from billing_jobs.reconciliation.tables import LONGEST_BEFORE_MS, Tables
from streams.topics import LONGEST_RESPONSE_MS

MAX_ITEMS = 200_000
LARGE_ROWS = 50_000
"""An hour of a tenant with more is compared in parts first."""
PARTS_SHOWN = 4
REBUILT: tuple[Source, ...] = ("usage", "delivered", "compute", "presence")
LOOKS_AT_HOURS = 3
SOURCES: tuple[Source, ...] = ("usage", "delivered", "generated", "hours")


@dataclass(frozen=True, slots=True)
class Recounts:
    """What was counted again of responses accepted since `counted_from_ms`, and up to when all that ended is there."""

    counted: Counted
    counted_from_ms: int
    complete_to_ms: int


@dataclass(slots=True)
class Report:
    """`hours`: of each source the hours of tenants that differ; `differences` says more of them, as far as is shown.

    `compared`: what the log says of each source. `left_out`: what was not compared, and why. `dropped`: how many events
    of the log were not, as they left the tables with a month.
    """

    span: Span
    compared: dict[Source, Figures] = field(default_factory=dict)
    hours: dict[Source, list[Gap]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    accepted_hours: set[int] = field(default_factory=set)
    """Of which sums were compared with events."""
    unreadable: int = 0
    left_out: list[str] = field(default_factory=list)
    dropped: Counter[DroppedMonth] = field(default_factory=Counter)

    @property
    def is_equal(self) -> bool:
        return not any(self.hours.values())

    def add(self, gap: Gap, differences: Sequence[Difference]) -> None:
        self.hours.setdefault(gap.source, []).append(gap)
        self.differences += differences


def all_left_out(reports: Sequence[Report]) -> list[str]:
    """For people, each reason once."""
    return [
        *dict.fromkeys(why for report in reports for why in report.left_out),
        *told_of(report.dropped for report in reports),
    ]


def reconcile(span: Span, records: Records, tables: Tables, recounts: Recounts | None = None) -> Report:
    """`span` is over for both: all that the log has of it is in the tables. Raises what the sides raise."""
    report = Report(span)
    prices, dropped = tables.prices(), tables.dropped()
    tables = tables.without(dropped)
    found = read_usage(records(span), prices, dropped=dropped)
    report.unreadable, report.dropped = found.unreadable, found.dropped
    accepted_from_ms = min(found.accepted_from_ms, span.from_ms - LONGEST_BEFORE_MS)
    open_gaps: list[Gap] = []
    for source in ("usage", "delivered"):
        figures = found.figures[source]
        report.compared[source] = total(figures.values())
        open_gaps += gaps(source, figures, tables.figures(source, span, accepted_from_ms))
    if open_gaps:
        _look_closer(report, open_gaps, records, tables, accepted_from_ms, dropped)
    _beyond_released(report, tables)
    compare_hours(report, tables, found.accepted_hours)
    if recounts is not None:
        _recounted(report, tables, recounts, dropped)
    return report


def _look_closer(
    report: Report, found: list[Gap], records: Records, tables: Tables, accepted_from_ms: int, dropped: Dropped
) -> None:
    """Reads the bills of the hours that differ, again on both sides."""
    span, prices = report.span, tables.prices()
    parts: dict[Gap, list[Gap]] = {gap: [gap] for gap in found if not _is_large(gap)}
    if large := [gap for gap in found if _is_large(gap)]:
        parts |= _in_parts(large, span, records, prices, tables, accepted_from_ms, dropped)
    wanted = [(part.source, part.key) for some in parts.values() for part in some]
    of_log = collect(records(span), prices, wanted, MAX_ITEMS, dropped)
    for gap, some in parts.items():
        differences: list[Difference] = []
        for part in some:
            items = of_log.get((part.source, part.key))
            if items is None:
                differences.append(unexplained(gap))
                continue
            of_tables = tables.items(part.source, span, accepted_from_ms, part.key)
            differences += explain(part, items, of_tables, partial(tables.elsewhere, part.source))
        if differences:
            report.add(gap, shown(differences))


def _is_large(gap: Gap) -> bool:
    return max(gap.log.rows, gap.tables.rows) > LARGE_ROWS


def _in_parts(
    large: list[Gap],
    span: Span,
    records: Records,
    prices: OwnPrices,
    tables: Tables,
    accepted_from_ms: int,
    dropped: Dropped,
) -> dict[Gap, list[Gap]]:
    """Of each hour the first parts that differ."""
    only = frozenset(gap.key for gap in large)
    of_log = read_usage(records(span), prices, only, buckets=True, dropped=dropped).figures
    found: dict[Gap, list[Gap]] = {}
    for gap in large:
        of_tables = tables.figures(gap.source, span, accepted_from_ms, frozenset([gap.key]), buckets=True)
        mine = {key: figures for key, figures in of_log[gap.source].items() if key._replace(bucket=ALL) == gap.key}
        found[gap] = gaps(gap.source, mine, of_tables)[:PARTS_SHOWN]
    return found


def _beyond_released(report: Report, tables: Tables) -> None:
    """A viewer cannot have more of a response than was released; where it had as much, it had all."""
    of_hours: dict[Key, list[tuple[Placed, int]]] = {}
    for placed, released in tables.beyond_released(report.span):
        of_hours.setdefault(key_of(placed.item.tenant_id, placed.at_ms), []).append((placed, released))
    for key, found in of_hours.items():
        differences = [
            Difference(
                "delivered", key.tenant_id, key.hour_ms, placed.item.response_id, placed.item.item_id,
                f"a viewer had {placed.item.tokens} of its tokens, and {released} are billed as released",
            )
            for placed, released in found
        ]  # fmt: skip
        had, billed = sum(placed.item.tokens for placed, _ in found), sum(released for _, released in found)
        report.add(Gap("delivered", key, Figures(len(found), had), Figures(len(found), billed)), shown(differences))


def compare_hours(report: Report, tables: Tables, hours: set[int]) -> None:
    """What is told of the hours in which requests were accepted; who writes to one meanwhile may be seen by one half
    of a statement alone, so what differs is looked at again.
    """
    report.accepted_hours = hours
    report.compared["hours"] = Figures(len(hours))
    apart = tables.hours_apart(hours)
    for _ in range(LOOKS_AT_HOURS - 1):
        if apart:
            apart = tables.hours_apart({key.hour_ms for key, _, _ in apart})
    for key, events, told in apart:
        gap = Gap("hours", key, events, told)
        report.add(gap, [unexplained(gap)])


def _recounted(report: Report, tables: Tables, recounts: Recounts, dropped: Dropped) -> None:
    span = report.span
    if recounts.complete_to_ms < span.to_ms:
        report.left_out.append("generated: it has not been counted again up to there")
        return
    if gone := [str(each.month) for each in dropped if _ended_in(span, each)]:
        report.left_out.append(f"generated: responses of {', '.join(gone)}, which was dropped, may be among it")
        return
    of_log = recounts.counted.figures(span)
    report.compared["generated"] = total(of_log.values())
    of_tables = tables.figures("generated", span, recounts.counted_from_ms)
    for gap in gaps("generated", of_log, of_tables):
        items = recounts.counted.items(span, gap.key)
        if items is None:
            report.add(gap, [unexplained(gap)])
            continue
        named = tables.items("generated", span, recounts.counted_from_ms, gap.key)
        if differences := shown(explain(gap, items, named, partial(tables.elsewhere, "generated"))):
            report.add(gap, differences)


def _ended_in(span: Span, dropped: DroppedMonth) -> bool:
    """Whether a response whose event left with the month may have ended then: when it was accepted, who counts again
    does not remember.
    """
    last_ms = min(dropped.dropped_at_ms, dropped.month.end_ms + LONGEST_RESPONSE_MS)
    return span.to_ms > dropped.month.start_ms and span.from_ms < last_ms


def equal_tables(span: Span, rebuilt: Tables, live: Tables) -> Report:
    """The same of tables that were made anew of the log, beside those that are in use. Raises what they raise."""
    dropped = live.dropped()
    rebuilt, live = rebuilt.without(dropped), live.without(dropped)
    report = Report(span, dropped=rebuilt.dropped_events(span))
    for source in REBUILT:
        of_log, of_live = rebuilt.figures(source, span, 0), live.figures(source, span, 0)
        report.compared[source] = total(of_log.values())
        for gap in gaps(source, of_log, of_live):
            if _is_large(gap):
                report.add(gap, [unexplained(gap)])
                continue
            items, of_tables = rebuilt.items(source, span, 0, gap.key), live.items(source, span, 0, gap.key)
            if differences := shown(explain(gap, items, of_tables, partial(live.elsewhere, source))):
                report.add(gap, differences)
    return report


def slices(span: Span, longest_ms: int) -> Iterator[Span]:
    """One after the other, none longer: each is asked of the engine within a statement's time."""
    from_ms = span.from_ms
    while from_ms < span.to_ms:
        to_ms = min(span.to_ms, from_ms - from_ms % longest_ms + longest_ms)
        yield Span(from_ms, to_ms)
        from_ms = to_ms
