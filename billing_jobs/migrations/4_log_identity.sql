-- Schema version 4: of which log a position is, and where an operator decided that billing goes on.
--
-- Offsets begin at 0 again in a new log; without its identity, tables that outlived the old one would take the new
-- one's records below their position for billed.
ALTER TABLE billing_batches ADD COLUMN IF NOT EXISTS
    log_id LowCardinality(String) DEFAULT '' COMMENT '<cluster id>/<topic id>, empty: a release that did not note it';

-- Append-only. A decision counts until a batch is inserted after it.
CREATE TABLE IF NOT EXISTS billing_decisions
(
    topic       LowCardinality(String),
    partition   UInt32,
    next_offset UInt64 COMMENT 'billing goes on here, what stands below counts as stored',
    log_id      LowCardinality(String) COMMENT 'the log that was decided on',
    reason      String COMMENT 'what was done',
    decided_at  DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = MergeTree
ORDER BY (topic, partition, decided_at)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1;
