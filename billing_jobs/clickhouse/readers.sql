-- What analysts of a tenant see, in the database `sluice` of their reader, beside the views of `rollups/views.sql` and
-- `invoices/views.sql`; the tables themselves are in `tables` there.
-- Row policies on the tables leave each its own rows; here are the columns that are theirs: nothing of workers, keys of
-- encryption or the log.
CREATE VIEW sluice.usage AS
SELECT
    usage_id, response_id, choice, tenant_id, project_id, key_id, end_user, region, policy_version, traceparent,
    schema_version, stage_ms, endpoint, model, requested_model, pool, lane, attempts, ending, finish_reason, billable,
    billing_rule_version, accepted_at, first_token_at, ended_at, uncached_input_tokens, cached_input_tokens,
    output_tokens, reasoning_tokens, released_tokens, reserved_tokens, charge_state, cost_pico, currency, price_id,
    logged_at, toDecimal256(cost_pico, 12) / 1000000000000 AS cost
FROM tables.usage_events FINAL;

CREATE VIEW sluice.delivered_counts AS
SELECT delivered_id, response_id, tenant_id, project_id, region, delivered_tokens, logged_at
FROM tables.delivered_counts FINAL;

CREATE VIEW sluice.prices AS
SELECT
    price_id, model, currency, valid_from, uncached_input_pico, cached_input_pico, output_pico, reasoning_pico,
    tenant_id, endpoint, lane, region, withdrawn
FROM (
    SELECT * FROM tables.prices
    ORDER BY recorded_at, version LIMIT 1 BY model, tenant_id, endpoint, lane, region, valid_from
);

CREATE VIEW sluice.price_intervals AS
SELECT
    price_id, model, currency, valid_from, valid_until, uncached_input_pico, cached_input_pico, output_pico,
    reasoning_pico, tenant_id, endpoint, lane, region, specificity
FROM (
    SELECT
        *, toUInt8((tenant_id != '') * 8 + (endpoint != '') * 4 + (lane != '') * 2 + (region != '')) AS specificity,
        leadInFrame(toNullable(valid_from)) OVER
            (PARTITION BY model, tenant_id, endpoint, lane, region ORDER BY valid_from
             ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS valid_until
    FROM sluice.prices
)
WHERE NOT withdrawn;
