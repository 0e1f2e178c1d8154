-- Schema version 9: invoices and the ledger. All of it is append-only, and nothing is updated.
--
-- A closing of a tenant's month writes which usage events it counted, then the entries that it adds to the ledger, and
-- its own row last, whose one insert decides: what names a closing that has no row counts for nothing. Closings of a
-- tenant are numbered, and of two with one number the first counts.

-- One row per usage event and closing that counted it; what it changed, where an earlier closing had counted the event.
CREATE TABLE IF NOT EXISTS invoice_usage
(
    closing_id            LowCardinality(String),
    tenant_id             LowCardinality(String),
    month                 Date COMMENT 'in which the request was accepted, as its first day',
    usage_id              String,
    kind                  LowCardinality(String) COMMENT 'usage, or late or re-rated: counted after the invoice of its month',
    model                 LowCardinality(String),
    currency              LowCardinality(String) COMMENT 'empty: no price is known yet',
    price_id              LowCardinality(String) COMMENT 'empty: no price is known yet',
    events                Int64 COMMENT '1, or -1 and 1 where an event was counted at another price before',
    uncached_input_tokens Int64,
    cached_input_tokens   Int64,
    output_tokens         Int64,
    reasoning_tokens      Int64,
    cost_pico             Int128
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(month)
ORDER BY (tenant_id, month, usage_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per entry. A positive amount is owed by the tenant.
CREATE TABLE IF NOT EXISTS ledger_entries
(
    entry_id    String COMMENT 'derived from the entry, so that a repeat is recognised',
    closing_id  LowCardinality(String) COMMENT 'which closing made it, empty: the operator did',
    tenant_id   LowCardinality(String),
    month       Date COMMENT 'to which it belongs, as its first day',
    kind        LowCardinality(String) COMMENT 'credit, correction, late, re-rated or carried',
    amount_pico Int128,
    currency    LowCardinality(String),
    reason      String,
    actor       String,
    recorded_at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (tenant_id, recorded_at, entry_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per closing, with its invoices as they were made, one for each currency.
CREATE TABLE IF NOT EXISTS invoice_closings
(
    closing_id        String,
    tenant_id         LowCardinality(String),
    number            UInt32 COMMENT 'of the tenant''s closings, counted from 1',
    month             Date COMMENT 'which is closed, as its first day',
    closed_at         DateTime64(3, 'UTC'),
    actor             String,
    finalized_through DateTime64(3, 'UTC') COMMENT 'all usage that was logged by then was stored when it was counted',
    stored_before     Array(Tuple(partition UInt32, next_offset UInt64, log_id String)),
    entry_ids         Array(String) COMMENT 'entries of the ledger that its invoices have',
    documents         Array(String) COMMENT 'invoices as canonical JSON',
    sha256            Array(String) COMMENT 'of each of them'
)
ENGINE = MergeTree
ORDER BY (tenant_id, number)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per month whose usage events left the tables, each of them on an invoice.
CREATE TABLE IF NOT EXISTS dropped_months
(
    month      Date COMMENT 'its first day',
    events     UInt64 COMMENT 'that are gone',
    actor      String,
    reason     String,
    dropped_at DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY (month, dropped_at)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE VIEW IF NOT EXISTS counting_closings AS
SELECT * FROM invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number;
