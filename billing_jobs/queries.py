"""Questions to the tables: usage in buckets, and the operator's own SELECT."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import orjson

from billing_jobs.sql_guard import check_select
from billing_jobs.store import Connection, StoreError
from billing_jobs.usage_sql import THROWN, UsagePage, export_sql, usage_page, usage_sql
from schemas.usage_query import ExportFormat, InvalidQuery, UsageQuery

USAGE_CORES = 1
USAGE_MEMORY_BYTES = 536_870_912
"""Of one question about usage, as the cores."""
OUT_OF_MEMORY = 241
"""ClickHouse's code of it."""
_FORMATS: dict[ExportFormat, str] = {"csv": "CSVWithNames", "parquet": "Parquet"}


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


@contextmanager
def _memory_told() -> Iterator[None]:
    """Raises InvalidQuery for a question that takes more memory than it may. Where all of ClickHouse has none left, it
    is worth asking again, and StoreError stays.
    """
    try:
        yield
    except StoreError as error:
        if error.code != OUT_OF_MEMORY or "(total)" in str(error):
            raise
        message = "group_by: more memory than a question may take; group by less, or ask for less time"
        raise InvalidQuery("group_by", message) from None


def usage_settings(max_rows: int, timeout_s: float) -> dict[str, Any]:
    """As `read_settings`, of a connection that tenants' questions about usage are put to: several of them run at once,
    beside the sink.
    """
    return {
        "max_threads": USAGE_CORES,
        **read_settings(max_rows, timeout_s),
        "max_memory_usage": USAGE_MEMORY_BYTES,
    }


class Reader:
    """Asks over one connection, made with `read_settings` or `usage_settings`; from one thread. Raises StoreError."""

    def __init__(self, connection: Connection, max_rows: int) -> None:
        self._connection = connection
        self._max_rows = max_rows
        self._table_functions: list[str] | None = None

    def usage(self, query: UsageQuery) -> UsagePage:
        """Raises InvalidQuery when there are more groups in a bucket than may be shown, or it takes too much memory."""
        starts = query.bucket_starts()
        end_time = starts[query.limit] if query.limit < len(starts) else query.end_time
        text, parameters = usage_sql(query, end_time)
        limited = {**parameters, "limit": self._max_rows + 1}
        with _memory_told(), self._connection.client() as client:
            rows = client.query(f"{text} LIMIT {{limit:UInt32}}", parameters=limited).result_rows
        return usage_page(query, rows, self._max_rows)

    def export(self, query: UsageQuery, file_format: ExportFormat) -> bytes:
        """A file with all of it. Raises InvalidQuery when that is more than may be shown, or of more time."""
        query.check_export()
        text, parameters = export_sql(query)
        try:
            with _memory_told(), self._connection.client() as client:
                written: bytes = client.raw_query(
                    text, parameters={**parameters, "limit": self._max_rows}, fmt=_FORMATS[file_format]
                )
        except StoreError as error:
            if error.code != THROWN:
                raise
            message = f"group_by: more than {self._max_rows} rows; group by less, or ask for less time"
            raise InvalidQuery("group_by", message) from None
        return written

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
