# ruff: noqa: S608 - names in statements are of this module, and text stands in literals
"""The tables' side: the same sums, with the same digests, made by the engine.

`ask` runs one SELECT and gives its rows, whose integers may come as text. It may be the billing process's own
connection, or the operator's HTTP interface: one statement serves both, within the bounds of either.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from typing import Any

from billing_jobs.reconciliation.dropped import Dropped, DroppedMonth
from billing_jobs.reconciliation.figures import (
    ALL,
    BUCKETS,
    Bill,
    Computed,
    Delivered,
    Figures,
    Item,
    Key,
    Placed,
    Present,
    Recounted,
    Source,
    Span,
)
from billing_jobs.reconciliation.own_bills import OwnPrices, Price
from schemas.month import Month
from streams.clocks import HOUR_MS

Ask = Callable[[str], Sequence[Sequence[Any]]]
PAGE_ROWS = 5_000
IDS_AT_ONCE = 200
"""In one statement, which has to be shorter than the operator's interface takes."""
LONGEST_BEFORE_MS = 32 * HOUR_MS
"""So long before it was written a usage event was accepted, at most, if nothing was down for longer: with that the
engine reads the newest of its tables alone. Where the log has older ones, they are asked for too."""
LONGEST_REPLAY_MS = 96 * HOUR_MS
"""So long after it was accepted a response is still told to viewers, at most."""

HOURS_AT_ONCE = 48

_TOKENS = "uncached_input_tokens + cached_input_tokens + output_tokens + reasoning_tokens"
_BILL = (
    "usage_id", "tenant_id", "endpoint", "model", "ending", "attempts", "toUnixTimestamp64Milli(accepted_at)",
    "uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "released_tokens",
    "charge_state", "cost_pico", "currency",
)  # fmt: skip
_DELIVERED = ("delivered_id", "response_id", "tenant_id", "delivered_tokens")
_COMPUTED = (
    "attempt_id", "response_id", "tenant_id", "worker_id", "model", "prompt_tokens", "cached_tokens",
    "generated_tokens", "engine_ms",
)  # fmt: skip
_PRESENT = ("presence_id", "tenant_id", "region", "pool", "worker_id")
_RECOUNTED = ("response_id", "tenant_id", "opened", "tokens")


def _time(at_ms: int) -> str:
    return f"fromUnixTimestamp64Milli(toInt64({at_ms}), 'UTC')"


def _digest(columns: Sequence[str]) -> str:
    """As `digest_of` makes it: of the fields as text, a line each."""
    fields = ", '\\n', ".join(f"toString({column})" for column in columns)
    return f"reinterpretAsUInt64(substring(MD5(concat({fields})), 1, 8))"


