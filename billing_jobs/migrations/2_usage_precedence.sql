-- Schema version 2: of two rows of one usage_id, FINAL keeps the one that tells more.
--
-- A response may be refused in one partition of the log and opened in another, and each has its bill. The one over
-- nothing must not replace the other because it was inserted later.
--
-- An engine cannot be altered: the table of an older release is written anew and takes the old one's place in one step,
-- with all of its rows. Rows that another process inserts meanwhile would be lost. New tables are made like this.
CREATE OR REPLACE TABLE usage_events
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
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1
AS SELECT * FROM usage_events;
