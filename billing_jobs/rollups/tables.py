"""Marks and rollups in ClickHouse. Calls block and raise as the client does."""

from collections.abc import Sequence
from typing import Any

from billing_jobs.rollups.hours import Mark, Rollup, WriterSeen
from billing_jobs.rollups.views import DIMENSIONS, FIGURES

MAX_GROUPS = 1_000_000
"""Of one hour. One that has more stays with its events: its sums would not be one insert."""
_SEEN = """
    SELECT
        toUnixTimestamp(hour) * 1000, writer, maxIf(step, kind = 'written') AS written,
        dateDiff('millisecond', maxIf(marked_at, kind = 'written'), now64(3)),
        maxIf(step, kind = 'rolled') AS rolled
    FROM usage_hours
    WHERE tenant_id = '' AND kind != 'kept'
      AND hour IN (
        SELECT hour FROM usage_hours WHERE tenant_id = '' AND kind != 'kept' GROUP BY hour, writer
        HAVING maxIf(step, kind = 'written') > maxIf(step, kind = 'rolled')
      )
    GROUP BY hour, writer
"""
"""Of hours that are not settled."""
_DIMENSIONS, _FIGURES = ", ".join(DIMENSIONS), ", ".join(FIGURES)
_OF_HOUR = "hour = toDateTime({hour:UInt32}, 'UTC')"
_ROLL = f"""
    INSERT INTO usage_hours (kind, writer, step, version, hour, {_DIMENSIONS}, {_FIGURES})
    SELECT 'figures', '', 0, {{generation:UInt64}}, hour, {_DIMENSIONS}, {", ".join(f"sum({name})" for name in FIGURES)}
    FROM (
        SELECT toStartOfHour(accepted_at) AS hour, {_DIMENSIONS},
            {", ".join(f"{of_events} AS {name}" for name, of_events in FIGURES.items())}
        FROM usage_events FINAL
        WHERE toStartOfHour(accepted_at) = toDateTime({{hour:UInt32}}, 'UTC')
          AND toYYYYMM(accepted_at) = toYYYYMM(toDateTime({{hour:UInt32}}, 'UTC'))
        GROUP BY hour, {_DIMENSIONS}
        UNION ALL
        SELECT hour, {_DIMENSIONS}, {_FIGURES} FROM usage_hours
        WHERE kind = 'kept' AND tenant_id != '' AND {_OF_HOUR}
          AND version = (SELECT max(version) FROM usage_hours WHERE kind = 'kept' AND tenant_id = '' AND {_OF_HOUR})
    )
    GROUP BY hour, {_DIMENSIONS}
    UNION ALL
    SELECT 'rolled', covered.1, covered.2, {{generation:UInt64}}, toDateTime({{hour:UInt32}}, 'UTC'),
        {", ".join("''" for _ in DIMENSIONS)}, {", ".join("0" for _ in FIGURES)}
    FROM (SELECT arrayJoin(arrayZip({{writers:Array(String)}}, {{steps:Array(UInt64)}})) AS covered)
"""  # noqa: S608 - names from the tables of this package
_HOURS_OF_MONTH = """
    SELECT hour, max(generation) AS settled, max(kept) AS known, max(written > rolled) AS is_open FROM (
        SELECT
            hour, writer, maxIf(step, kind = 'written') AS written, maxIf(step, kind = 'rolled') AS rolled,
            maxIf(version, kind = 'rolled') AS generation, maxIf(version, kind = 'kept') AS kept
        FROM usage_hours
        WHERE tenant_id = '' AND toYYYYMM(hour) = {month:UInt32}
        GROUP BY hour, writer
    )
    GROUP BY hour
"""
_IS_OPEN = f"SELECT max(is_open) FROM ({_HOURS_OF_MONTH})"  # noqa: S608 - the same
_KEEP = f"""
    INSERT INTO usage_hours (kind, version, hour, {_DIMENSIONS}, {_FIGURES})
    WITH to_keep AS (SELECT hour, settled FROM ({_HOURS_OF_MONTH}) WHERE settled > known)
    SELECT 'kept', version, hour, {_DIMENSIONS}, {_FIGURES} FROM usage_hours
    WHERE kind = 'figures' AND toYYYYMM(hour) = {{month:UInt32}}
      AND (hour, version) IN (SELECT hour, settled FROM to_keep)
    UNION ALL
    SELECT 'kept', settled, hour, {", ".join("''" for _ in DIMENSIONS)}, {", ".join("0" for _ in FIGURES)} FROM to_keep
"""  # noqa: S608 - the same
ROLLER_SETTINGS = {
    # One part holds all of an insert, so it is seen whole or not at all.
    "max_threads": 1,
    "max_insert_threads": 1,
    "min_insert_block_size_rows": 2 * MAX_GROUPS,
    "min_insert_block_size_bytes": 0,
    "max_rows_to_group_by": MAX_GROUPS,
    "group_by_overflow_mode": "throw",
    "max_memory_usage": 1_073_741_824,
    "do_not_merge_across_partitions_select_final": 1,
}


def store_marks(client: Any, writer: str, marks: Sequence[Mark]) -> None:
    columns = [
        ("hour", "DateTime('UTC')", [mark.hour_ms // 1_000 for mark in marks]),
        ("kind", "LowCardinality(String)", ["written"] * len(marks)),
        ("writer", "String", [writer] * len(marks)),
        ("step", "UInt64", [mark.step for mark in marks]),
        ("version", "UInt64", [mark.step for mark in marks]),
    ]
    names, types, values = zip(*columns, strict=True)
    client.insert(
        "usage_hours", list(values), column_names=names, column_type_names=types, column_oriented=True,
        settings={"async_insert": 0},
    )  # fmt: skip


def seen_writers(client: Any) -> tuple[list[WriterSeen], int]:
    """Of hours that are not settled, and what time it is where the tables are."""
    now_ms = int(client.query("SELECT toUnixTimestamp64Milli(now64(3))").first_row[0])
    return [WriterSeen(*row) for row in client.query(_SEEN).result_rows], now_ms


def store_rollup(client: Any, rollup: Rollup) -> None:
    client.command(
        _ROLL,
        parameters={
            "hour": rollup.hour_ms // 1_000,
            "generation": rollup.generation,
            "writers": list(rollup.steps),
            "steps": list(rollup.steps.values()),
        },
    )


class NotSummed(Exception):
    """An hour of the month is open, or waits to be summed."""


def keep_sums(client: Any, month: int) -> None:
    """Before the events of a month (`yyyymm`) leave `usage_events`, of its hours to be read beside what comes later.
    Between this and their leaving a late event would be shown beside both, so one follows the other at once. Raises
    NotSummed.
    """
    asked = {"month": month}
    if client.query(_IS_OPEN, parameters=asked).first_row[0]:
        raise NotSummed(f"not all hours of {month // 100}-{month % 100:02d} are summed yet")
    client.command(_KEEP, parameters=asked, settings=ROLLER_SETTINGS)
