-- Schema version 15: which parts of usage are known to name nobody who was forgotten, so that a start of billing looks
-- at those alone that were written to since. What is said of a table that is there no more counts for nothing.
CREATE TABLE IF NOT EXISTS forgotten_looks
(
    table_id     String COMMENT 'of usage_events, as the engine knows it',
    partition_id String COMMENT 'a month',
    first_block  Int64,
    last_block   Int64 COMMENT 'with first_block: what was inserted by then, and no more',
    forgotten    UInt64 COMMENT 'rows of forgotten by which it was looked',
    looked_at    DateTime64(3, 'UTC') DEFAULT now64(3)
)
ENGINE = ReplacingMergeTree(looked_at)
ORDER BY (table_id, partition_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
