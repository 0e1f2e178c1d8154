"""Marks and rollups in ClickHouse. Calls block and raise as the client does."""

from collections.abc import Iterable, Sequence
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
    WHERE tenant_id = '' AND kind IN ('written', 'rolled')
      AND hour IN (
        SELECT hour FROM usage_hours WHERE tenant_id = '' AND kind IN ('written', 'rolled') GROUP BY hour, writer
        HAVING maxIf(step, kind = 'written') > maxIf(step, kind = 'rolled')
      )
    GROUP BY hour, writer
"""
"""Of hours that are not settled."""
_DIMENSIONS, _FIGURES = ", ".join(DIMENSIONS), ", ".join(FIGURES)
_NO_DIMENSIONS, _NO_FIGURES = ", ".join("''" for _ in DIMENSIONS), ", ".join("0" for _ in FIGURES)
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
        {_NO_DIMENSIONS}, {_NO_FIGURES}
    FROM (SELECT arrayJoin(arrayZip({{writers:Array(String)}}, {{steps:Array(UInt64)}})) AS covered)
"""  # noqa: S608 - names from the tables of this package
_HOURS_OF_MONTH = """
    SELECT hour, max(generation) AS settled, max(kept) AS known, max(written > rolled) AS is_open FROM (
        SELECT
            hour, writer, maxIf(step, kind = 'written') AS written, maxIf(step, kind = 'rolled') AS rolled,
            maxIf(version, kind = 'rolled') AS generation, maxIf(version, kind IN ('kept', 'keeping')) AS kept
        FROM usage_hours
        WHERE tenant_id = '' AND toYYYYMM(hour) = {month:UInt32}
        GROUP BY hour, writer
    )
    GROUP BY hour
"""
_IS_OPEN = f"SELECT max(is_open) FROM ({_HOURS_OF_MONTH})"  # noqa: S608 - the same
_KEEP = f"""
    INSERT INTO usage_hours (kind, writer, version, hour, {_DIMENSIONS}, {_FIGURES})
    WITH to_keep AS (SELECT hour, settled FROM ({_HOURS_OF_MONTH}) WHERE settled > known)
    SELECT 'kept', toString(version), version, hour, {_DIMENSIONS}, {_FIGURES} FROM usage_hours
    WHERE kind = 'figures' AND toYYYYMM(hour) = {{month:UInt32}}
      AND (hour, version) IN (SELECT hour, settled FROM to_keep)
    UNION ALL
    SELECT 'keeping', {{leaving:String}}, settled, hour, {_NO_DIMENSIONS}, {_NO_FIGURES} FROM to_keep
"""  # noqa: S608 - the same
"""A later version must not replace one that still counts when they are merged, so each is of another writer."""
_STAGED = """
    SELECT toYYYYMM(hour) AS month, groupUniqArray(leaving) FROM (
        SELECT hour, argMaxIf(writer, version, kind = 'keeping') AS leaving
        FROM usage_hours WHERE tenant_id = '' AND kind IN ('kept', 'keeping')
        GROUP BY hour HAVING maxIf(version, kind = 'keeping') > maxIf(version, kind = 'kept')
    )
    GROUP BY month
"""
"""Of months whose sums are kept, and do not count yet, some events that leave with all others."""
_IS_THERE = (
    "SELECT count() FROM usage_events WHERE toYYYYMM(accepted_at) = {month:UInt32} AND usage_id IN {ids:Array(String)}"
)
_COUNT_KEPT = f"""
    INSERT INTO usage_hours (kind, writer, step, version, hour, {_DIMENSIONS}, {_FIGURES})
    WITH staged AS (
        SELECT
            hour, maxIf(version, kind = 'keeping') AS sums, maxIf(version, kind = 'kept') AS known,
            maxIf(step, kind = 'written' AND writer = 'dropped') + 2 AS next_step
        FROM usage_hours WHERE tenant_id = '' AND toYYYYMM(hour) = {{month:UInt32}}
        GROUP BY hour HAVING sums > known
    )
    SELECT each.1, each.2, each.3, each.4, hour, {_NO_DIMENSIONS}, {_NO_FIGURES}
    FROM staged
    ARRAY JOIN [('kept', '', toUInt64(0), sums), ('written', 'dropped', next_step, next_step)] AS each
"""  # noqa: S608 - the same
"""Whoever summed one of these hours meanwhile knew nothing of what is kept, so they are to be summed again."""
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


def keep_sums(client: Any, month: int, leaving: str) -> None:
    """Before the events of a month (`yyyymm`) leave `usage_events`, of its hours to be read beside what comes later:
    from `count_kept` on, which does nothing as long as the event `leaving` is there. Raises NotSummed.
    """
    asked = {"month": month}
    if client.query(_IS_OPEN, parameters=asked).first_row[0]:
        raise NotSummed(f"not all hours of {month // 100}-{month % 100:02d} are summed yet")
    client.command(_KEEP, parameters={**asked, "leaving": leaving}, settings=ROLLER_SETTINGS)


def staged_months(client: Any) -> dict[int, list[str]]:
    """Months whose sums are kept and do not count yet: they are being dropped, or that died or failed. With events by
    which `have_left` knows.
    """
    return {int(month): list(ids) for month, ids in client.query(_STAGED).result_rows}


def have_left(client: Any, month: int, ids: Sequence[str]) -> bool:
    """Whether the month's events have left since its sums were kept. It looks for these among all of the month."""
    return not client.query(_IS_THERE, parameters={"month": month, "ids": list(ids)}).first_row[0]


def dropped_months(client: Any) -> list[int]:
    """Whose events have left since their sums were kept, which do not count yet."""
    return [month for month, ids in staged_months(client).items() if have_left(client, month, ids)]


def count_kept(client: Any, months: Iterable[int]) -> None:
    """From now on views show their sums beside what came, or comes, since."""
    for month in months:
        client.command(_COUNT_KEPT, parameters={"month": month}, settings=ROLLER_SETTINGS)
