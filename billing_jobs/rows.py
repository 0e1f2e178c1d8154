"""Batches as columns: the one mapping from events to the tables of the migrations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar
from uuid import uuid4

from billing_jobs.charges import Charges
from billing_jobs.columns import Columned
from billing_jobs.cut import Batch
from billing_jobs.reading import Events
from schemas.usage import ComputeRecord, DeliveredCount, Presence, UsageEvent
from streams.topics import HOUR_MS

Rows = TypeVar("Rows")

TEXT = "String"
NAME = "LowCardinality(String)"
TIME = "DateTime64(3, 'UTC')"
STAGES = "Map(LowCardinality(String), Int64)"
# Explicit: defaults of these moved between versions. A dependent view must recognise what its source recognises.
INSERT_SETTINGS = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
}


def always() -> dict[str, Any]:
    """Settings of an insert that is never taken for an earlier one. (Without a token engines go by the rows alone.)"""
    return {"insert_deduplication_token": str(uuid4())}


def insert_once(insert: Callable[[dict[str, Any]], None], token: str, is_missing: Callable[[], bool]) -> None:
    """`insert` is given settings: first `token`, under which the engine counts rows once.

    The engine notes a token before its rows become visible. Killed in between, it would take the token for known and
    drop the rows for ever: so what `is_missing` then is inserted under a token that nobody knows. (Engines from 26.9 on
    recognise rows by their content even with `insert_deduplicate` 0.)
    """
    insert({"insert_deduplication_token": token})
    if is_missing():
        insert({"insert_deduplication_token": f"{token} {uuid4()}"})


@dataclass(frozen=True, slots=True)
class Column(Generic[Rows]):
    """`type` is ClickHouse's, equal to the one in the tables; times are given in Unix milliseconds."""

    name: str
    type: str
    values: Callable[[Rows], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for one table, column by column. `identity` names the column that tells rows apart."""

    table: str
    identity: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    columns: list[Sequence[Any]]

    def __len__(self) -> int:
        return len(self.columns[0])

    def column(self, name: str) -> Sequence[Any]:
        return self.columns[self.names.index(name)]


def _rows(table: str, identity: str, columns: Sequence[Column[Rows]], rows: Rows) -> TableRows:
    return TableRows(
        table,
        identity,
        tuple(column.name for column in columns),
        tuple(column.type for column in columns),
        [column.values(rows) for column in columns],
    )


def _of_path(path: str) -> Callable[[Columned[Any]], Sequence[Any]]:
    return lambda rows: rows.columns[path]


def _scope_columns(*names: str) -> list[Column[Events[Any]]]:
    return [_event_column(name, NAME, f"scope.{name}") for name in names]


def _log_columns() -> list[Column[Events[Any]]]:
    return [
        _event_column("log_partition", "UInt32", "partition"),
        _event_column("log_offset", "UInt64", "offset"),
        _event_column("logged_at", TIME, "logged_at_ms"),
    ]


def _event_column(name: str, type_: str, path: str = "") -> Column[Events[Any]]:
    """`path` where it differs from the column's name."""
    return Column(name, type_, _of_path(path or name))


def _first_token_at(usage: Events[UsageEvent]) -> Sequence[int | None]:
    return [at_ms or None for at_ms in usage.columns["first_token_at_ms"]]


def _delivered_id(delivered: Events[DeliveredCount]) -> Sequence[str]:
    stood = zip(delivered.columns["partition"], delivered.columns["offset"], strict=True)
    return [f"{partition}-{offset}" for partition, offset in stood]


def _hour(presence: Events[Presence]) -> Sequence[int]:
    return [at_ms - at_ms % HOUR_MS for at_ms in presence.columns["hour_ms"]]


def _presence_id(presence: Events[Presence]) -> Sequence[str]:
    names = map(presence.columns.__getitem__, ("scope.region", "pool", "worker_id"))
    return ["/".join(map(str, each)) for each in zip(*names, _hour(presence), strict=True)]


_USAGE: list[Column[Events[UsageEvent]]] = [
    _event_column("usage_id", TEXT),
    _event_column("response_id", TEXT),
    _event_column("choice", "UInt32"),
    *_scope_columns("tenant_id", "project_id", "key_id", "region", "encryption_key_id"),
    _event_column("end_user", TEXT, "scope.end_user"),
    _event_column("policy_version", "UInt32", "scope.policy_version"),
    _event_column("traceparent", TEXT, "scope.traceparent"),
    _event_column("schema_version", "UInt16"),
    _event_column("stage_ms", STAGES),
    *(
        _event_column(name, NAME)
        for name in ("endpoint", "model", "requested_model", "pool", "lane", "worker_id", "finish_reason")
    ),
    _event_column("ending", NAME),
    _event_column("attempts", "UInt32"),
    _event_column("billable", "Bool"),
    _event_column("billing_rule_version", "UInt16"),
    _event_column("accepted_at", TIME, "accepted_at_ms"),
    Column("first_token_at", f"Nullable({TIME})", _first_token_at),
    _event_column("ended_at", TIME, "ended_at_ms"),
    *(
        _event_column(name, "UInt32")
        for name in (
            "uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "released_tokens",
            "reserved_tokens",
        )
    ),
    *_log_columns(),
]  # fmt: skip

_CHARGE: list[Column[Charges]] = [
    Column("charge_state", NAME, _of_path("state")),
    Column("cost_pico", "Int128", _of_path("cost_pico")),
    Column("currency", NAME, _of_path("currency")),
    Column("price_id", NAME, _of_path("price_id")),
]

_COMPUTE: list[Column[Events[ComputeRecord]]] = [
    _event_column("attempt_id", TEXT),
    _event_column("response_id", TEXT),
    *_scope_columns("tenant_id", "project_id", "region"),
    *(_event_column(name, NAME) for name in ("worker_id", "pool", "model", "outcome")),
    *(_event_column(name, "UInt32") for name in ("prompt_tokens", "cached_tokens", "generated_tokens")),
    _event_column("engine_ms", "UInt64"),
    *_log_columns(),
]

_DELIVERED: list[Column[Events[DeliveredCount]]] = [
    Column("delivered_id", TEXT, _delivered_id),
    _event_column("response_id", TEXT),
    *_scope_columns("tenant_id", "project_id", "region"),
    _event_column("gateway_id", NAME),
    _event_column("delivered_tokens", "UInt32"),
    *_log_columns(),
]


_PRESENCE: list[Column[Events[Presence]]] = [
    Column("presence_id", TEXT, _presence_id),
    *_scope_columns("tenant_id", "region"),
    *(_event_column(name, NAME) for name in ("pool", "worker_id")),
    Column("hour", TIME, _hour),
    *_log_columns(),
]


def _batch_column(name: str, type_: str, value: Callable[[Batch], Any]) -> Column[Batch]:
    return Column(name, type_, lambda batch: [value(batch)])


_BATCH: list[Column[Batch]] = [
    _batch_column("batch_id", TEXT, attrgetter("cut.token")),
    _batch_column("topic", NAME, attrgetter("cut.topic")),
    _batch_column("partition", "UInt32", attrgetter("cut.partition")),
    _batch_column("first_offset", "UInt64", attrgetter("cut.first")),
    _batch_column("last_offset", "UInt64", attrgetter("cut.last")),
    _batch_column("records", "UInt64", attrgetter("cut.records")),
    _batch_column("usage_rows", "UInt64", lambda batch: len(batch.usage)),
    _batch_column("compute_rows", "UInt64", lambda batch: len(batch.compute)),
    _batch_column("delivered_rows", "UInt64", lambda batch: len(batch.delivered)),
    _batch_column("presence_rows", "UInt64", lambda batch: len(batch.presence)),
    _batch_column("dead_letters", "UInt64", lambda batch: len(batch.unusable)),
    _batch_column("sha256", "FixedString(64)", attrgetter("cut.sha256")),
    _batch_column("row_schema", "UInt16", attrgetter("cut.row_schema")),
    _batch_column("log_id", NAME, attrgetter("log_id")),
    _batch_column("decisions", "Int64", attrgetter("decisions")),
    _batch_column("first_logged_at", TIME, attrgetter("first_logged_at_ms")),
    _batch_column("last_logged_at", TIME, attrgetter("last_logged_at_ms")),
]


USAGE_COLUMNS = (*(column.name for column in _USAGE), *(column.name for column in _CHARGE))
"""Of `usage_events`, as inserted."""


def tables_of(batch: Batch) -> list[TableRows]:
    """What to insert, in order. The row of `billing_batches` is last: it says that the others are stored."""
    usage = _rows("usage_events", "usage_id", _USAGE, batch.usage)
    charges = _rows("usage_events", "usage_id", _CHARGE, batch.charges)
    tables = [
        TableRows(
            "usage_events",
            "usage_id",
            usage.names + charges.names,
            usage.types + charges.types,
            usage.columns + charges.columns,
        ),
        _rows("compute_records", "attempt_id", _COMPUTE, batch.compute),
        _rows("delivered_counts", "delivered_id", _DELIVERED, batch.delivered),
        _rows("worker_presence", "presence_id", _PRESENCE, batch.presence),
    ]
    return [*(table for table in tables if len(table)), _rows("billing_batches", "batch_id", _BATCH, batch)]
