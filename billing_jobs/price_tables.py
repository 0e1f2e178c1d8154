"""The tables of prices and of what GPUs cost: what is appended to them, and what is read. Used with a client."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson

from billing_jobs.gpu_costs import GpuPrice
from billing_jobs.native_rows import insert_rows
from billing_jobs.price_changes import PriceRefused, check_recorded
from billing_jobs.pricing import PriceRow, PriceScope, TokenCounts
from billing_jobs.rows import NAME, TEXT, TIME, TableRows, always, insert_once

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
    """Of the last change; 0 where there was none."""
    tables = ", ".join(
        f"(SELECT max(version) FROM {table})"  # noqa: S608 - ours
        for table in ("price_changes", "prices", "gpu_prices")
    )
    return int(client.query(f"SELECT greatest({tables})").first_row[0])


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


@dataclass(frozen=True, slots=True)
class MadeChange:
    """One change of prices, with all of its rows."""

    version: int
    actor: str
    reason: str
    prices: tuple[PriceRow, ...]
    gpu_prices: tuple[GpuPrice, ...]

    def check_recorded(self, at_ms: int) -> None:
        """Raises PriceRefused where it is void if it is recorded then."""
        begins_ms = [row.valid_from_ms for row in self.prices] + [row.valid_from_ms for row in self.gpu_prices]
        check_recorded(begins_ms, at_ms)


def insert_prices(client: Any, rows: Sequence[PriceRow]) -> None:
    """Of no change, and always: also where they are, word for word, those of an insert that died."""
    insert_rows(client, _prices_of(rows, (0, "", "")), always())


def insert_gpu_prices(client: Any, rows: Sequence[GpuPrice]) -> None:
    """As `insert_prices`."""
    insert_rows(client, _gpu_prices_of(rows, (0, "", "")), always())


def insert_change(client: Any, change: MadeChange) -> bool:
    """Whether it is the one with its version: another's counts, where it came first. This one insert decides; the rows
    of `prices` and `gpu_prices` are appended by `finish_last_change`. Raises PriceRefused where it is void.
    """
    texts = (change.actor, change.reason, _encoded(change.prices), _encoded(change.gpu_prices))
    names = ("version", "actor", "reason", "prices", "gpu_prices")
    types = ("UInt32", TEXT, TEXT, TEXT, TEXT)
    rows = TableRows("price_changes", "version", names, types, [[value] for value in (change.version, *texts)])
    insert_once(
        partial(insert_rows, client, rows), _token(change), lambda: _last_change(client, change.version) is None
    )
    counts = _last_change(client, change.version)
    if counts is None or counts[0] != change:
        return False
    change.check_recorded(counts[1])
    return True


def finish_last_change(client: Any) -> MadeChange | None:
    """The last one, if rows of it were missing; they are appended, unless it is void, and nobody ever sees it then.
    Those before it are whole, or void: one is planned after this.
    """
    last = _last_change(client)
    if last is None:
        return None
    change, recorded_at_ms = last
    try:
        change.check_recorded(recorded_at_ms)
    except PriceRefused:
        return None
    missing = [rows for rows in _tables_of(change) if _is_incomplete(client, rows, change.version)]
    for rows in missing:
        is_missing = partial(_is_incomplete, client, rows, change.version)
        insert_once(partial(insert_rows, client, rows), _token(change), is_missing)
    return change if missing else None


def _token(change: MadeChange) -> str:
    return f"prices {change.version}"


def _last_change(client: Any, version: int | None = None) -> tuple[MadeChange, int] | None:
    """With when it was recorded, by the clock of the tables. `version`: the one that counts of those."""
    found = client.query(
        "SELECT version, actor, reason, prices, gpu_prices, toUnixTimestamp64Milli(recorded_at) FROM price_changes"
        " WHERE {any:UInt8} OR version = {version:UInt32} ORDER BY version DESC, recorded_at LIMIT 1",
        parameters={"any": int(version is None), "version": version or 0},
    ).result_rows
    for number, actor, reason, prices, gpu_prices, recorded_at_ms in found:
        change = MadeChange(
            number, actor, reason, tuple(PriceRow(**each) for each in orjson.loads(prices)),
            tuple(GpuPrice(**each) for each in orjson.loads(gpu_prices)),
        )  # fmt: skip
        return change, recorded_at_ms
    return None


def _encoded(rows: Sequence[PriceRow | GpuPrice]) -> str:
    return orjson.dumps([asdict(row) for row in rows]).decode()


def _tables_of(change: MadeChange) -> list[TableRows]:
    """A pool's price is seen with the first of prices, or before it."""
    told = (change.version, change.actor, change.reason)
    tables = [_gpu_prices_of(change.gpu_prices, told), _prices_of(change.prices, told)]
    return [rows for rows in tables if len(rows)]


def _is_incomplete(client: Any, rows: TableRows, version: int) -> bool:
    """One insert is one part, so all of them are there or none."""
    query = f"SELECT count() FROM {rows.table} WHERE version = {{version:UInt32}}"  # noqa: S608 - ours
    return bool(client.query(query, parameters={"version": version}).first_row[0] < len(rows))


def _prices_of(rows: Sequence[PriceRow], told: tuple[int, str, str]) -> TableRows:
    return _rows("prices", "price_id", [("price_id", TEXT), *_PRICE_COLUMNS], rows, told)


def _gpu_prices_of(rows: Sequence[GpuPrice], told: tuple[int, str, str]) -> TableRows:
    return _rows("gpu_prices", "pool", _GPU_PRICE_COLUMNS, rows, told)


def _rows(
    table: str, identity: str, types: Sequence[tuple[str, str]], rows: Sequence[PriceRow | GpuPrice],
    told: tuple[int, str, str],
) -> TableRows:  # fmt: skip
    """`types` of fields that are called as in the rows, but for the time."""
    fields = {"valid_from": "valid_from_ms"}
    columns = [(name, type_, [getattr(row, fields.get(name, name)) for row in rows]) for name, type_ in types]
    whose = zip(("version", "actor", "reason"), ("UInt32", TEXT, TEXT), told, strict=True)
    columns += [(name, type_, [value] * len(rows)) for name, type_, value in whose]
    names, column_types, values = zip(*columns, strict=True)
    return TableRows(table, identity, names, column_types, list(values))
