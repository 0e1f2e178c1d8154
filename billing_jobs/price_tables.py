"""The tables of prices and of what GPUs cost: what is appended to them, and what is read. Used with a client."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.pricing import PriceRow, PriceScope, TokenCounts
from billing_jobs.rows import INSERT_SETTINGS, NAME, TEXT, TIME, insert_once

Columns = list[tuple[str, str, list[Any]]]
_PRICE_COLUMNS = (
    ("model", NAME), ("currency", NAME), ("valid_from", TIME), ("uncached_input_pico", "Int64"),
    ("cached_input_pico", "Int64"), ("output_pico", "Int64"), ("reasoning_pico", "Int64"), ("tenant_id", NAME),
    ("endpoint", NAME), ("lane", NAME), ("region", NAME), ("withdrawn", "Bool"),
)  # fmt: skip
"""As a PriceRow has them, in its order."""
_GPU_PRICE_COLUMNS = (
    ("pool", NAME), ("currency", NAME), ("valid_from", TIME), ("gpu_hour_pico", "Int64"), ("gpus", "UInt16"),
)  # fmt: skip
"""As a GpuPrice has them, in its order."""


def _read(client: Any, table: str, columns: Sequence[tuple[str, str]], order: str) -> list[Any]:
    query = f"SELECT {_names(columns)} FROM {table} ORDER BY {order}, valid_from, recorded_at, version"  # noqa: S608
    return list(client.query(query).result_rows)


def _names(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"toUnixTimestamp64Milli({name})" if type_ == TIME else name for name, type_ in columns)


def read_prices(client: Any) -> list[PriceRow]:
    """Of two of a scope that start together, the one that counts comes first."""
    return list(dict.fromkeys(PriceRow(*row) for row in _read(client, "prices", _PRICE_COLUMNS, "model")))


def read_gpu_prices(client: Any) -> list[GpuPrice]:
    """Of two of a pool that start together, the one that counts comes first."""
    return list(dict.fromkeys(GpuPrice(*row) for row in _read(client, "gpu_prices", _GPU_PRICE_COLUMNS, "pool")))


def version_of_prices(client: Any) -> int:
    """Of the last change of either table; 0 where there was none."""
    found = client.query("SELECT greatest((SELECT max(version) FROM prices), (SELECT max(version) FROM gpu_prices))")
    return int(found.first_row[0])


def read_used(client: Any, models: Sequence[str], since_ms: int) -> dict[PriceScope, TokenCounts]:
    """What was, or is to be, charged of each model and accepted since then, by what prices may be for."""
    found = client.query(
        "SELECT model, tenant_id, endpoint, lane, region, sum(uncached_input_tokens), sum(cached_input_tokens),"
        " sum(output_tokens), sum(reasoning_tokens) FROM usage_events FINAL WHERE charge_state != 'not_billable'"
        " AND accepted_at >= fromUnixTimestamp64Milli({since_ms:Int64}, 'UTC')"
        " AND model IN {models:Array(String)} GROUP BY model, tenant_id, endpoint, lane, region",
        parameters={"since_ms": since_ms, "models": list(models)},
    ).result_rows
    return {PriceScope(*row[:5]): TokenCounts(*map(int, row[5:])) for row in found}


def insert_prices(client: Any, rows: Sequence[PriceRow], version: int, actor: str, reason: str) -> bool:
    """Whether they are what the change `version` made: another's with that number counts, where it came first. 0: of no
    change, and always.
    """
    columns: Columns = [("price_id", TEXT, [row.price_id for row in rows])]
    return _append(client, "prices", columns, _PRICE_COLUMNS, rows, (version, actor, reason))


def insert_gpu_prices(client: Any, rows: Sequence[GpuPrice], version: int, actor: str, reason: str) -> bool:
    """As `insert_prices`."""
    return _append(client, "gpu_prices", [], _GPU_PRICE_COLUMNS, rows, (version, actor, reason))


def _append(
    client: Any, table: str, columns: Columns, types: Sequence[tuple[str, str]], rows: Sequence[Any],
    change: tuple[int, str, str],
) -> bool:  # fmt: skip
    version, *_ = change
    if not version:
        _insert(client, table, columns, types, rows, change, {})
        return True
    insert_once(
        partial(_insert, client, table, columns, types, rows, change), f"prices {version}",
        lambda: not _of_change(client, table, types, version),
    )  # fmt: skip
    return _of_change(client, table, types, version) == {astuple(row) for row in rows}


def _of_change(client: Any, table: str, types: Sequence[tuple[str, str]], version: int) -> set[tuple[Any, ...]]:
    query = f"SELECT {_names(types)} FROM {table} WHERE version = {{version:UInt32}}"  # noqa: S608 - ours
    return set(map(tuple, client.query(query, parameters={"version": version}).result_rows))


def _insert(
    client: Any, table: str, columns: Columns, types: Sequence[tuple[str, str]], rows: Sequence[PriceRow | GpuPrice],
    change: tuple[int, str, str], settings: dict[str, Any],
) -> None:  # fmt: skip
    """`types` of fields that are called as in the rows, but for the time."""
    fields = {"valid_from": "valid_from_ms"}
    columns = [
        *columns,
        *((name, type_, [getattr(row, fields.get(name, name)) for row in rows]) for name, type_ in types),
    ]
    told = zip(("version", "actor", "reason"), ("UInt32", TEXT, TEXT), change, strict=True)
    columns += [(name, type_, [value] * len(rows)) for name, type_, value in told]
    names, column_types, values = zip(*columns, strict=True)
    client.insert(
        table, list(values), column_names=names, column_type_names=column_types, column_oriented=True,
        settings={**INSERT_SETTINGS, **settings},
    )  # fmt: skip
