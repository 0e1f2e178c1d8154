"""Usage that waited for a price gets it, within ClickHouse."""

from collections.abc import Callable, Iterable
from typing import Any

from billing_jobs.rows import INSERT_SETTINGS, USAGE_COLUMNS
from schemas.billing_rules import BILLING_RULE_VERSION

_PRICED_NOW = """
    FROM (
        SELECT * FROM usage_events FINAL
        WHERE toYYYYMM(accepted_at) = {month:UInt32} AND charge_state = 'suspense'
          AND billing_rule_version <= {rule:UInt16}
    ) AS event
    ASOF INNER JOIN price_timeline AS price
        ON event.model = price.model AND event.tenant_id = price.tenant_id AND event.endpoint = price.endpoint
        AND event.lane = price.lane AND event.region = price.region AND event.accepted_at >= price.valid_from
    WHERE price.price_id != ''
"""
_MONTHS = (
    "SELECT DISTINCT toYYYYMM(accepted_at) FROM usage_events WHERE charge_state = 'suspense'"
    " AND billing_rule_version <= {rule:UInt16}"
)
"""Read without FINAL, where next to nothing waits: which months must be read with it."""
_MONTHS_OF_PRICED = f"{_MONTHS} AND model IN (SELECT model FROM prices)"  # noqa: S608 - ours
_IS_ANY_LEFT = """
    SELECT 1 FROM usage_events FINAL
    WHERE toYYYYMM(accepted_at) = {month:UInt32} AND charge_state = 'suspense' AND billing_rule_version <= {rule:UInt16}
    LIMIT 1
"""
_WAITING = (
    "SELECT event.usage_id, event.tenant_id, toUnixTimestamp(toStartOfHour(event.accepted_at)) * 1000"
    f" {_PRICED_NOW} LIMIT {{max_rows:UInt32}}"
)
_NEW_CHARGE = {
    "charge_state": "'priced'",
    "cost_pico": "toInt128(uncached_input_tokens) * uncached_input_pico + toInt128(cached_input_tokens)"
    " * cached_input_pico + toInt128(output_tokens) * output_pico + toInt128(reasoning_tokens) * reasoning_pico",
    "currency": "price.currency",
    "price_id": "price.price_id",
}
_REPRICE = (
    f"INSERT INTO usage_events ({', '.join(USAGE_COLUMNS)})"
    f" SELECT {', '.join(_NEW_CHARGE.get(name, f'event.{name}') for name in USAGE_COLUMNS)} {_PRICED_NOW}"
    " AND event.tenant_id IN {tenants:Array(String)} AND event.usage_id IN {ids:Array(String)}"
)


def reprice(client: Any, max_rows: int, open_hours: Callable[[Iterable[int]], None]) -> int:
    """Inserts up to so many rows that wait for a price again, with the one in force when they were accepted; says how
    many. 0 when none of them has a price yet. A row that had a price keeps it. `open_hours` is told before which hours
    are written to.
    """
    rule = {"rule": BILLING_RULE_VERSION}
    months = client.query(_MONTHS_OF_PRICED, parameters=rule).result_rows
    for [month] in months:
        found = client.query(_WAITING, parameters={**rule, "month": month, "max_rows": max_rows}).result_rows
        if not found:
            continue
        open_hours({row[2] for row in found})
        client.command(
            _REPRICE,
            parameters={
                **rule,
                "month": month,
                "max_rows": max_rows,
                "ids": [row[0] for row in found],
                "tenants": sorted({row[1] for row in found}),
            },
            settings={**INSERT_SETTINGS, "insert_deduplicate": 0},
        )
        return len(found)
    return 0


def usage_waits(client: Any) -> bool:
    """Whether any row waits for a price, known or not."""
    rule = {"rule": BILLING_RULE_VERSION}
    months = client.query(_MONTHS, parameters=rule).result_rows
    return any(client.query(_IS_ANY_LEFT, parameters={**rule, "month": month}).result_rows for [month] in months)
