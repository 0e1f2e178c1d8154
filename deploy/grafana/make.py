"""`python -m deploy.grafana.make`: writes the dashboards beside it anew.

Usage, costs and latency ask the views that a tenant's analysts have, and show whoever connects its own; operations is
the operator's.
"""

# ruff: noqa: S608 - texts of this module alone stand in the questions

import json
import sys
from pathlib import Path

from deploy.grafana.panels import Dashboard, Panel, dashboard_json

FOLDER = Path(__file__).parent
_TOKENS = "uncached_input_tokens + cached_input_tokens + output_tokens + reasoning_tokens"
_WHEN = "WHERE $__timeFilter_ms(accepted_at)"
_TIME = "$__timeInterval(accepted_at) AS time"
_COST = "toFloat64(sum(cost_pico)) / 1e12"
"""For a picture; the exact amount is `cost`."""


def _over_time(label: str, figure: str, of: str = "usage", further: str = "") -> str:
    name = label.split(" AS ")[-1]
    return f"SELECT {_TIME}, {label}, {figure} FROM {of} {_WHEN}{further} GROUP BY time, {name} ORDER BY time"


def _cost_by(column: str) -> str:
    return _over_time(f"concat({column}, ' ', currency) AS label", f"{_COST} AS cost")


USAGE = Dashboard(
    "sluice-usage",
    "Sluice usage",
    "Requests and tokens of what was accepted in the time shown.",
    [
        Panel("Requests", f"SELECT countIf(choice = 0) AS requests FROM usage {_WHEN}", "stat", width=6),
        Panel("Tokens", f"SELECT sum({_TOKENS}) AS tokens FROM usage {_WHEN}", "stat", width=6),
        Panel(
            "Prompts from the cache",
            f"SELECT sum(cached_input_tokens) / greatest(1, sum(uncached_input_tokens + cached_input_tokens)) AS cached"
            f" FROM usage {_WHEN}",
            "stat", "percentunit", 6,
        ),
        Panel("End users", f"SELECT uniqExact(tenant_id, end_user) AS users FROM usage {_WHEN} AND end_user != ''",
              "stat", width=6),
        Panel("Requests by model", _over_time("model", "countIf(choice = 0) AS requests"), stacked=True),
        Panel("Tokens by model", _over_time("model", f"sum({_TOKENS}) AS tokens"), stacked=True),
        Panel("Tokens by lane", _over_time("lane", f"sum({_TOKENS}) AS tokens"), stacked=True),
        Panel("Tokens by key", _over_time("key_id", f"sum({_TOKENS}) AS tokens"), stacked=True),
        Panel(
            "Classes of tokens",
            f"SELECT {_TIME}, sum(uncached_input_tokens) AS input, sum(cached_input_tokens) AS cached_input,"
            f" sum(output_tokens) AS output, sum(reasoning_tokens) AS reasoning FROM usage {_WHEN}"
            " GROUP BY time ORDER BY time",
            stacked=True,
        ),
        Panel("How responses end", _over_time("ending", "count() AS responses"), stacked=True),
    ],
)  # fmt: skip
COSTS = Dashboard(
    "sluice-costs",
    "Sluice costs",
    "Cost of what was accepted in the time shown, at the prices that held then.",
    [
        Panel(
            "Cost",
            f"SELECT currency, sum(cost) AS cost FROM usage {_WHEN} AND charge_state = 'priced' GROUP BY currency"
            " ORDER BY currency",
            "table", width=8,
        ),
        Panel(
            "Saved by the cache",
            "SELECT price.currency AS currency,"
            " toDecimal256(sum(toInt128(cached_input_tokens) * (uncached_input_pico - cached_input_pico)), 12)"
            " / 1000000000000 AS saved FROM usage AS event INNER JOIN price_intervals AS price"
            f" ON event.price_id = price.price_id {_WHEN} AND charge_state = 'priced' GROUP BY currency"
            " ORDER BY currency",
            "table", width=8,
        ),
        Panel(
            "Waits for a price",
            f"SELECT model, count() AS events FROM usage {_WHEN} AND charge_state = 'suspense' GROUP BY model"
            " ORDER BY model",
            "table", width=8, description="It is in no cost here until there is a price.",
        ),
        Panel("Cost by model", _cost_by("model"), stacked=True),
        Panel("Cost by project", _cost_by("project_id"), stacked=True),
        Panel("Cost by key", _cost_by("key_id"), stacked=True),
        Panel("Cost by lane", _cost_by("lane"), stacked=True),
        Panel(
            "Keys that cost most",
            "SELECT project_id, key_id, currency, countIf(choice = 0) AS requests, sum(cost) AS cost FROM usage"
            f" {_WHEN} GROUP BY project_id, key_id, currency ORDER BY cost DESC LIMIT 50",
            "table",
        ),
        Panel(
            "Invoices",
            "SELECT month, tenant_id, number, currency, usage, adjustments, total, closed_at FROM invoices"
            " WHERE $__timeFilter_ms(closed_at) ORDER BY month DESC, tenant_id, number DESC LIMIT 50",
            "table", description="That were made in the time shown.",
        ),
        Panel(
            "Prices in force",
            "SELECT model, currency, valid_from, uncached_input_pico / 1e6 AS input, cached_input_pico / 1e6 AS cached,"
            " output_pico / 1e6 AS output, reasoning_pico / 1e6 AS reasoning FROM price_intervals"
            " WHERE valid_from <= now() AND (valid_until IS NULL OR valid_until > now()) ORDER BY model",
            "table", description="Of a million tokens.",
        ),
    ],
    since="now-30d",
    refresh="5m",
)  # fmt: skip
_BEGUN = f"{_WHEN} AND first_token_at IS NOT NULL"
_FIRST = "dateDiff('millisecond', accepted_at, assumeNotNull(first_token_at))"
_END = "dateDiff('millisecond', accepted_at, ended_at)"
_SPEED = (
    "quantileExact(0.5)((output_tokens + reasoning_tokens - 1) * 1000"
    " / greatest(1, dateDiff('millisecond', assumeNotNull(first_token_at), ended_at))) AS tokens_a_second"
)


