# ruff: noqa: S608 - names and parts of this module alone stand in the text of a statement
"""Which usage counts: what a closing, a draft and a check ask the tables.

An event counts once, by its identity: where it stands in the log changes with a replay, and which of its rows is left
with a merge. What was counted of a month is compared with what the tables hold of it now. Events that are there and
were not counted are late; those that were counted otherwise are re-rated, by what they differ; those that were counted
and are gone are missing, and nothing is made of these.
"""

SUMS = ("events", "uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost_pico")
COLUMNS = ("usage_id", "kind", "model", "currency", "price_id", *SUMS)
"""Of what each statement below gives."""

_IS_PRICED = "charge_state = 'priced'"
_NOW = f"""
    SELECT
        usage_id, model,
        if({_IS_PRICED}, currency, '') AS currency, if({_IS_PRICED}, price_id, '') AS price_id, toInt64(1) AS events,
        {", ".join(f"if({_IS_PRICED}, toInt64({name}), 0) AS {name}" for name in SUMS[1:-1])}, cost_pico
    FROM usage_events FINAL
    WHERE tenant_id = {{tenant:String}} AND charge_state IN ('priced', 'suspense')
      AND accepted_at >= fromUnixTimestamp64Milli({{start_ms:Int64}}, 'UTC')
      AND accepted_at < fromUnixTimestamp64Milli({{end_ms:Int64}}, 'UTC')
"""
_COUNTED = f"""
    SELECT usage_id, model, currency, price_id, {", ".join(SUMS)}
    FROM invoice_usage
    WHERE tenant_id = {{tenant:String}} AND month = {{month:Date}}
      AND closing_id IN (SELECT closing_id FROM counting_closings WHERE tenant_id = {{tenant:String}})
"""
FIRST_COUNT = f"SELECT *, 'usage' AS kind FROM ({_NOW})"
"""Of a month that is not closed."""


def _differing(by: str) -> str:
    return f"""
        SELECT
            {by}, countIf(is_there) AS there, countIf(NOT is_there) AS counted,
            {", ".join(f"sum({name}) AS {name}" for name in SUMS)}
        FROM (
            SELECT *, events * toInt128(sipHash64(usage_id)) AS identity FROM (
                SELECT *, 1 AS is_there FROM ({_NOW})
                UNION ALL
                SELECT * REPLACE ({", ".join(f"-{name} AS {name}" for name in SUMS)}), 0 AS is_there FROM ({_COUNTED})
            )
        )
        GROUP BY {by}
        HAVING {" OR ".join(f"{name} != 0" for name in SUMS)} OR sum(identity) != 0
    """


DIFFERS = f"SELECT count() FROM ({_differing('model, currency, price_id')})"
"""Of a closed month, how many sums differ from what was counted: quick, and 0 where there is nothing to look for. The
identities are summed, too: where an event is gone, another with its figures would hide behind it.
"""

DIFFERENCE = f"""
    SELECT *, multiIf(sum(there) OVER event = 0, 'missing', sum(counted) OVER event > 0, 're-rated', 'late') AS kind
    FROM ({_differing("usage_id, model, currency, price_id")})
    WINDOW event AS (PARTITION BY usage_id)
"""
TO_ADD = f"SELECT * FROM ({DIFFERENCE}) WHERE kind != 'missing'"
"""Of a closed month, what was not counted yet, or otherwise."""


def total_of(statement: str) -> str:
    """Its sums by kind and price."""
    sums = ", ".join(f"sum({name})" for name in SUMS)
    return f"SELECT kind, model, currency, price_id, {sums} FROM ({statement}) GROUP BY kind, model, currency, price_id"


def count_with(statement: str) -> str:
    """Writes down, for a closing, which events it counts."""
    columns = ", ".join(COLUMNS)
    return (
        f"INSERT INTO invoice_usage (closing_id, tenant_id, month, {columns})"
        f" SELECT {{closing:String}}, {{tenant:String}}, {{month:Date}}, {columns} FROM ({statement})"
    )


WRITTEN_DOWN = f"""
    SELECT month, kind, model, currency, price_id, {", ".join(f"sum({name})" for name in SUMS)}
    FROM invoice_usage
    WHERE tenant_id = {{tenant:String}} AND closing_id = {{closing:String}}
    GROUP BY month, kind, model, currency, price_id
"""
COUNT_SETTINGS = {
    "max_bytes_before_external_group_by": 268_435_456,
    "max_bytes_before_external_sort": 268_435_456,
    "do_not_merge_across_partitions_select_final": 1,
    "max_threads": 2,
}
"""Millions of events are compared on the disk, not in memory."""