def literal(text: str) -> str:
    """As a string in a statement, whatever is in it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Tables:
    """What the tables hold of a time. `accepted_from_ms` of each call: nothing that was accepted before is looked at.

    Of `generated` that is also what is compared: responses accepted before the recount began are left out on both
    sides. Raises what `ask` raises.
    """

    def __init__(self, ask: Ask, page_rows: int = PAGE_ROWS) -> None:
        self._ask = ask
        self._page_rows = page_rows
        self._dropped: Dropped = ()

    def without(self, dropped: Dropped) -> "Tables":
        """Events that left with these months, and are there all the same, are in no sum and no item of a time."""
        tables = copy(self)
        tables._dropped = dropped
        return tables

    def dropped(self) -> Dropped:
        """Months whose events are gone: of one that was only written down, and stayed, no sums are kept."""
        rows = self._ask(
            "SELECT toYear(month) AS year, toMonth(month) AS number, toUnixTimestamp64Milli(max(dropped_at))"
            " FROM dropped_months WHERE toYYYYMM(month) IN"
            " (SELECT toYYYYMM(hour) FROM usage_hours WHERE tenant_id = '' AND kind = 'kept')"
            " GROUP BY year, number ORDER BY year, number"
        )
        return tuple(DroppedMonth(Month(int(year), int(number)), int(at_ms)) for year, number, at_ms in rows)

    def dropped_events(self, span: Span) -> Counter[DroppedMonth]:
        """How many are there and left out."""
        found: Counter[DroppedMonth] = Counter()
        for each in self._dropped:
            [[events]] = self._ask(
                f"SELECT count() FROM usage_events FINAL WHERE {_between('logged_at', span)} AND {_has(each)}"
            )
            if int(events):
                found[each] = int(events)
        return found

    def prices(self) -> OwnPrices:
        rows = self._ask(
            "SELECT model, tenant_id, endpoint, lane, region, currency, toUnixTimestamp64Milli(valid_from),"
            " uncached_input_pico, cached_input_pico, output_pico, reasoning_pico, toUInt8(withdrawn) FROM prices"
            " ORDER BY model, valid_from, recorded_at, version"
        )
        return OwnPrices(map(_price, rows))

    def figures(
        self, source: Source, span: Span, accepted_from_ms: int, only: frozenset[Key] | None = None,
        *, buckets: bool = False,
    ) -> dict[Key, Figures]:  # fmt: skip
        """Per tenant and hour; with `buckets` per part of each of them. `only`: of these hours of tenants."""
        found: dict[Key, Figures] = {}
        bucket = f"bitAnd(digest, {BUCKETS - 1})" if buckets else f"toInt64({ALL})"
        behind: tuple[Any, ...] = ("", 0, ALL - 1)
        while True:
            rows = self._ask(
                f"SELECT tenant_id, hour, bucket, count(), sum(tokens), sum(cost), sum(digest) FROM ("
                f"SELECT tenant_id, toInt64(intDiv(toUnixTimestamp64Milli(at), {HOUR_MS}) * {HOUR_MS}) AS hour,"
                f" toInt64({bucket}) AS bucket, tokens, cost, digest"
                f" FROM ({self._items(source, span, accepted_from_ms)}){_of(only)})"
                f" WHERE (tenant_id, hour, bucket) > ({literal(behind[0])}, {behind[1]}, {behind[2]})"
                f" GROUP BY tenant_id, hour, bucket ORDER BY tenant_id, hour, bucket LIMIT {self._page_rows}"
            )
            for tenant_id, hour, number, *figures in rows:
                behind = (tenant_id, int(hour), int(number))
                found[Key(*behind)] = Figures(*map(int, figures))
            if len(rows) < self._page_rows:
                return found

    def items(self, source: Source, span: Span, accepted_from_ms: int, key: Key) -> Iterator[Placed]:
        """All of one tenant's hour, or part of it."""
        where = (
            f" WHERE tenant_id = {literal(key.tenant_id)}"
            f" AND intDiv(toUnixTimestamp64Milli(at), {HOUR_MS}) = {key.hour_ms // HOUR_MS}"
        )
        if key.bucket != ALL:
            where += f" AND bitAnd(digest, {BUCKETS - 1}) = {key.bucket}"
        return self._pages(source, self._items(source, span, accepted_from_ms, key.tenant_id), where)

    def elsewhere(self, source: Source, key: Key, ids: Collection[str]) -> dict[str, Placed]:
        """Of a tenant the items of these ids, in whichever hour."""
        found: dict[str, Placed] = {}
        wanted = sorted(ids)
        for begin in range(0, len(wanted), IDS_AT_ONCE):
            where = f" WHERE id IN ({', '.join(map(literal, wanted[begin : begin + IDS_AT_ONCE]))})"
            for placed in self._pages(source, self._items(source, None, 0, key.tenant_id), where):
                found[placed.item.item_id] = placed
        return found

    def beyond_released(self, span: Span) -> list[tuple[Placed, int]]:
        """What gateways say that a viewer had of responses of which less was released, or nothing is billed: the first
        of them. Vectors have numbers as tokens have, and are none. What may be of a month that was dropped is left out.
        """
        rows = self._ask(
            "SELECT delivered_id, response_id, tenant_id, delivered_tokens, toUnixTimestamp64Milli(logged_at),"
            " released FROM (SELECT * FROM delivered_counts FINAL WHERE"
            f" logged_at >= {_time(span.from_ms)} AND logged_at < {_time(span.to_ms)}) AS given"
            " LEFT JOIN (SELECT tenant_id, response_id, sum(released_tokens) AS released, any(endpoint) AS endpoint,"
            " toUnixTimestamp64Milli(any(accepted_at)) AS accepted_ms"
            f" FROM usage_events FINAL WHERE accepted_at >= {_time(span.from_ms - LONGEST_REPLAY_MS)}"
            " GROUP BY tenant_id, response_id) AS billed"
            " ON given.tenant_id = billed.tenant_id AND given.response_id = billed.response_id"
            f" WHERE delivered_tokens > released AND endpoint != 'embeddings'{self._may_be_billed()}"
            f" ORDER BY delivered_id LIMIT {self._page_rows}"
        )
        return [(Placed(_delivered(given), int(at_ms)), int(released)) for *given, at_ms, released in rows]

    def _may_be_billed(self) -> str:
        """Of a response that is not billed any more nobody knows when it was accepted: `accepted_ms` is 0 then."""
        return "".join(
            f" AND NOT (logged_at >= {_time(month.start_ms)} AND logged_at < {_time(month.end_ms + LONGEST_REPLAY_MS)}"
            f" AND (accepted_ms = 0 OR accepted_ms >= {month.start_ms} AND accepted_ms < {month.end_ms}))"
            for month, _ in self._dropped
        )

    def hours_apart(self, hours: Collection[int]) -> list[tuple[Key, Figures, Figures]]:
        """Of these hours, in which requests were accepted: where what is told of an hour of a tenant is not the sum of
        its events, and of what was kept of those whose month was dropped. Rows are requests. One statement, so both are
        of one moment.
        """
        found = []
        wanted = sorted(hours)
        for begin in range(0, len(wanted), HOURS_AT_ONCE):
            some = wanted[begin : begin + HOURS_AT_ONCE]
            listed = ", ".join(f"toDateTime({hour_ms // 1_000}, 'UTC')" for hour_ms in some)
            rows = self._ask(
                "SELECT tenant_id, hour_ms, sumIf(requests, told = 0) AS events, sumIf(tokens, told = 0) AS tokens_0,"
                " sumIf(cost, told = 0) AS cost_0, sumIf(requests, told = 1) AS summed, sumIf(tokens, told = 1) AS"
                " tokens_1, sumIf(cost, told = 1) AS cost_1 FROM ("
                "SELECT tenant_id, toInt64(toUnixTimestamp(hour)) * 1000 AS hour_ms, 1 AS told,"
                f" toUInt64(requests) AS requests, toUInt64({_TOKENS}) AS tokens, toInt128(cost_pico) AS cost"
                f" FROM usage_by_hour WHERE hour IN ({listed}) UNION ALL"
                " SELECT tenant_id, toInt64(toUnixTimestamp(toStartOfHour(accepted_at))) * 1000 AS hour_ms, 0 AS told,"
                f" toUInt64(choice = 0) AS requests, toUInt64({_TOKENS}) AS tokens, toInt128(cost_pico) AS cost"
                f" FROM usage_events FINAL WHERE toStartOfHour(accepted_at) IN ({listed}) UNION ALL"
                " SELECT tenant_id, toInt64(toUnixTimestamp(hour)) * 1000 AS hour_ms, 0 AS told,"
                f" toUInt64(requests) AS requests, toUInt64({_TOKENS}) AS tokens, toInt128(cost_pico) AS cost"
                f" FROM usage_hours WHERE kind = 'kept' AND tenant_id != '' AND hour IN ({listed})"
                " AND (hour, version) IN (SELECT hour, max(version) FROM usage_hours WHERE kind = 'kept'"
                " AND tenant_id = '' GROUP BY hour))"
                " GROUP BY tenant_id, hour_ms HAVING (events, tokens_0, cost_0) != (summed, tokens_1, cost_1)"
                f" ORDER BY tenant_id, hour_ms LIMIT {self._page_rows}"
            )
            for tenant_id, hour_ms, *figures in rows:
                events, told = Figures(*map(int, figures[:3])), Figures(*map(int, figures[3:]))
                found.append((Key(tenant_id, int(hour_ms)), events, told))
        return found

    def _pages(self, source: Source, inner: str, where: str) -> Iterator[Placed]:
        made_of, columns = _SHAPES[source]
        behind = ""
        names = ", ".join(f"f{number}" for number in range(len(columns)))
        while True:
            rows = self._ask(
                f"SELECT {names}, toUnixTimestamp64Milli(at), log_partition, log_offset, id FROM ({inner}){where}"
                f" AND id > {literal(behind)} ORDER BY id LIMIT {self._page_rows}"
            )
            for row in rows:
                *values, at_ms, partition, offset, behind = row
                yield Placed(made_of(values), int(at_ms), int(partition), int(offset))
            if len(rows) < self._page_rows:
                return

    def _items(self, source: Source, span: Span | None, accepted_from_ms: int, tenant_id: str | None = None) -> str:
        """A SELECT of every item: its fields, and what sums are made of."""
        tenant = "" if tenant_id is None else f" AND tenant_id = {literal(tenant_id)}"
        accepted = f" AND accepted_at >= {_time(accepted_from_ms)}" if accepted_from_ms > 0 else ""
        _, columns = _SHAPES[source]
        fields = ", ".join(f"{column} AS f{number}" for number, column in enumerate(columns))
        if source == "generated":
            at = "min(ended_at)"
            between = _between("ended_at", span)
            inner = (
                f"SELECT response_id, tenant_id, toUInt8(max(model != '')) AS opened,"
                f" sum(output_tokens + reasoning_tokens) AS tokens, {at} AS at"
                f" FROM usage_events FINAL WHERE {between}{tenant}{accepted} GROUP BY response_id, tenant_id"
            )
            return (
                f"SELECT tenant_id, response_id AS id, at, {fields}, tokens, toInt128(0) AS cost,"
                f" toInt64(-1) AS log_partition, toInt64(-1) AS log_offset, {_digest(columns)} AS digest FROM ({inner})"
            )
        between = _between("logged_at", span)
        if source == "delivered":
            table, id_, tokens, cost, accepted = "delivered_counts", "delivered_id", "delivered_tokens", "0", ""
        elif source == "compute":
            table, id_, tokens, cost, accepted = "compute_records", "attempt_id", "generated_tokens", "0", ""
        elif source == "presence":
            table, id_, tokens, cost, accepted = "worker_presence", "presence_id", "0", "0", ""
        else:
            table, id_, cost = "usage_events", "usage_id", "cost_pico"
            tokens = _TOKENS
            if span is not None:
                accepted += "".join(f" AND NOT ({_has(each)})" for each in self._dropped)
        return (
            f"SELECT tenant_id, {id_} AS id, logged_at AS at, {fields}, toUInt64({tokens}) AS tokens,"
            f" toInt128({cost}) AS cost, toInt64(log_partition) AS log_partition, toInt64(log_offset) AS log_offset,"
            f" {_digest(columns)} AS digest FROM {table} FINAL WHERE {between}{tenant}{accepted}"
        )


