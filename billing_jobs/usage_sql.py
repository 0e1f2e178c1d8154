"""Usage in buckets as statements over the tables, and what their rows are. Pure.

Values travel as bound parameters; only names from the tables below stand in the text of a statement.
"""

# ruff: noqa: S608 - names of this module alone stand in the texts

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing_jobs.rollups.views import DIMENSIONS, FIGURES
from schemas.usage_query import BUCKET_S, GroupBy, InvalidQuery, UsageQuery

HOUR_S = 3_600

_CLASSES = (
    ("input", "uncached_input_tokens", "uncached_input_pico"),
    ("cached_input", "cached_input_tokens", "cached_input_pico"),
    ("output", "output_tokens", "output_pico"),
    ("reasoning", "reasoning_tokens", "reasoning_pico"),
)
"""How a line item calls a class of tokens, the column that counts it, and its price."""
_LINE_ITEM = "concat(model, ', ', line.1) AS line_item"
_GROUPS: dict[GroupBy, str] = {"batch": "lane = 'batch'"}
"""Those that are no column of their own."""
_FILTERS: dict[str, str] = {
    "models": "model", "project_ids": "project_id", "key_ids": "key_id", "end_users": "end_user",
    "endpoints": "endpoint", "lanes": "lane",
}  # fmt: skip
"""Field of a question → the column that is one of what it names."""
LINE_FIGURES = ("quantity", "cost_pico")
THROWN = 395
"""ClickHouse's code of what `throwIf` throws."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows that are counted by their time, and how the figures come of them."""

    table: str
    time: str
    moment: str
    """How a bound number of milliseconds becomes one of its times."""
    figures: Mapping[str, str]

    @property
    def bucket(self) -> str:
        return f"intDiv(toUnixTimestamp(event.{self.time}), {{width:UInt32}}) * {{width:UInt32}} AS bucket"


_EVENTS = _Source(
    "usage_events AS event FINAL", "accepted_at", "fromUnixTimestamp64Milli({{{}:Int64}}, 'UTC')", FIGURES
)
_HOURS = _Source(
    "usage_by_hour AS event", "hour", "toDateTime(intDiv({{{}:Int64}}, 1000), 'UTC')",
    {name: f"sum({name})" for name in FIGURES},
)  # fmt: skip
"""Hours that are settled, from their sums, and the others from the events: as exact, and sooner had."""


@dataclass(frozen=True, slots=True)
class UsagePage:
    """Buckets in order, each with what was used in it; `next_start`: where the next page begins, None behind the last
    bucket.
    """

    buckets: list[dict[str, Any]]
    next_start: int | None


def _source(query: UsageQuery, end_time: int) -> _Source:
    """Whole hours from their sums, which know of no end users and no prices."""
    names = {*query.group_by}
    is_whole = not (query.start_time % HOUR_S or end_time % HOUR_S or BUCKET_S[query.bucket_width] % HOUR_S)
    known = names - {"batch"} <= {*DIMENSIONS} and not query.end_users
    return _HOURS if is_whole and known else _EVENTS


def _where(query: UsageQuery, source: _Source, end_time: int) -> tuple[str, dict[str, Any]]:
    conditions = [
        f"{source.time} >= {source.moment.format('start_ms')}", f"{source.time} < {source.moment.format('end_ms')}"
    ]  # fmt: skip
    parameters: dict[str, Any] = {"start_ms": query.start_time * 1_000, "end_ms": end_time * 1_000}
    if query.tenant_id is not None:
        conditions.insert(0, "tenant_id = {tenant:String}")
        parameters["tenant"] = query.tenant_id
    for field, column in _FILTERS.items():
        if names := getattr(query, field):
            conditions.append(f"{column} IN {{{field}:Array(String)}}")
            parameters[field] = list(names)
    if query.batch is not None:
        conditions.append("(lane = 'batch') = {batch:UInt8}")
        parameters["batch"] = int(query.batch)
    return " AND ".join(conditions), parameters


def _grouped(names: Sequence[GroupBy]) -> list[str]:
    return [f"{_GROUPS[name]} AS {name}" if name in _GROUPS else name for name in names]


def usage_sql(query: UsageQuery, end_time: int) -> tuple[str, dict[str, Any]]:
    """The statement and its parameters. Columns: bucket, the groups, then the figures; in their order."""
    source = _source(query, end_time)
    where, parameters = _where(query, source, end_time)
    is_of_lines = "line_item" in query.group_by
    text = _lines_sql(query.group_by, where) if is_of_lines else _sums_sql(query.group_by, source, where)
    return text, {**parameters, "width": BUCKET_S[query.bucket_width]}


