"""Questions to the tables: usage in buckets for one tenant, and the operator's own SELECT.

Values travel as bound parameters; only names from the tables below stand in the text of a query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from billing_jobs.pricing import PICO_PER_UNIT
from billing_jobs.sql_guard import check_select
from billing_jobs.store import Connection
from schemas.usage_query import MAX_TIME_S, BucketWidth, GroupBy, InvalidQuery, parse_bucket_width, parse_group_by

BUCKET_S: dict[BucketWidth, int] = {"1h": 3_600, "1d": 86_400}
MAX_BUCKETS: dict[BucketWidth, int] = {"1h": 31 * 24, "1d": 400}
TOKEN_CLASSES = (
    "uncached_input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "released_tokens",
)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Responses of one tenant accepted in [`start_time`, `end_time`), Unix seconds."""

    tenant_id: str
    start_time: int
    end_time: int
    bucket_width: BucketWidth = "1d"
    group_by: tuple[GroupBy, ...] = ()

    def __post_init__(self) -> None:
        """Raises InvalidQuery."""
        if not 1 <= len(self.tenant_id) <= 200:
            raise InvalidQuery("tenant_id", "tenant_id must have 1 to 200 characters")
        for name, value in (("start_time", self.start_time), ("end_time", self.end_time)):
            if not 0 <= value <= MAX_TIME_S:
                raise InvalidQuery(name, f"{name} must be Unix seconds between 0 and {MAX_TIME_S}")
        if self.end_time <= self.start_time:
            raise InvalidQuery("end_time", "end_time must be after start_time")
        if len(self.bucket_starts()) > MAX_BUCKETS[self.bucket_width]:
            limit = MAX_BUCKETS[self.bucket_width]
            raise InvalidQuery("end_time", f"end_time: at most {limit} buckets of {self.bucket_width} at once")

    @classmethod
    def parse(cls, tenant_id: str, start_time: int, end_time: int, bucket_width: str, group_by: str) -> "UsageQuery":
        """As it was asked over HTTP. Raises InvalidQuery."""
        width, groups = parse_bucket_width(bucket_width), parse_group_by(group_by)
        return cls(tenant_id, start_time, end_time, width, groups)

    def bucket_starts(self) -> range:
        """Starts of the UTC hours or days that the interval touches."""
        width_s = BUCKET_S[self.bucket_width]
        return range(self.start_time - self.start_time % width_s, self.end_time, width_s)


def usage_sql(query: UsageQuery) -> tuple[str, dict[str, Any]]:
    """The statement and its parameters. Columns: bucket, the groups, currency, then the figures."""
    groups = ["bucket", *query.group_by, "currency"]
    figures = [
        "countIf(choice = 0)",
        *(f"sum({name})" for name in TOKEN_CLASSES),
        "countIf(charge_state = 'suspense')",
        "sum(cost_pico)",
    ]
    columns = ["intDiv(toUnixTimestamp(accepted_at), {width:UInt32}) * {width:UInt32} AS bucket", *groups[1:], *figures]
    text = (
        f"SELECT {', '.join(columns)} FROM usage_events FINAL"  # noqa: S608 - names from the tables of this module
        " WHERE tenant_id = {tenant:String}"
        " AND accepted_at >= fromUnixTimestamp64Milli({start_ms:Int64}, 'UTC')"
        " AND accepted_at < fromUnixTimestamp64Milli({end_ms:Int64}, 'UTC')"
        f" GROUP BY {', '.join(groups)} ORDER BY {', '.join(groups)} LIMIT {{limit:UInt32}}"
    )
    return text, {
        "tenant": query.tenant_id,
        "start_ms": query.start_time * 1_000,
        "end_ms": query.end_time * 1_000,
        "width": BUCKET_S[query.bucket_width],
    }


def decimal_units(pico: int) -> str:
    """An amount of at least 0 as an exact decimal string, such as `0.0000138`."""
    whole, fraction = divmod(pico, PICO_PER_UNIT)
    return f"{whole}.{fraction:012d}".rstrip("0").rstrip(".")