def _percentiles(of: str, further: str = "") -> str:
    figures = ", ".join(f"quantileExact({part / 100})({of}) AS p{part}" for part in (50, 95, 99))
    return f"SELECT {_TIME}, {figures} FROM usage {_BEGUN}{further} GROUP BY time ORDER BY time"


LATENCY = Dashboard(
    "sluice-latency",
    "Sluice latency",
    "How long answers take, from when they were accepted.",
    [
        Panel("Until the first token", _percentiles(_FIRST), unit="ms"),
        Panel("Until the first token, interactive", _percentiles(_FIRST, " AND lane = 'interactive'"), unit="ms"),
        Panel("First token p99 by lane", f"SELECT {_TIME}, lane, quantileExact(0.99)({_FIRST}) AS p99 FROM usage"
              f" {_BEGUN} GROUP BY time, lane ORDER BY time", unit="ms"),
        Panel("First token p99 by model", f"SELECT {_TIME}, model, quantileExact(0.99)({_FIRST}) AS p99 FROM usage"
              f" {_BEGUN} GROUP BY time, model ORDER BY time", unit="ms"),
        Panel("Until the end", _percentiles(_END), unit="ms"),
        Panel("Tokens a second of an answer, by model", f"SELECT {_TIME}, model, {_SPEED} FROM usage {_BEGUN}"
              " AND output_tokens + reasoning_tokens > 1 GROUP BY time, model ORDER BY time"),
        Panel(
            "Where the time goes until the first token, p95",
            f"SELECT {_TIME}, quantileExact(0.95)(stage_ms['routing'] - stage_ms['gateway']) AS admission,"
            " quantileExact(0.95)(stage_ms['worker'] - stage_ms['routing']) AS queue,"
            f" quantileExact(0.95)(stage_ms['prefill'] - stage_ms['worker']) AS prompt FROM usage {_BEGUN}"
            " AND mapContains(stage_ms, 'prefill') AND mapContains(stage_ms, 'routing') GROUP BY time ORDER BY time",
            unit="ms",
        ),
        Panel(
            "Slowest responses",
            f"SELECT response_id, model, lane, {_FIRST} AS first_token_ms, {_END} AS end_ms, attempts, ending"
            f" FROM usage {_BEGUN} ORDER BY first_token_ms DESC LIMIT 50",
            "table",
        ),
    ],
    since="now-6h",
)  # fmt: skip
OPERATIONS = Dashboard(
    "sluice-operations",
    "Sluice operations",
    "For the operator: tenants, workers and billing itself.",
    [
        Panel("Tokens by tenant", _over_time("tenant_id", f"sum({_TOKENS}) AS tokens"), stacked=True),
        Panel("Tokens by pool", _over_time("pool", f"sum({_TOKENS}) AS tokens"), stacked=True),
        Panel("Responses by worker", _over_time("worker_id", "count() AS responses", further=" AND worker_id != ''"),
              stacked=True),
        Panel(
            "Taken up again",
            _over_time("ending", "count() AS responses", further=" AND attempts > 1"),
            stacked=True, description="By how they ended: a worker was lost, and another went on.",
        ),
        Panel(
            "Refused and evicted",
            _over_time("ending", "count() AS responses", further=" AND attempts = 0"),
            stacked=True,
        ),
        Panel(
            "Engine time by outcome",
            "SELECT $__timeInterval(logged_at) AS time, outcome, sum(engine_ms) AS engine_ms FROM compute_records"
            " FINAL WHERE $__timeFilter_ms(logged_at) GROUP BY time, outcome ORDER BY time",
            unit="ms", stacked=True,
        ),
        Panel(
            "Margin of the last 30 days",
            "SELECT pool, model, currency, sum(tokens) AS tokens, sum(charged_pico) / 1e12 AS charged,"
            " sum(gpu_cost_pico) / 1e12 AS gpu_cost, sum(margin_pico) / 1e12 AS margin FROM margins"
            " WHERE day >= today() - 30 GROUP BY pool, model, currency ORDER BY margin",
            "table", description="Idle hours of GPUs are of no model.",
        ),
        Panel(
            "What GPUs cost in the last 30 days, by tenant",
            "SELECT pool, if(kind = 'idle', '(idle)', tenant_id) AS tenant, currency,"
            " sum(engine_ms) / 3600000 AS hours, sum(cost_pico) / 1e12 AS cost FROM gpu_costs"
            " WHERE hour >= today() - 30 GROUP BY pool, tenant, currency ORDER BY cost DESC LIMIT 100",
            "table", description="Of hours in which a worker was there.",
        ),
        Panel(
            "Workers that were there, and had anything to do",
            "SELECT hour AS time, uniqExact(region, pool, worker_id) AS there,"
            " uniqExactIf((region, pool, worker_id), kind = 'work') AS worked FROM gpu_costs"
            " WHERE $__timeFilter_ms(hour) GROUP BY time ORDER BY time",
        ),
        Panel(
            "How late usage is stored",
            "SELECT $__timeInterval(inserted_at) AS time,"
            " quantileExact(0.5)(dateDiff('millisecond', last_logged_at, inserted_at)) AS p50,"
            " quantileExact(0.99)(dateDiff('millisecond', last_logged_at, inserted_at)) AS p99 FROM billing_batches"
            " FINAL WHERE $__timeFilter_ms(inserted_at) GROUP BY time ORDER BY time",
            unit="ms",
        ),
        Panel(
            "Batches and dead letters",
            "SELECT $__timeInterval(inserted_at) AS time, count() AS batches, sum(records) AS records,"
            " sum(dead_letters) AS dead_letters FROM billing_batches FINAL WHERE $__timeFilter_ms(inserted_at)"
            " GROUP BY time ORDER BY time",
        ),
        Panel(
            "Costs that no price explains",
            "SELECT usage_id, price_id, price_id_in_force, cost_pico, recomputed_pico FROM price_differences LIMIT 100",
            "table", description="Always empty.",
        ),
        Panel(
            "Offsets that no batch covers",
            "SELECT topic, partition, previous_end + 1 AS missing_from, first_offset - 1 AS missing_to FROM ("
            "SELECT topic, partition, first_offset,"
            " max(last_offset) OVER (PARTITION BY topic, partition ORDER BY first_offset"
            " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS previous_end, row_number() OVER (PARTITION BY topic,"
            " partition ORDER BY first_offset) AS place FROM billing_batches FINAL)"
            " WHERE place > 1 AND first_offset > previous_end + 1",
            "table", description="Always empty.",
        ),
    ],
    since="now-24h",
)  # fmt: skip
DASHBOARDS = {"usage": USAGE, "costs": COSTS, "latency": LATENCY, "operations": OPERATIONS}
"""By the name of their file."""


def written(dashboard: Dashboard) -> str:
    return json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(written(dashboard))
        print(f"{name}.json: {len(dashboard.panels)} panels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
