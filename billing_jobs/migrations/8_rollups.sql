-- Schema version 8: usage by the hour, summed anew from the events of an hour whenever that was written to.
--
-- Sums and the marks by which they may be trusted are rows of one table, since a statement sees one moment of a table:
--   kind 'figures'  sums of one group of an hour; they count where `version` is the hour's greatest of 'rolled'
--   kind 'written'  a writer's last mark: `step` odd, it may be writing to the hour, or even, it no longer is
--   kind 'rolled'   up to which step of a writer the hour's sums hold; `version` is theirs
--   kind 'kept'     sums of an hour whose events have left, beside what comes after that; those of the `version` that a
--                   row of no tenant names count, which is written once the events have left
--   kind 'keeping'  which sums are to be kept; `writer` is an event that leaves with all others of the month
-- An hour is settled when of each of its writers the step of 'rolled' has reached that of 'written'. Rows that are no
-- figures are of no tenant, so they come first.
CREATE TABLE IF NOT EXISTS usage_hours
(
    tenant_id             LowCardinality(String) COMMENT 'empty: not figures',
    hour                  DateTime('UTC') COMMENT 'in which the requests were accepted',
    kind                  LowCardinality(String) COMMENT 'figures, written, rolled or kept',
    writer                String COMMENT 'empty: figures or kept',
    project_id            LowCardinality(String),
    key_id                LowCardinality(String),
    model                 LowCardinality(String),
    endpoint              LowCardinality(String),
    lane                  LowCardinality(String),
    pool                  LowCardinality(String),
    region                LowCardinality(String),
    ending                LowCardinality(String),
    currency              LowCardinality(String),
    version               UInt64,
    step                  UInt64,
    marked_at             DateTime64(3, 'UTC') DEFAULT now64(3),
    requests              UInt64,
    uncached_input_tokens UInt64,
    cached_input_tokens   UInt64,
    output_tokens         UInt64,
    reasoning_tokens      UInt64,
    released_tokens       UInt64,
    suspense_events       UInt64,
    cost_pico             Int128
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toYYYYMM(hour)
ORDER BY (tenant_id, hour, kind, writer, project_id, key_id, model, endpoint, lane, pool, region, ending, currency)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;

-- What is there already is to be summed.
INSERT INTO usage_hours (hour, kind, writer, step, version)
SELECT DISTINCT toStartOfHour(accepted_at), 'written', 'schema version 8', 2, 2 FROM usage_events;