def _price(row: Sequence[Any]) -> Price:
    model, tenant_id, endpoint, lane, region, currency, valid_from_ms, *pico, withdrawn = row
    uncached, cached, output, reasoning = map(int, pico)
    scope = (tenant_id, endpoint, lane, region)
    return Price(
        model, scope, currency, int(valid_from_ms), (uncached, cached, output, reasoning), bool(int(withdrawn))
    )


def _bill(values: Sequence[Any]) -> Bill:
    usage_id, tenant_id, endpoint, model, ending, *numbers, charge_state, cost_pico, currency = values
    attempts, accepted_at_ms, uncached, cached, output, reasoning, released = map(int, numbers)
    return Bill(
        usage_id, tenant_id, endpoint, model, ending, attempts, accepted_at_ms, uncached, cached, output, reasoning,
        released, charge_state, int(cost_pico), currency,
    )  # fmt: skip


def _delivered(values: Sequence[Any]) -> Delivered:
    delivered_id, response_id, tenant_id, tokens = values
    return Delivered(delivered_id, response_id, tenant_id, int(tokens))


def _computed(values: Sequence[Any]) -> Computed:
    attempt_id, response_id, tenant_id, worker_id, model, *numbers = values
    return Computed(attempt_id, response_id, tenant_id, worker_id, model, *map(int, numbers))


