-- What analysts of a tenant see, beside the views of `rollups/views.sql` and `invoices/views.sql`. `{tables}` and `{views}`
-- are where the tables are and where these go: in an embedded engine `tables` and `sluice` of their reader, in a server
-- the database of the tables and one beside it.
-- Row policies on the tables leave each its own rows; here are the columns that are theirs, which `access.py` names:
-- nothing of workers, keys of encryption or the log.
{create} {views}usage AS
SELECT {usage_events}, toDecimal256(cost_pico, 12) / 1000000000000 AS cost
FROM {tables}usage_events FINAL;

{create} {views}delivered_counts AS
SELECT {delivered_counts}
FROM {tables}delivered_counts FINAL;

{create} {views}prices AS
SELECT
    price_id, model, currency, valid_from, uncached_input_pico, cached_input_pico, output_pico, reasoning_pico,
    tenant_id, endpoint, lane, region, withdrawn
FROM (
    SELECT {prices} FROM {tables}prices
    ORDER BY recorded_at, version LIMIT 1 BY model, tenant_id, endpoint, lane, region, valid_from
);

{create} {views}price_intervals AS
SELECT
    price_id, model, currency, valid_from, valid_until, uncached_input_pico, cached_input_pico, output_pico,
    reasoning_pico, tenant_id, endpoint, lane, region, specificity
FROM (
    SELECT
        *, toUInt8((tenant_id != '') * 8 + (endpoint != '') * 4 + (lane != '') * 2 + (region != '')) AS specificity,
        leadInFrame(toNullable(valid_from)) OVER
            (PARTITION BY model, tenant_id, endpoint, lane, region ORDER BY valid_from
             ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS valid_until
    FROM {views}prices
)
WHERE NOT withdrawn;
