-- Schema version 12: whose usage is no longer told by end users. Append-only; of a subject the last row counts.
CREATE TABLE IF NOT EXISTS forgotten
(
    tenant_id   LowCardinality(String),
    subject     FixedString(64) COMMENT 'SHA-256 of the tenant and an end user''s pseudonym, or of the tenant and nothing: all of its end users',
    before      DateTime64(3, 'UTC') COMMENT 'what was accepted earlier no longer names it',
    actor       String,
    recorded_at DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (tenant_id, subject, before)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