def _present(values: Sequence[Any]) -> Present:
    return Present(*map(str, values))


def _recounted(values: Sequence[Any]) -> Recounted:
    response_id, tenant_id, opened, tokens = values
    return Recounted(response_id, tenant_id, int(opened), int(tokens))


_SHAPES: dict[Source, tuple[Callable[[Sequence[Any]], Item], tuple[str, ...]]] = {
    "usage": (_bill, _BILL),
    "delivered": (_delivered, _DELIVERED),
    "generated": (_recounted, _RECOUNTED),
    "compute": (_computed, _COMPUTED),
    "presence": (_present, _PRESENT),
}


def _between(column: str, span: Span | None) -> str:
    return "1" if span is None else f"{column} >= {_time(span.from_ms)} AND {column} < {_time(span.to_ms)}"


def _has(dropped: DroppedMonth) -> str:
    """As `DroppedMonth.has`."""
    month, at_ms = dropped
    return (
        f"accepted_at >= {_time(month.start_ms)} AND accepted_at < {_time(month.end_ms)} AND logged_at < {_time(at_ms)}"
    )


def _of(only: frozenset[Key] | None) -> str:
    if only is None:
        return ""
    wanted = ", ".join(f"({literal(key.tenant_id)}, {key.hour_ms // HOUR_MS})" for key in sorted(only))
    return f" WHERE (tenant_id, intDiv(toUnixTimestamp64Milli(at), {HOUR_MS})) IN ({wanted})"