def _sums_sql(group_by: Sequence[GroupBy], source: _Source, where: str) -> str:
    groups = ", ".join(["bucket", *group_by])
    columns = [source.bucket, *_grouped(group_by), *(f"{figure} AS {name}" for name, figure in source.figures.items())]
    return f"SELECT {', '.join(columns)} FROM {source.table} WHERE {where} GROUP BY {groups} ORDER BY {groups}"


def _lines_sql(group_by: Sequence[GroupBy], where: str) -> str:
    """What was charged, class by class, at the price that each event names. What a price does not explain stands in a
    line of its own, so that the lines are always the cost.
    """
    names: list[GroupBy] = [name for name in group_by if name != "line_item"]
    beside = [name for name in ("model", "currency") if name not in names]
    sums = [
        f"toInt128(sum({tokens})) AS {name}_quantity, sum(toInt128({tokens}) * {price}) AS {name}_amount"
        for name, tokens, price in _CLASSES
    ]
    explained = " + ".join(f"{name}_amount" for name, _, _ in _CLASSES)
    lines = [f"('{name.replace('_', ' ')}', {name}_quantity, {name}_amount)" for name, _, _ in _CLASSES]
    lines.append(f"('other', toInt128(0), sum(cost_pico) - ({explained}))")
    priced = (
        f"SELECT {', '.join([_EVENTS.bucket, *_grouped(names), *beside, *sums])}, [{', '.join(lines)}] AS lines"
        f" FROM (SELECT * FROM usage_events FINAL WHERE {where} AND charge_state = 'priced') AS event"
        f" LEFT JOIN (SELECT price_id, {', '.join(price for _, _, price in _CLASSES)} FROM price_intervals) AS price"
        f" ON event.price_id = price.price_id GROUP BY {', '.join(['bucket', *names, *beside])}"
    )
    groups = ", ".join(["bucket", *group_by])
    columns = ["bucket", *(_LINE_ITEM if name == "line_item" else name for name in group_by)]
    return (
        f"SELECT {', '.join(columns)}, sum(line.2) AS quantity, sum(line.3) AS cost_pico"
        f" FROM ({priced}) ARRAY JOIN lines AS line WHERE line.2 != 0 OR line.3 != 0"
        f" GROUP BY {groups} ORDER BY {groups}"
    )


def figures_of(query: UsageQuery) -> tuple[str, ...]:
    return LINE_FIGURES if "line_item" in query.group_by else tuple(FIGURES)


def usage_page(query: UsageQuery, rows: Sequence[Sequence[Any]], max_rows: int) -> UsagePage:
    """Of rows of `usage_sql`, by bucket. Where there are more than may be shown, the page ends before the bucket that
    is not whole. Raises InvalidQuery where that is the first one.
    """
    starts = query.bucket_starts()
    page = starts[: query.limit]
    if len(rows) > max_rows:
        page = page[: page.index(int(rows[max_rows][0]))]
        if not page:
            raise InvalidQuery("group_by", f"group_by: more than {max_rows} results in one bucket; group by less")
    results: dict[int, list[dict[str, Any]]] = {start: [] for start in page}
    names = [*query.group_by, *figures_of(query)]
    for bucket, *values in rows:
        if int(bucket) in results:
            results[int(bucket)].append(_result(names, values))
    width_s = BUCKET_S[query.bucket_width]
    buckets = [
        {
            "start_time": max(start, query.start_time),
            "end_time": min(start + width_s, query.end_time),
            "results": results[start],
        }
        for start in page
    ]
    return UsagePage(buckets, starts[len(page)] if len(page) < len(starts) else None)


def _result(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Money as text: it may be larger than a number of JSON's."""
    result = dict(zip(names, values, strict=True))
    if "batch" in result:
        result["batch"] = bool(result["batch"])
    return {**result, "cost_pico": str(result["cost_pico"])}


def export_sql(query: UsageQuery) -> tuple[str, dict[str, Any]]:
    """A row for each bucket and group, of the whole interval; fails with `THROWN` where they are more than `limit`.
    Amounts are exact: a whole number of pico-currency, and a decimal.
    """
    text, parameters = usage_sql(query, query.end_time)
    columns = [
        "toDateTime(bucket, 'UTC') AS bucket_start",
        *query.group_by,
        *(name for name in figures_of(query) if name != "cost_pico"),
        "toDecimal128(cost_pico, 0) AS cost_pico",
        "toDecimal128(toDecimal256(cost_pico, 12) / 1000000000000, 12) AS cost",
    ]
    bounded = f"SELECT *, throwIf(count() OVER () > {{limit:UInt32}}) AS within FROM ({text})"
    return f"SELECT {', '.join(columns)} FROM ({bounded}) WHERE NOT within ORDER BY ALL", parameters
