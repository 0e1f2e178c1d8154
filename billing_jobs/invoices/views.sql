-- Invoices and the ledger: for billing's own tables and for a tenant's analysts alike.
-- `{tables}` and `{views}` are where the tables are and where these go; `{closings}` are the closings that count;
-- `{entry}` are the columns of an entry that are read; `{actor}` is the column of who did it, where that is shown.
{create} {views}invoices AS
SELECT
    JSONExtractString(document, 'invoice_id') AS invoice_id, tenant_id, month, number,
    JSONExtractString(document, 'currency')   AS currency,
    toDecimal256(JSONExtractString(document, 'usage'), 12)       AS usage,
    toDecimal256(JSONExtractString(document, 'adjustments'), 12) AS adjustments,
    toDecimal256(JSONExtractString(document, 'total'), 4)        AS total,
    toDecimal256(JSONExtractString(document, 'carried'), 12)     AS carried,
    closed_at, finalized_through, {actor}sha256, document
FROM (SELECT * EXCEPT (documents, sha256), documents, sha256 AS hashes FROM {closings})
ARRAY JOIN documents AS document, hashes AS sha256;

{create} {views}invoice_lines AS
SELECT
    invoice_id, tenant_id, month, number, currency,
    JSONExtractString(line, 'model')    AS model,
    JSONExtractString(line, 'price_id') AS price_id,
    JSONExtractString(line, 'class')    AS class,
    JSONExtractInt(line, 'quantity')    AS quantity,
    toDecimal256(JSONExtractString(line, 'price_per_million'), 6) AS price_per_million,
    toDecimal256(JSONExtractString(line, 'amount'), 12)           AS amount
FROM {views}invoices
ARRAY JOIN JSONExtractArrayRaw(document, 'lines') AS line;

{create} {views}ledger AS
WITH counting AS (SELECT closing_id, entry_ids FROM {closings})
SELECT
    entry_id, tenant_id, month, kind, amount_pico, toDecimal256(amount_pico, 12) / 1000000000000 AS amount, currency,
    reason, {actor}recorded_at, entry_id IN (SELECT arrayJoin(entry_ids) FROM counting) AS is_invoiced
FROM
(
    SELECT {entry} FROM {tables}ledger_entries
    WHERE closing_id = '' OR closing_id IN (SELECT closing_id FROM counting)
    ORDER BY recorded_at LIMIT 1 BY entry_id
);

{create} {views}invoiced_usage AS
SELECT
    tenant_id, month, usage_id, kind, model, currency, price_id, events, uncached_input_tokens, cached_input_tokens,
    output_tokens, reasoning_tokens, cost_pico, closing.number AS number
FROM {tables}invoice_usage
INNER JOIN (SELECT closing_id, number FROM {closings}) AS closing USING (closing_id);
