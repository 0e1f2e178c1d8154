-- Billing tables, schema version 1, but `usage_events` as version 2 has it, so that no new table is ever replaced.
-- One statement per `;`. Every statement may run again after a crash half-way.
--
-- Settings are explicit because their defaults moved between versions of ClickHouse:
--   non_replicated_deduplication_window  how many insert tokens a table remembers (0, off, by default);
--   fsync_*                              an insert that was acknowledged survives a power cut.
-- ReplacingMergeTree keyed by an immutable identity absorbs what outlives the window; read it with FINAL.

-- One row per response and choice. Partition and key are made of fields that never change for a usage_id.
CREATE TABLE IF NOT EXISTS usage_events
(
    usage_id              String COMMENT '<response_id>/<choice>, unique',
    response_id           String,
    choice                UInt32,
    tenant_id             LowCardinality(String),
    project_id            LowCardinality(String),
    key_id                LowCardinality(String) COMMENT 'which key was used, never the key',
    end_user              String COMMENT 'pseudonym',
    region                LowCardinality(String),
    policy_version        UInt32,
    encryption_key_id     LowCardinality(String),
    traceparent           String,
    schema_version        UInt16,
    stage_ms              Map(LowCardinality(String), Int64) COMMENT 'Unix ms at which each stage finished',
    endpoint              LowCardinality(String),
    model                 LowCardinality(String),
    requested_model       LowCardinality(String),
    pool                  LowCardinality(String),
    lane                  LowCardinality(String),
    worker_id             LowCardinality(String) COMMENT 'empty: no token was accepted',
    attempts              UInt32,
    ending                LowCardinality(String),
    finish_reason         LowCardinality(String),
    billable              Bool,
    billing_rule_version  UInt16,
    accepted_at           DateTime64(3, 'UTC') COMMENT 'decides price and month',
    first_token_at        Nullable(DateTime64(3, 'UTC')),
    ended_at              DateTime64(3, 'UTC'),
    uncached_input_tokens UInt32,
    cached_input_tokens   UInt32,
    output_tokens         UInt32 COMMENT 'without reasoning',
    reasoning_tokens      UInt32,
    released_tokens       UInt32 COMMENT 'output that passed post-safety',
    reserved_tokens       UInt32,
    charge_state          LowCardinality(String) COMMENT 'priced, not_billable or suspense (no price known yet)',
    cost_pico             Int128 COMMENT '10^-12 of currency, exact, 0 unless priced',
    currency              LowCardinality(String) COMMENT 'empty: no price known',
    price_id              LowCardinality(String),
    log_partition         UInt32,
    log_offset            UInt64,
    logged_at             DateTime64(3, 'UTC'),
    precedence            UInt8 MATERIALIZED (model != '') + (attempts > 0) COMMENT '0 refused, 1 opened, 2 a worker took it',
    INDEX usage_id_bloom usage_id TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree(precedence)
PARTITION BY toYYYYMM(accepted_at)
ORDER BY (tenant_id, toStartOfHour(accepted_at), usage_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per attempt: what it cost its worker, also where nothing was accepted. Unpriced.
CREATE TABLE IF NOT EXISTS compute_records
(
    attempt_id       String,
    response_id      String,
    tenant_id        LowCardinality(String),
    project_id       LowCardinality(String),
    region           LowCardinality(String),
    worker_id        LowCardinality(String),
    pool             LowCardinality(String),
    model            LowCardinality(String),
    prompt_tokens    UInt32,
    cached_tokens    UInt32,
    generated_tokens UInt32,
    engine_ms        UInt64,
    outcome          LowCardinality(String),
    log_partition    UInt32,
    log_offset       UInt64,
    logged_at        DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant_id, response_id, attempt_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per record of a gateway: tokens handed to a viewer's socket. Unpriced; several viewers give several rows.
CREATE TABLE IF NOT EXISTS delivered_counts
(
    delivered_id     String COMMENT '<log partition>-<log offset>',
    response_id      String,
    tenant_id        LowCardinality(String),
    project_id       LowCardinality(String),
    region           LowCardinality(String),
    gateway_id       LowCardinality(String),
    delivered_tokens UInt32,
    log_partition    UInt32,
    log_offset       UInt64,
    logged_at        DateTime64(3, 'UTC')
)
ENGINE = ReplacingMergeTree
ORDER BY (tenant_id, response_id, delivered_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- One row per cut of the log, written after all of its rows: what is stored, for lag and audit.
CREATE TABLE IF NOT EXISTS billing_batches
(
    batch_id        String COMMENT '<topic>-<partition>-<first>-<last>-<Unix ms of the cut>, the insert token',
    topic           LowCardinality(String),
    partition       UInt32,
    first_offset    UInt64,
    last_offset     UInt64,
    records         UInt64 COMMENT 'log records in the cut',
    usage_rows      UInt64,
    compute_rows    UInt64,
    delivered_rows  UInt64,
    dead_letters    UInt64,
    sha256          FixedString(64) COMMENT 'over offsets and values of the records',
    row_schema      UInt16,
    first_logged_at DateTime64(3, 'UTC'),
    last_logged_at  DateTime64(3, 'UTC'),
    inserted_at     DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree
ORDER BY (topic, partition, first_offset, last_offset)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

-- Append-only. A price holds from valid_from until the model's next row, so intervals cannot overlap.
CREATE TABLE IF NOT EXISTS prices
(
    price_id            String COMMENT '<model>@<valid_from in ms>',
    model               LowCardinality(String),
    currency            LowCardinality(String),
    valid_from          DateTime64(3, 'UTC'),
    uncached_input_pico Int64 COMMENT 'pico-currency per token',
    cached_input_pico   Int64,
    output_pico         Int64,
    reasoning_pico      Int64,
    recorded_at         DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (model, valid_from)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;

CREATE VIEW IF NOT EXISTS price_intervals AS
SELECT
    price_id, model, currency, valid_from,
    leadInFrame(toNullable(valid_from)) OVER
        (PARTITION BY model ORDER BY valid_from ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS valid_until,
    uncached_input_pico, cached_input_pico, output_pico, reasoning_pico
FROM (SELECT DISTINCT * EXCEPT (recorded_at) FROM prices);

-- Each usage event once. The views below stand on it, so they are exact after any replay.
CREATE VIEW IF NOT EXISTS usage AS
SELECT *, toDecimal256(cost_pico, 12) / 1000000000000 AS cost
FROM usage_events FINAL;

CREATE VIEW IF NOT EXISTS usage_by_hour AS
SELECT
    tenant_id, project_id, model, currency, toStartOfHour(accepted_at) AS hour,
    countIf(choice = 0)                    AS requests,
    sum(uncached_input_tokens)             AS uncached_input_tokens,
    sum(cached_input_tokens)               AS cached_input_tokens,
    sum(output_tokens)                     AS output_tokens,
    sum(reasoning_tokens)                  AS reasoning_tokens,
    sum(released_tokens)                   AS released_tokens,
    countIf(charge_state = 'suspense')     AS suspense_events,
    sum(cost_pico)                         AS cost_pico
FROM usage_events FINAL
GROUP BY tenant_id, project_id, model, currency, hour;

CREATE VIEW IF NOT EXISTS usage_by_day AS
SELECT
    tenant_id, project_id, model, currency, toDate(accepted_at) AS day,
    countIf(choice = 0)                    AS requests,
    sum(uncached_input_tokens)             AS uncached_input_tokens,
    sum(cached_input_tokens)               AS cached_input_tokens,
    sum(output_tokens)                     AS output_tokens,
    sum(reasoning_tokens)                  AS reasoning_tokens,
    sum(released_tokens)                   AS released_tokens,
    countIf(charge_state = 'suspense')     AS suspense_events,
    sum(cost_pico)                         AS cost_pico
FROM usage_events FINAL
GROUP BY tenant_id, project_id, model, currency, day;

-- Priced rows whose stored cost differs from tokens times the price they name: always empty.
CREATE VIEW IF NOT EXISTS price_differences AS
SELECT
    event.usage_id AS usage_id, event.price_id AS price_id, event.cost_pico AS cost_pico,
    toInt128(uncached_input_tokens) * uncached_input_pico + toInt128(cached_input_tokens) * cached_input_pico
        + toInt128(output_tokens) * output_pico + toInt128(reasoning_tokens) * reasoning_pico AS recomputed_pico
FROM (SELECT * FROM usage_events FINAL WHERE charge_state = 'priced') AS event
LEFT JOIN (SELECT DISTINCT * EXCEPT (recorded_at) FROM prices) AS price ON event.price_id = price.price_id
WHERE cost_pico != recomputed_pico;