def usage_buckets(query: UsageQuery, rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Every bucket of the interval in order, with an empty list where nothing was used."""
    results: dict[int, list[dict[str, Any]]] = {start: [] for start in query.bucket_starts()}
    for bucket, *values in rows:
        groups = dict(zip(query.group_by, values, strict=False))
        currency, requests, *figures = values[len(query.group_by) :]
        *tokens, suspense_events, cost_pico = figures
        cost = decimal_units(int(cost_pico))
        results[int(bucket)].append(
            {
                **groups,
                "requests": int(requests),
                **{name: int(count) for name, count in zip(TOKEN_CLASSES, tokens, strict=True)},
                "suspense_events": int(suspense_events),
                "currency": currency or None,
                "cost_pico": str(cost_pico),
                "cost": cost,
                "cost_usd": cost if currency == "USD" else None,
            }
        )
    width_s = BUCKET_S[query.bucket_width]
    return [
        {
            "start_time": max(start, query.start_time),
            "end_time": min(start + width_s, query.end_time),
            "results": results[start],
        }
        for start in query.bucket_starts()
    ]


@dataclass(frozen=True, slots=True)
class SqlResult:
    """Integers of 64 bits and more, and decimals, are strings. `truncated`: there were more rows than may be shown."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool

    @classmethod
    def of(cls, json_compact: bytes, max_rows: int) -> Self:
        """From what a query gave that was limited to a row more than may be shown."""
        answer = orjson.loads(json_compact)
        rows = answer["data"]
        names, types = ([column[key] for column in answer["meta"]] for key in ("name", "type"))
        return cls(names, types, rows[:max_rows], len(rows) > max_rows)


def read_settings(max_rows: int, timeout_s: float) -> dict[str, Any]:
    """Limits of a connection for questions; `readonly` last, since nothing can be set after it."""
    return {
        "max_execution_time": timeout_s,
        "timeout_overflow_mode": "throw",
        "limit": max_rows + 1,
        "max_result_bytes": 67_108_864,
        "result_overflow_mode": "throw",
        "max_memory_usage": 1_073_741_824,
        "output_format_json_quote_64bit_integers": 1,
        "output_format_json_quote_decimals": 1,
        "do_not_merge_across_partitions_select_final": 1,
        "allow_ddl": 0,
        "allow_introspection_functions": 0,
        "readonly": 1,
    }


class Reader:
    """Asks over one connection, made with `read_settings`; from one thread. Raises StoreError."""

    def __init__(self, connection: Connection, max_rows: int) -> None:
        self._connection = connection
        self._max_rows = max_rows
        self._table_functions: list[str] | None = None

    def usage(self, query: UsageQuery) -> list[dict[str, Any]]:
        """Raises InvalidQuery when there are more groups than may be shown."""
        text, parameters = usage_sql(query)
        with self._connection.client() as client:
            rows = client.query(text, parameters={**parameters, "limit": self._max_rows + 1}).result_rows
        if len(rows) > self._max_rows:
            raise InvalidQuery("group_by", f"group_by: more than {self._max_rows} results; group by less")
        return usage_buckets(query, rows)

    def sql(self, text: str) -> SqlResult:
        """Raises SqlRefused."""
        with self._connection.client() as client:
            if self._table_functions is None:
                found = client.query("SELECT groupArray(name) FROM system.table_functions").first_row[0]
                self._table_functions = list(found)
        query = check_select(text, self._table_functions)
        with self._connection.client() as client:
            answer = client.raw_query(query, fmt="JSONCompact")
        return SqlResult.of(answer, self._max_rows)

    def status(self) -> dict[str, Any]:
        """Rows per table and the newest batch."""
        with self._connection.client() as client:
            tables = client.query(
                "SELECT name, total_rows FROM system.tables"
                " WHERE database = currentDatabase() AND total_rows IS NOT NULL ORDER BY name"
            ).result_rows
            last = client.query(
                "SELECT batch_id, records, toUnixTimestamp64Milli(inserted_at) FROM billing_batches"
                " ORDER BY inserted_at DESC LIMIT 1"
            ).result_rows
        batch = {"batch_id": last[0][0], "records": last[0][1], "inserted_at_ms": last[0][2]} if last else None
        return {"tables": {name: int(rows) for name, rows in tables}, "last_batch": batch}

    def close(self) -> None:
        self._connection.close()
