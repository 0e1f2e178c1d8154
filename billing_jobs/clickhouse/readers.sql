-- What analysts of a tenant see, in the database `sluice` of their reader, beside the views of `rollups/views.sql`; the
-- tables themselves are in `tables` there.
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

CREATE VIEW sluice.invoices AS
SELECT
    JSONExtractString(document, 'invoice_id') AS invoice_id, tenant_id, month, number,
    JSONExtractString(document, 'currency')   AS currency,
    toDecimal256(JSONExtractString(document, 'usage'), 12)       AS usage,
    toDecimal256(JSONExtractString(document, 'adjustments'), 12) AS adjustments,
    toDecimal256(JSONExtractString(document, 'total'), 4)        AS total,
    toDecimal256(JSONExtractString(document, 'carried'), 12)     AS carried,
    closed_at, finalized_through, sha256, document
FROM
(
    SELECT tenant_id, number, month, closed_at, finalized_through, documents, sha256 AS hashes
    FROM tables.invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number
)
ARRAY JOIN documents AS document, hashes AS sha256;

CREATE VIEW sluice.invoice_lines AS
SELECT
    invoice_id, tenant_id, month, number, currency,
    JSONExtractString(line, 'model')    AS model,
    JSONExtractString(line, 'price_id') AS price_id,
    JSONExtractString(line, 'class')    AS class,
    JSONExtractInt(line, 'quantity')    AS quantity,
    toDecimal256(JSONExtractString(line, 'price_per_million'), 6) AS price_per_million,
    toDecimal256(JSONExtractString(line, 'amount'), 12)           AS amount
FROM sluice.invoices
ARRAY JOIN JSONExtractArrayRaw(document, 'lines') AS line;

CREATE VIEW sluice.invoiced_usage AS
SELECT
    tenant_id, month, usage_id, kind, model, currency, price_id, events, uncached_input_tokens, cached_input_tokens,
    output_tokens, reasoning_tokens, cost_pico, closing.number AS number
FROM tables.invoice_usage
INNER JOIN
(
    SELECT closing_id, number
    FROM tables.invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number
) AS closing USING (closing_id);

CREATE VIEW sluice.ledger AS
WITH counting AS
(
    SELECT closing_id, entry_ids
    FROM tables.invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number
)
SELECT
    entry_id, tenant_id, month, kind, amount_pico, toDecimal256(amount_pico, 12) / 1000000000000 AS amount, currency,
    reason, recorded_at, entry_id IN (SELECT arrayJoin(entry_ids) FROM counting) AS is_invoiced
FROM
(
    SELECT * FROM tables.ledger_entries
    WHERE closing_id = '' OR closing_id IN (SELECT closing_id FROM counting)
    ORDER BY recorded_at LIMIT 1 BY entry_id
);
