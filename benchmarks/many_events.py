"""Millions of usage events in billing's tables, made within the engine, as a month of several tenants leaves them."""

import time

from billing_jobs.metrics import BillingMetrics
from billing_jobs.rollups.hours import OpenHours
from billing_jobs.rollups.roller import LOOK_PERIOD_S, Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS, store_marks
from billing_jobs.store import Connection, Database
from streams.clocks import DAY_MS, HOUR_MS, hour_of

TENANTS, DAYS = 20, 30
_AT_ONCE = 500_000
_ROWS = """
    INSERT INTO usage_events (
        usage_id, response_id, tenant_id, project_id, key_id, end_user, region, schema_version, stage_ms, endpoint,
        model, requested_model, pool, lane, worker_id, attempts, ending, finish_reason, billable, billing_rule_version,
        accepted_at, first_token_at, ended_at, uncached_input_tokens, cached_input_tokens, output_tokens,
        released_tokens, charge_state, cost_pico, currency, price_id, log_partition, log_offset, logged_at
    )
    WITH
        sipHash64(number, 1) AS chance,
        {start_ms:Int64} + toInt64(number * {span_ms:Int64} / {events:UInt64}) AS at_ms,
        concat('resp_bench-', toString(number % 64), '_', hex(MD5(toString(number)))) AS response,
        concat('model-', toString(chance % 3)) AS named,
        200 + chance % 50 AS input, chance % 300 AS output
    SELECT
        concat(response, '/0'), response, concat('tenant-', leftPad(toString(chance % {tenants:UInt64}), 2, '0')),
        'chat', concat('key-', toString(chance % 40)), hex(sipHash128(chance % 1000)), 'bench', 1,
        map('gateway', at_ms, 'admission', at_ms + 10, 'worker', at_ms + 60, 'post-safety', at_ms + 900),
        'chat.completions', named, named, 'default', if(chance % 2, 'standard', 'premium'),
        concat('worker-', toString(chance % 4)), 1, if(chance % 20, 'completed', 'cancelled'), 'stop', true, 1,
        fromUnixTimestamp64Milli(at_ms, 'UTC'), fromUnixTimestamp64Milli(at_ms + 120, 'UTC'),
        fromUnixTimestamp64Milli(at_ms + 900, 'UTC'), input, 64, output, output, 'priced',
        toInt128(input) * 100 + 64 * 20 + toInt128(output) * 400, 'USD', concat(named, '@0'), 0, number,
        fromUnixTimestamp64Milli(at_ms + 950, 'UTC')
    FROM numbers({first:UInt64}, {count:UInt64})
"""


def fill(connection: Connection, events: int, end_ms: int) -> None:
    """Of the `DAYS` days before; the hours are marked as a sink does."""
    span_ms = DAYS * DAY_MS
    start_ms = hour_of(end_ms - span_ms)
    hours, marks = OpenHours(), range(start_ms, end_ms, HOUR_MS)
    with connection.client() as client:
        store_marks(client, "benchmark", opened := hours.opening(marks, 0))
        hours.stored(opened, 0)
        for first in range(0, events, _AT_ONCE):
            client.command(
                _ROWS,
                parameters={
                    "start_ms": start_ms, "span_ms": span_ms, "events": events, "tenants": TENANTS, "first": first,
                    "count": min(_AT_ONCE, events - first),
                },
                settings={"max_threads": 2, "max_insert_threads": 2, "max_partitions_per_insert_block": 100},
            )  # fmt: skip
        store_marks(client, "benchmark", hours.closing(0, all_of_them=True))


def settle(database: Database, metrics: BillingMetrics) -> float:
    """Sums all hours; says how many seconds of work one took."""
    connection = database.connection(ROLLER_SETTINGS)
    roller, rolled, began_s = Roller(connection, metrics, time.monotonic), 0, time.monotonic()
    while roller.step() != LOOK_PERIOD_S:
        rolled += 1
    roller.close()
    return (time.monotonic() - began_s) / max(1, rolled)
